"""From a graph and a budget to a rewritten graph and its report."""

"""Networks without tensors: the runtime on its own, as in the paper's formal results and simulations."""

from .linear import LinearRun, backward, forward, root_budget, run_linear

__all__ = ["LinearRun", "backward", "forward", "root_budget", "run_linear"]

"""``torch.compile`` with a budget: the backend, plans by shape, step accounting, and who is sent reports."""

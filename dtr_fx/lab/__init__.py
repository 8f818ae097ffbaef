"""The laboratory: the paper's experiments, static and exact planners, models to try, and measurements.

Nothing of the product imports it; the commands ``simulate``, ``figures``, ``record`` and ``bench`` do, and
targets such as ``zoo:gpt``.  The rooms of the paper (logs, networks, replays) do without torch.
"""

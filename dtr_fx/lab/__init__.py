"""The laboratory: the paper's experiments, rival planners, models to try things on, and measurements.

Nothing of the product imports it; the commands ``simulate``, ``figures``, ``record`` and ``bench`` do, and
targets such as ``zoo:gpt``.  The rooms of the paper (logs, networks, replays) do without torch.
"""

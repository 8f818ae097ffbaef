"""The figures of the paper, drawn anew (Kirisame et al., ICLR 2021; extra ``plot``).

A figure is a ``Drawing``: the picture, and the numbers in it.  Those of replays (2 and 7 to 12) share one
``Study``, which runs each replay once; Figure 3 is a ``PlannerComparison``, and Figure 5 one run of the
linear network.
"""

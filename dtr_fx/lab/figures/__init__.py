"""The figures of the paper, drawn anew (Kirisame et al., ICLR 2021; extra ``plot``).

A figure is a ``Drawing``: the picture, and the numbers in it.  Those of replays (2 and 7 to 12) share one
``Study``, which runs each replay once; Figure 3 is a ``Comparison`` of planners, and Figure 5 one run of the
linear network.
"""

from dtr_fx.lab.figures.accesses import plot_accesses
from dtr_fx.lab.figures.drawing import FIGURES, REPLAYED, Drawing, draw_comparison, draw_linear, draw_study
from dtr_fx.lab.figures.overheads import Comparison, Planned, networks, plot_overheads
from dtr_fx.lab.figures.residency import Interval, LinearTrace, plot_residency, trace_linear
from dtr_fx.lab.figures.slowdowns import plot_slowdowns
from dtr_fx.lab.figures.study import Study
from dtr_fx.lab.figures.style import require_matplotlib

__all__ = [
    "FIGURES",
    "REPLAYED",
    "Comparison",
    "Drawing",
    "Interval",
    "LinearTrace",
    "Planned",
    "Study",
    "draw_comparison",
    "draw_linear",
    "draw_study",
    "networks",
    "plot_accesses",
    "plot_overheads",
    "plot_residency",
    "plot_slowdowns",
    "require_matplotlib",
    "trace_linear",
]

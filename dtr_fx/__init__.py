"""Dynamic tensor rematerialization for the PyTorch compiler: train inside a byte budget.

torch.compile(model, backend="dtr", options={"budget": "60%"})
dtr_fx.transform(gm, budget)
dtr-fx diff module:factory --budget 60%

``dtr_fx.simulate`` and ``dtr_fx.planners`` hold the experiments of the paper.
"""

from .errors import DTRError, GraphError, InfeasibleBudgetError, OptionError
from .measure import measure_peak
from .record import RecordError, record_log
from .report import Report
from .runtime import HEURISTICS, Heuristic
from .transform import transform

__all__ = [
    "HEURISTICS",
    "DTRError",
    "GraphError",
    "Heuristic",
    "InfeasibleBudgetError",
    "OptionError",
    "RecordError",
    "Report",
    "measure_peak",
    "record_log",
    "transform",
]

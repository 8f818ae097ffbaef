"""Dynamic tensor rematerialization for the PyTorch compiler: train inside a byte budget.

torch.compile(model, backend="dtr", options={"budget": "60%"})
dtr_fx.transform(gm, budget)
dtr_fx.sweep(gm); dtr_fx.smallest_budget(gm)
dtr-fx diff module:factory --budget 60%
dtr-fx sweep module:factory

``dtr_fx.simulate`` and ``dtr_fx.planners`` hold the experiments of the paper.
"""

from typing import Any

from .curve import Curve, CurvePoint, smallest_budget, sweep
from .errors import DTRError, GraphError, InfeasibleBudgetError, OptionError, OverBudgetError
from .interpreter import DTRInterpreter
from .judge import Judgement, judge
from .live import LivePlan, plans
from .measure import measure_peak
from .record import RecordError, record_log
from .report import Report
from .runtime import HEURISTICS, Heuristic
from .transform import transform

__all__ = [
    "HEURISTICS",
    "Curve",
    "CurvePoint",
    "DTRError",
    "DTRInterpreter",
    "GraphError",
    "Heuristic",
    "InfeasibleBudgetError",
    "Judgement",
    "LivePlan",
    "OptionError",
    "OverBudgetError",
    "Partitioner",
    "RecordError",
    "Report",
    "judge",
    "measure_peak",
    "plans",
    "record_log",
    "smallest_budget",
    "sweep",
    "transform",
]


def __getattr__(name: str) -> Any:
    """``Partitioner`` when it is asked for: Inductor takes a second to import."""
    if name == "Partitioner":
        from .inductor import Partitioner

        return Partitioner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Dynamic tensor rematerialization for the PyTorch compiler: train inside a byte budget.

torch.compile(model, backend="dtr", options={"budget": "60%"})
dtr_fx.transform(gm, budget)
dtr_fx.explain(model, inputs, budget)
dtr_fx.sweep(gm); dtr_fx.smallest_budget(gm)
dtr-fx diff module:factory --budget 60%
dtr-fx sweep module:factory

``dtr_fx.simulate`` and ``dtr_fx.planners`` hold the experiments of the paper; they do without torch, so names
are imported when they are asked for.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .curve import Curve, CurvePoint, smallest_budget, sweep
    from .errors import DTRError, GraphError, InfeasibleBudgetError, OptionError, OverBudgetError
    from .explanation import Reports, explain
    from .inductor import Partitioner
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
    "Reports",
    "explain",
    "judge",
    "measure_peak",
    "plans",
    "record_log",
    "smallest_budget",
    "sweep",
    "transform",
]

_NAMES = {
    "curve": ("Curve", "CurvePoint", "smallest_budget", "sweep"),
    "errors": ("DTRError", "GraphError", "InfeasibleBudgetError", "OptionError", "OverBudgetError"),
    "explanation": ("Reports", "explain"),
    "inductor": ("Partitioner",),
    "interpreter": ("DTRInterpreter",),
    "judge": ("Judgement", "judge"),
    "live": ("LivePlan", "plans"),
    "measure": ("measure_peak",),
    "record": ("RecordError", "record_log"),
    "report": ("Report",),
    "runtime": ("HEURISTICS", "Heuristic"),
    "transform": ("transform",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Importing a submodule binds it in its package: not over the functions ``judge`` and ``transform``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

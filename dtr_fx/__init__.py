"""Dynamic tensor rematerialization for the PyTorch compiler: train inside a byte budget.

torch.compile(model, backend="dtr", options={"budget": "60%"})
dtr_fx.train_step(model, loss, optimizer, budget)
dtr_fx.transform(gm, budget)
dtr_fx.explain(model, inputs, budget)
dtr_fx.sweep(gm); dtr_fx.smallest_budget(gm)
dtr-fx diff module:factory --budget 60%
dtr-fx sweep module:factory

``dtr_fx.lab`` and ``dtr_fx.lab.planners`` hold the experiments of the paper; they do without torch, so names
are imported when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtr_fx.compiler.accelerate import register_with_accelerate
    from dtr_fx.compiler.backend import boxed_compiler
    from dtr_fx.compiler.dispatch import plans
    from dtr_fx.compiler.explain import Reports, explain
    from dtr_fx.compiler.inductor import Partitioner
    from dtr_fx.compiler.partition_fn import partition_fn
    from dtr_fx.compiler.retrace import LivePlan
    from dtr_fx.compiler.train_step import TrainStep, train_step
    from dtr_fx.costs.measure import measure_peak
    from dtr_fx.errors import (
        DTRError,
        GraphError,
        InfeasibleBudgetError,
        InfeasiblePartError,
        OptionError,
        OverBudgetError,
        UncompiledError,
        WrittenTensorError,
    )
    from dtr_fx.inspect.views import Report
    from dtr_fx.lab.record import RecordError, record_log
    from dtr_fx.passes.hints import drop, keep, region
    from dtr_fx.planning.curve import smallest_budget, sweep
    from dtr_fx.planning.defaults import config
    from dtr_fx.planning.interpreter import DTRInterpreter
    from dtr_fx.planning.judge import Judgement, judge
    from dtr_fx.planning.tags import tag
    from dtr_fx.planning.transform import transform
    from dtr_fx.report.curve import Curve, CurvePoint
    from dtr_fx.runtime import HEURISTICS, Heuristic

__all__ = [
    "HEURISTICS",
    "Curve",
    "CurvePoint",
    "DTRError",
    "DTRInterpreter",
    "GraphError",
    "Heuristic",
    "InfeasibleBudgetError",
    "InfeasiblePartError",
    "Judgement",
    "LivePlan",
    "OptionError",
    "OverBudgetError",
    "Partitioner",
    "RecordError",
    "Report",
    "Reports",
    "TrainStep",
    "UncompiledError",
    "WrittenTensorError",
    "boxed_compiler",
    "config",
    "drop",
    "explain",
    "judge",
    "keep",
    "measure_peak",
    "partition_fn",
    "plans",
    "record_log",
    "region",
    "register_with_accelerate",
    "smallest_budget",
    "sweep",
    "tag",
    "train_step",
    "transform",
]

_NAMES = {
    "planning.curve": ("smallest_budget", "sweep"),
    "report.curve": ("Curve", "CurvePoint"),
    "errors": (
        *("DTRError", "GraphError", "InfeasibleBudgetError", "InfeasiblePartError", "OptionError"),
        *("OverBudgetError", "UncompiledError", "WrittenTensorError"),
    ),
    "compiler.accelerate": ("register_with_accelerate",),
    "compiler.backend": ("boxed_compiler",),
    "compiler.partition_fn": ("partition_fn",),
    "compiler.explain": ("Reports", "explain"),
    "compiler.inductor": ("Partitioner",),
    "planning.defaults": ("config",),
    "planning.interpreter": ("DTRInterpreter",),
    "planning.judge": ("Judgement", "judge"),
    "compiler.dispatch": ("plans",),
    "compiler.retrace": ("LivePlan",),
    "compiler.train_step": ("TrainStep", "train_step"),
    "costs.measure": ("measure_peak",),
    "lab.record": ("RecordError", "record_log"),
    "inspect.views": ("Report",),
    "passes.hints": ("drop", "keep", "region"),
    "runtime": ("HEURISTICS", "Heuristic"),
    "planning.tags": ("tag",),
    "planning.transform": ("transform",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

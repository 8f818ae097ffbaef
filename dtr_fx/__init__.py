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
    from dtr_fx.compiler.accelerate import register_with_accelerate as register_with_accelerate
    from dtr_fx.compiler.backend import boxed_compiler as boxed_compiler
    from dtr_fx.compiler.dispatch import plans as plans
    from dtr_fx.compiler.explain import Reports as Reports
    from dtr_fx.compiler.explain import explain as explain
    from dtr_fx.compiler.inductor import Partitioner as Partitioner
    from dtr_fx.compiler.partition_fn import partition_fn as partition_fn
    from dtr_fx.compiler.retrace import LivePlan as LivePlan
    from dtr_fx.compiler.train_step import TrainStep as TrainStep
    from dtr_fx.compiler.train_step import train_step as train_step
    from dtr_fx.costs.measure import measure_peak as measure_peak
    from dtr_fx.errors import DTRError as DTRError
    from dtr_fx.errors import GraphError as GraphError
    from dtr_fx.errors import InfeasibleBudgetError as InfeasibleBudgetError
    from dtr_fx.errors import InfeasiblePartError as InfeasiblePartError
    from dtr_fx.errors import OptionError as OptionError
    from dtr_fx.errors import OverBudgetError as OverBudgetError
    from dtr_fx.errors import UncompiledError as UncompiledError
    from dtr_fx.errors import WrittenTensorError as WrittenTensorError
    from dtr_fx.inspect.views import Report as Report
    from dtr_fx.lab.record import RecordError as RecordError
    from dtr_fx.lab.record import record_log as record_log
    from dtr_fx.passes.hints import drop as drop
    from dtr_fx.passes.hints import keep as keep
    from dtr_fx.passes.hints import region as region
    from dtr_fx.planning.curve import smallest_budget as smallest_budget
    from dtr_fx.planning.curve import sweep as sweep
    from dtr_fx.planning.defaults import config as config
    from dtr_fx.planning.interpreter import DTRInterpreter as DTRInterpreter
    from dtr_fx.planning.judge import Judgement as Judgement
    from dtr_fx.planning.judge import judge as judge
    from dtr_fx.planning.tags import tag as tag
    from dtr_fx.planning.transform import transform as transform
    from dtr_fx.report.curve import Curve as Curve
    from dtr_fx.report.curve import CurvePoint as CurvePoint
    from dtr_fx.runtime import HEURISTICS as HEURISTICS
    from dtr_fx.runtime import Heuristic as Heuristic

# Where the names are that are imported when they are asked for.
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
__all__ = sorted(_HOME)


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

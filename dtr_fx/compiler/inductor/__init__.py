"""Inductor as the executor.

A plan over kernels is held through Inductor's scheduler.  What the kernels need in the end depends on layouts
and on fusion, which a plan does not see: if it is more than the budget, a step is planned anew.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from torch.fx import GraphModule

from dtr_fx.compiler.dynamo import copy_of_dynamos
from dtr_fx.compiler.inductor.partition import AsItIs, Partitioner, Planned, TooMuch
from dtr_fx.compiler.inductor.scheduling import Fusion, Scheduling, kernel_by_kernel
from dtr_fx.errors import InfeasibleBudgetError, OverBudgetError
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import V, compile_fx, functorch_config
from dtr_fx.units import format_bytes

__all__ = ["Partitioner", "compile_step"]

log = logging.getLogger(__name__)

_Error = TypeVar("_Error", bound=BaseException)

# A plan is made, and reported, even if its two graphs are in the cache.
_NOT_CACHED = functorch_config.patch(enable_autograd_cache=False)
# How often a step is planned anew.
_TRIES = 10
# Under these settings kernels need what a plan counts with. A layout chosen for speed makes copies of
# weights and images, which stay for the backward pass; a buffer that waits for its reuse is not free; a
# part of a concatenation that is written into it at once holds all of it, from the first part to the last
# reader.
_AS_PLANNED = {"layout_optimization": False, "allow_buffer_reuse": False, "force_pointwise_cat": True}


def compile_step(gm: GraphModule, example_inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Compile with Inductor; the peak is within the budget by Inductor's own estimate.

    PyTorch's own partition is tried, then a plan, then plans with extra workspace for some operators, all
    before any code is generated.  Where no plan fits it is an InfeasibleBudgetError, where plans fit, but not
    what Inductor makes of them, an OverBudgetError.
    """
    partitioner: Partitioner = AsItIs(options)
    extra_workspace: Counter[str] = Counter()
    budget = excess = 0
    for _ in range(_TRIES):
        try:
            return _compile(gm, example_inputs, partitioner)
        except Exception as error:
            too_much = _cause(error, TooMuch)
            if extra_workspace and _cause(error, InfeasibleBudgetError) is not None:
                break
            if too_much is None:
                raise
        if too_much.excess:
            budget, excess = partitioner.budget, too_much.excess
            log.info("Inductor's kernels are %s above the budget", format_bytes(excess))
            extra_workspace.update(too_much.extra_workspace)
        partitioner = Planned(options, extra_workspace)
    raise OverBudgetError(budget, excess)


def _compile(gm: GraphModule, example_inputs: Sequence[Any], partitioner: Partitioner) -> Callable[..., Any]:
    settings = {
        **({} if partitioner.is_free else _AS_PLANNED),
        "custom_partitioner_fn": partitioner,
        "_post_fusion_custom_pass": Scheduling(partitioner),
        "reorder_for_peak_memory": False,
    }
    with (
        _NOT_CACHED,
        V.set_choices_handler(Fusion(partitioner)),
        contextlib.nullcontext() if partitioner.is_free else kernel_by_kernel(),
    ):
        compiled = compile_fx(copy_of_dynamos(gm), example_inputs, config_patches=settings)
    partitioner.emit_report()
    return cast(Callable[..., Any], compiled)


def _cause(error: BaseException | None, kind: type[_Error]) -> _Error | None:
    while error is not None and not isinstance(error, kind):
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return error

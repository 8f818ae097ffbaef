"""Inductor as the executor: a plan over its kernels, held through its scheduler.

    compile_fx
      ├─ joint graph, decomposed  ─►  partition    PyTorch's own partition if that fits, else a plan
      └─ kernels                  ─►  scheduling   which of them fuse, their order, and their peak

What the kernels need in the end depends on layouts and on fusion, which a plan does not see.  If it is more
than the budget, ``compile_step`` plans anew for less, before any code is generated.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch._functorch import config as functorch_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from dtr_fx.errors import OverBudgetError
from dtr_fx.options import Options
from dtr_fx.transform import copy_of
from dtr_fx.units import format_bytes

from .partition import AsItIs, Partitioner, Planned
from .scheduling import Fusion, Scheduling, kernel_by_kernel

__all__ = ["Partitioner", "compile_step"]

log = logging.getLogger(__name__)

# How often a step is planned anew, and for how much less besides what it was too much: one part in so many of
# the budget.
_TRIES, _MARGIN = 5, 100
# Under these settings kernels need what a plan counts with: a layout that is chosen for speed makes copies of
# weights and images, which stay for the backward pass, and a buffer that waits for its reuse is not free.
_AS_PLANNED = {"layout_optimization": False, "allow_buffer_reuse": False}


def compile_step(gm: GraphModule, example_inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Compile with Inductor; the peak is within the budget by Inductor's own estimate.

    Raises
    ------
    InfeasibleBudgetError
        No plan fits.
    OverBudgetError
        Plans fit, but not what Inductor makes of them.
    """
    compiled, excess = _compile(gm, example_inputs, AsItIs(options), {})
    reserve = 0
    for _ in range(_TRIES):
        if compiled is not None:
            return compiled
        partitioner = Planned(options, reserve)
        compiled, excess = _compile(gm, example_inputs, partitioner, _AS_PLANNED)
        if excess:
            log.info("Inductor's kernels are %s above the budget", format_bytes(excess))
        reserve += excess + partitioner.budget // _MARGIN
    if compiled is None:
        raise OverBudgetError(partitioner.budget, excess)
    return compiled


def _compile(
    gm: GraphModule, example_inputs: Sequence[Any], partitioner: Partitioner, patches: Mapping[str, Any]
) -> tuple[Callable[..., Any] | None, int]:
    """What Inductor makes of a graph; None, and by how many bytes, if that is above the budget."""
    scheduling = Scheduling(partitioner)
    settings = {
        **patches,
        "custom_partitioner_fn": partitioner,
        "_post_fusion_custom_pass": scheduling,
        "reorder_for_peak_memory": False,
    }
    try:
        with (
            # Else the backward graph is lowered when the first step has run half its way.
            functorch_config.patch(force_non_lazy_backward_lowering=True),
            V.set_choices_handler(Fusion(scheduling)),
            contextlib.nullcontext() if partitioner.is_free else kernel_by_kernel(),
        ):
            compiled = compile_fx(copy_of(gm), example_inputs, config_patches=settings)
    except Exception:
        if not scheduling.excess and not partitioner.gave_up:
            raise
        return None, scheduling.excess
    if partitioner.report is not None:
        partitioner.tell(partitioner.report)
    return cast(Callable[..., Any], compiled), 0

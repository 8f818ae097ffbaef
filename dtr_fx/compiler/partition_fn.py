"""``dtr_fx.partition_fn``: plans for a pipeline of AOTAutograd's that is not the backend's."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from dtr_fx.compiler.backend import partition
from dtr_fx.errors import OptionError
from dtr_fx.passes.split import Pair
from dtr_fx.planning.options import Options

log = logging.getLogger(__name__)


def partition_fn(budget: float | int | str | None = None, **options: Any) -> Callable[..., Pair]:
    """A ``partition_fn`` for AOTAutograd: forward and backward graphs that hold a budget between them.

    For a pipeline of one's own, with ``boxed_compiler`` or another that frees its arguments in time:
    ``aot_module(model, boxed_compiler, boxed_compiler, partition_fn=dtr_fx.partition_fn("60%"))``.  Options
    are the backend's, see ``Options``; OptionError and InfeasibleBudgetError as there.
    """
    chosen = Options.from_mapping({"budget": budget, **options})
    if chosen.executor == "inductor":
        raise OptionError("executor='inductor': for Inductor there is dtr_fx.Partitioner")
    return functools.partial(_partition_for_others, chosen)


def _partition_for_others(options: Options, joint: GraphModule, inputs: Any, **facts: Any) -> Pair:
    pair = partition(options, None, joint, inputs, **facts)
    for gm in pair:
        gm.recompile()
    hooks: list[Any] = []

    def warn(*_: Any) -> None:
        """A graph is called as it is: then its caller holds every argument until it returns."""
        while hooks:
            hooks.pop().remove()
        log.warning(
            "the budget (%s) is not in force: the compilers beside partition_fn keep all arguments of a "
            "graph until it has run; take dtr_fx.boxed_compiler",
            options.asked,
        )

    if options.limits:
        hooks += [gm.register_forward_pre_hook(warn) for gm in pair]
    return pair

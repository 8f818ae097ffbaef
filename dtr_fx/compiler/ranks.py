"""What the ranks of a process group tell each other when they plan a graph in which they work together.

When each has planned such a graph for the first time it puts into the group's store which collectives its
graphs call, in their order, and its error if no plan fits.  Whoever reads of another order, or of an error,
has an error, too, and no rank waits in a collective for one that never comes.  Under ``"auto"`` all have the
memory of the one that has the least.

DDP and FSDP call collectives between graphs: within a module of theirs ranks tell each other in their first
two steps, which are those that plan.  Where ranks take different ways through the model, one that hears
nothing goes on after a while.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.fx import GraphModule

from dtr_fx.compiler.dynamo import modules_entered
from dtr_fx.costs.machine import free_memory
from dtr_fx.errors import DTRError, GraphError
from dtr_fx.passes.effects import collectives
from dtr_fx.passes.tensors import graph_device
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import default_store, group_of, resolve_process_group

log = logging.getLogger(__name__)

# How long a rank waits for others whose collectives no graph shows.
_PATIENCE = timedelta(seconds=60)
_TOLD: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class Together:
    """A rank's graph while it is planned: its collectives, in their order, by the name of their group.

    The groups ``around`` it call theirs outside; only when it ``is_first`` are its own looked at.
    """

    def __init__(self, around: Iterable[str], *, is_first: bool) -> None:
        self._called: dict[str, list[str]] = {group: [] for group in around}
        self._around = frozenset(self._called)
        self._is_first = is_first
        self._free: int | None = None

    def see(self, gm: GraphModule) -> bool:
        """Know a graph before it is planned; True if other ranks plan it, too."""
        if not self._is_first:
            return bool(self._called)
        called: defaultdict[str, list[str]] = defaultdict(list, {group: [] for group in self._around})
        for group, operator in collectives(gm):
            if dist.get_backend(_group(group)) != "fake":
                called[group].append(operator)
        self._called = dict(called)
        return bool(called)

    def free(self, gm: GraphModule) -> int:
        """The bytes that the rank has free that has the fewest; 0 where the device does not tell."""
        if self._free is None:
            own = free_memory(graph_device(gm)) or 0
            told = _exchange("free", dict.fromkeys(self._called, own), self._around)
            self._free = min(each for group in told.values() for _, each in group)
        return self._free

    def tell(self, error: BaseException) -> None:
        """Let the others know of an error, and wait for none of them."""
        known = error if isinstance(error, DTRError) else GraphError(f"{type(error).__name__}: {error}")
        _put("plan", {group: (called, known) for group, called in self._called.items()})

    def agree(self, error: DTRError | None) -> DTRError | None:
        """This rank's error, or else that of another, or of a difference between them."""
        found = error
        own_part = {group: (called, error) for group, called in self._called.items()}
        for group, told in _exchange("plan", own_part, self._around).items():
            own = self._called[group]
            for rank, (called, theirs) in told:
                if found is None and theirs is not None:
                    log.warning("rank %d has no plan for a graph, so this rank does not run it either", rank)
                    found = theirs
                if found is None and called != own:
                    found = GraphError(_difference(own, called, rank, group))
        return found


_AT_HAND: ContextVar[Together | None] = ContextVar("together", default=None)


@contextlib.contextmanager
def planning_together(around: Iterable[str], *, is_first: bool) -> Iterator[Together]:
    """What is planned meanwhile is planned by all ranks at the same time; see ``Together``."""
    together = Together(around, is_first=is_first)
    token = _AT_HAND.set(together)
    try:
        yield together
    except BaseException as error:
        together.tell(error)
        raise
    finally:
        _AT_HAND.reset(token)


def with_room_of_all(gm: GraphModule, options: Options) -> Options:
    """The options for a graph that is to be planned: where the ranks plan it together, by what all have."""
    together = _AT_HAND.get()
    if together is None or not together.see(gm) or options.budget.kind != "auto":
        return options
    return replace(options, budget=replace(options.budget, value=together.free(gm)))


def groups_around() -> list[str]:
    """The names of the groups of DDP and FSDP modules that run at the moment, the outermost first.

    Not of a DDP that is told that ranks leave parameters out: they may take different ways through the model.
    """
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    groups: list[str] = []
    for module in modules_entered():
        group = None
        if isinstance(module, DistributedDataParallel):
            group = None if module.find_unused_parameters else module.process_group
        elif isinstance(module, FullyShardedDataParallel):
            group = module.process_group
        elif isinstance(module, FSDPModule):
            group = group_of(module)
        if group is not None and group.size() > 1 and group.name() != "fake":
            groups.append(group.group_name)
    return list(dict.fromkeys(groups[::-1]))


def _group(name: str) -> dist.ProcessGroup:
    found: dist.ProcessGroup = resolve_process_group(name)
    return found


def _put(what: str, values: dict[str, Any]) -> dict[str, Any]:
    """Put this rank's value into each group's store; the stores, by the groups' names."""
    stores = {}
    for group, value in values.items():
        place = f"dtr_fx/{group}/{what}"
        stores[group] = dist.distributed_c10d.PrefixStore(f"{place}/{next(_TOLD[place])}", default_store())
        stores[group].set(str(dist.get_rank()), pickle.dumps(value))  # type: ignore[arg-type]
    return stores


def _exchange(what: str, values: dict[str, Any], around: Container[str]) -> dict[str, list[tuple[int, Any]]]:
    """The values of the ranks of each group, as soon as they are there; all call this in the same order.

    Of a group ``around`` the graph, those that do not come are left out.
    """
    told: dict[str, list[tuple[int, Any]]] = {}
    for group, store in _put(what, values).items():
        told[group] = []
        for rank in dist.get_process_group_ranks(_group(group)):
            if group in around:
                try:
                    store.wait([str(rank)], _PATIENCE)
                except dist.DistStoreError:
                    log.warning("rank %d plans no such graph now, so this rank does not wait for it", rank)
                    continue
            told[group].append((rank, pickle.loads(store.get(str(rank)))))
    return told


def _difference(own: list[str], called: list[str], rank: int, group: str) -> str:
    pairs = itertools.zip_longest(own, called, fillvalue="none")
    at, (mine, theirs) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
    return (
        f"ranks of the process group {group!r} call other collectives: number {at + 1} is {mine} here and "
        f"{theirs} on rank {rank}; each would wait for the other, so let all ranks run the same model"
    )

"""What the ranks of a process group tell each other when they plan a graph in which they work together.

When each has planned such a graph for the first time it puts into the group's store which collectives its
graphs call, in their order, and its error if no plan fits.  Whoever reads of another order, or of an error,
has an error, too, and no rank waits in a collective for one that never comes.  Under ``"auto"`` all have the
memory of the one that has the least.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
from collections import defaultdict
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch.distributed as dist
from torch.fx import GraphModule

from dtr_fx.errors import DTRError, GraphError
from dtr_fx.passes.effects import collectives
from dtr_fx.passes.tensors import graph_device

log = logging.getLogger(__name__)

_TOLD: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class Together:
    """A rank's graph while it is planned: its collectives, in their order, by the name of their group."""

    def __init__(self) -> None:
        self._called: dict[str, list[str]] = {}
        self._free: int | None = None

    def see(self, gm: GraphModule) -> None:
        """Know a graph, before or after it was planned."""
        called: defaultdict[str, list[str]] = defaultdict(list)
        for group, operator in collectives(gm):
            if dist.get_backend(_group(group)) != "fake":
                called[group].append(operator)
        self._called = dict(called)

    def free(self, gm: GraphModule) -> int:
        """The bytes that the rank has free that has the fewest; 0 where the device does not tell."""
        if self._free is None:
            from dtr_fx.costs.measure import free_memory

            own = free_memory(graph_device(gm)) or 0
            told = _exchange("free", dict.fromkeys(self._called, own))
            self._free = min((each for group in told.values() for each in group), default=own)
        return self._free

    def tell(self, error: BaseException) -> None:
        """Let the others know of an error, and wait for none of them."""
        known = error if isinstance(error, DTRError) else GraphError(f"{type(error).__name__}: {error}")
        _put("plan", {group: (called, known) for group, called in self._called.items()})

    def agree(self, error: DTRError | None) -> DTRError | None:
        """This rank's error, or else that of another, or of a difference between them."""
        found = error
        own_part = {group: (called, error) for group, called in self._called.items()}
        for group, told in _exchange("plan", own_part).items():
            ranks = dist.get_process_group_ranks(_group(group))
            own = self._called[group]
            for rank, (called, theirs) in zip(ranks, told):
                if found is None and theirs is not None:
                    log.warning("rank %d has no plan for a graph, so this rank does not run it either", rank)
                    found = theirs
                if found is None and called != own:
                    found = GraphError(_difference(own, called, rank, group))
        return found


_AT_HAND: ContextVar[Together | None] = ContextVar("together", default=None)


@contextlib.contextmanager
def planning_together() -> Iterator[Together]:
    """What is planned meanwhile is planned by all ranks at the same time."""
    together = Together()
    token = _AT_HAND.set(together)
    try:
        yield together
    except BaseException as error:
        together.tell(error)
        raise
    finally:
        _AT_HAND.reset(token)


def at_hand() -> Together | None:
    """What this rank plans together with others."""
    return _AT_HAND.get()


def _group(name: str) -> dist.ProcessGroup:
    from dtr_fx.torch_private import resolve_process_group  # which not every build of torch has

    found: dist.ProcessGroup = resolve_process_group(name)
    return found


def _put(what: str, values: dict[str, Any]) -> dict[str, Any]:
    """Put this rank's value into each group's store; the stores, by the groups' names."""
    from dtr_fx.torch_private import default_store

    stores = {}
    for group, value in values.items():
        place = f"dtr_fx/{group}/{what}"
        stores[group] = dist.distributed_c10d.PrefixStore(f"{place}/{next(_TOLD[place])}", default_store())
        stores[group].set(str(dist.get_rank()), pickle.dumps(value))  # type: ignore[arg-type]
    return stores


def _exchange(what: str, values: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of all ranks of each group, as soon as they are there; all call this in the same order."""
    told = {}
    for group, store in _put(what, values).items():
        ranks = dist.get_process_group_ranks(_group(group))
        told[group] = [pickle.loads(store.get(str(rank))) for rank in ranks]
    return told


def _difference(own: list[str], called: list[str], rank: int, group: str) -> str:
    pairs = itertools.zip_longest(own, called, fillvalue="none")
    at, (mine, theirs) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
    return (
        f"ranks of the process group {group!r} call other collectives: number {at + 1} is {mine} here and "
        f"{theirs} on rank {rank}; each would wait for the other, so let all ranks run the same model"
    )

"""What came of the hints in a plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from dtr_fx.passes.hints import Hint, hint_of
from dtr_fx.passes.storages import GraphProgram
from dtr_fx.report import Event, HintStats, StorageStats
from dtr_fx.runtime.steps import COMPUTE, DROP, RECOMPUTE


def hints_of(
    program: GraphProgram, given: Sequence[Hint], events: Sequence[Event], storages: Sequence[StorageStats]
) -> tuple[HintStats, ...]:
    """What came of each hint that was given or stands in the code; none without a backward pass."""
    if program.boundary is None:
        return ()
    hinted = {call.node.name: hint for call in program.calls if (hint := hint_of(call.node)) is not None}
    runs: defaultdict[Hint, list[Event]] = defaultdict(list, {hint: [] for hint in given})
    read: set[int] = set()  # by the backward pass as it was
    held: set[int] = set()
    touched: set[int] = set()
    for event in events:
        hint = hinted.get(event.origin)
        if hint is not None and event.kind in (COMPUTE, RECOMPUTE):
            runs[hint].append(event)
        if event.phase == "backward":
            read.update(event.uses if hint is None else ())
            held.update(set(event.uses) - touched)
            touched.update(event.uses, event.storages)

    def stats(hint: Hint) -> HintStats:
        first = [event for event in runs[hint] if event.kind == COMPUTE and event.phase != "backward"]
        made = {at for event in runs[hint] for at in event.storages if storages[at].kind == "activation"}
        nbytes, kept = (sum(storages[at].nbytes for at in made & some) for some in (read, held))
        again = sum(event.cost for event in runs[hint]) - sum(event.cost for event in first)
        most = _most_at_once(events, {at: storages[at].nbytes for at in made})
        return HintStats(*hint, len(first), nbytes, kept, again, most)

    return tuple(map(stats, runs))


def _most_at_once(events: Sequence[Event], sizes: Mapping[int, int]) -> int:
    """The most bytes of some storages at once: each is there from a run that makes it to its last reader."""
    last_use: dict[int, int] = {}
    change: Counter[int] = Counter()
    for place, event in reversed([*enumerate(events)]):
        if event.kind != DROP:
            for at in event.uses:
                last_use.setdefault(at, place)
        if event.kind in (COMPUTE, RECOMPUTE):
            for at in sizes.keys() & set(event.storages):
                change[place] += sizes[at]
                change[last_use.pop(at, place) + 1] -= sizes[at]
    return max(accumulate(change[place] for place in range(len(events))), default=0)

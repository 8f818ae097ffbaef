"""The life of one value as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dtr_fx.inspect.life import Gap, Life, Moment
from dtr_fx.inspect.text import BOLD, DIM, GREEN, RED, Ink, clip
from dtr_fx.report import Choice
from dtr_fx.units import format_bytes, format_count, format_seconds

_COLORS = {"dropped": RED, "recomputed": GREEN, "weighed": DIM}
_NO_SCORES = (
    "A search found this plan: it weighs whole plans, not single values. For scores: --planner online"
)


def render_life(life: Life, *, width: int = 100, color: bool = False) -> str:
    """What happened to a value, for people to read."""
    ink = Ink(color)
    lines = [*_head(life, ink), ""]
    lines += [ink(code, clip(text, width)) for code, text in _lines(life)]
    if life.decided_by == "search" and life.gaps:
        lines += ["", ink(DIM, _NO_SCORES)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(life: Life, ink: Ink) -> Iterator[str]:
    storage = life.storage
    yield ink(
        BOLD,
        f"{storage.name}: {storage.kind} of {format_bytes(storage.nbytes)}, "
        f"{format_count(storage.drops, 'drop')}, {format_count(storage.recomputes, 'recompute')}"
        + (f" at {format_seconds(storage.recompute_cost)}" if storage.recomputes else ""),
    )
    made = "  ".join(part for part in (life.operator, life.module, life.source) if part)
    if made:
        yield ink(DIM, made)


def _lines(life: Life) -> Iterator[tuple[str, str]]:
    gaps = {gap.dropped_at: gap for gap in life.gaps}
    for moment in _without_middle_reads(life.moments):
        at = f"{moment.at:>6}" if moment.at >= 0 else f"{'':6}"
        yield _COLORS.get(moment.kind, ""), f"{at}  {moment.phase:8}  {moment.kind:10}  {_told(moment)}"
        if moment.kind == "dropped" and moment.at in gaps:
            yield "", f"{'':30}{_counterfactual(gaps[moment.at], life.budget)}"


def _without_middle_reads(moments: Sequence[Moment]) -> Iterator[Moment]:
    """Of reads in a row the first and the last."""
    for number, moment in enumerate(moments):
        around = [*moments[max(number - 1, 0) : number], *moments[number + 1 : number + 2]]
        if moment.kind != "read" or len(around) < 2 or any(other.kind != "read" for other in around):
            yield moment


def _told(moment: Moment) -> str:
    live = f"{format_bytes(moment.live)} live"
    if moment.choice is not None:
        return _weighed(moment.operator, moment.choice)
    if moment.kind == "dropped":
        return f"{moment.reason}{'' if moment.score is None else f', score {moment.score:.3g}'}; {live}"
    if moment.kind == "given":
        return "before the step"
    words = {
        "read": f"by {moment.operator}",
        "freed": f"after {moment.operator}",
        "recomputed": moment.reason,
    }
    return f"{words.get(moment.kind, moment.operator)}; {live}"


def _weighed(operator: str, choice: Choice) -> str:
    """What a heuristic made of it when an operator needed room."""
    if choice.score is None:
        return f"for {operator}: in use; {choice.chosen} went"
    place = f"for {operator}: score {choice.score:.3g}, {choice.rank} of {choice.candidates}"
    return f"{place}: it went" if choice.rank == 1 else f"{place}; {choice.chosen} went{_scored(choice)}"


def _scored(choice: Choice) -> str:
    return "" if choice.chosen_score is None else f", {choice.chosen_score:.3g}"


def _counterfactual(gap: Gap, budget: int) -> str:
    gone = f"gone for {format_count(gap.operators, 'operator')}, {format_seconds(gap.seconds)}; "
    over = gap.peak - budget
    if over > 0:
        return f"{gone}kept: {format_bytes(over)} over budget at {gap.operator}"
    return f"{gone}kept: {format_bytes(gap.peak)} live at most"

"""Eviction heuristics (section 4.1 and Appendix D): the storage with the lowest score is evicted.

Every heuristic is a function ``h'(s, m, c)`` of staleness (seconds), size (bytes) and compute cost
(seconds), applied to whole arrays at once.  They differ in that function and in what ``c`` counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dtr_fx.errors import OptionError, ask

Array: TypeAlias = npt.NDArray[np.float64]
Score: TypeAlias = Callable[[Array, Array, Array], Array]
Neighborhood: TypeAlias = Literal["exact", "eq", "ancestors", "needed", "local"]
Time: TypeAlias = Literal["staleness", "next_use"]
Frees: TypeAlias = Literal["storage", "gap", "window"]


@dataclass(frozen=True)
class Heuristic:
    """How a victim is scored.

    ``make_score`` is called once per run, and returns ``score(s, m, c)`` over equally long float64 arrays.
    ``neighborhood`` is what ``c`` counts beside the storage's own cost: ``"exact"`` the evicted neighbourhood
    e*, ``"eq"`` its union-find approximation, ``"ancestors"`` the evicted ancestors, ``"needed"`` these and
    those evicted descendants that the program will still use, at most the ``horizon`` nearest of them,
    ``"local"`` nothing.  ``time`` is what ``s`` is: the time since the last access or, where it is known,
    until the next use.  ``frees`` is what an eviction is to leave: ``"storage"`` its bytes; ``"gap"`` a large
    gap, ``m`` being the bytes of the storage and of the free blocks beside it; ``"window"`` a gap for what is
    allocated, by evicting storages side by side, those with the lowest sum of scores.
    """

    name: str
    make_score: Callable[[], Score]
    neighborhood: Neighborhood = "eq"
    time: Time = "staleness"
    horizon: int | None = None
    frees: Frees = "storage"


def parameterized(
    *, staleness: bool = True, size: bool = True, cost: Literal["exact", "eq", "local", "no"] = "eq"
) -> Heuristic:
    """The family h'(s, m, c) = c / (m · s) of Appendix D, each of its three factors on or off.

    With all three off nothing is left to tell storages apart, and the choice is random, as in Figure 10.
    """

    def score(s: Array, m: Array, c: Array) -> Array:
        numerator = np.ones_like(c) if cost == "no" else c
        return numerator / ((m if size else 1) * (s if staleness else 1))

    name = f"h'({'s' if staleness else '-'}, {'m' if size else '-'}, {cost})"
    if cost == "no" and not staleness and not size:
        return replace(random(), name=name)
    return _fixed(name, score, "local" if cost == "no" else cost)


def random(seed: int = 0) -> Heuristic:
    """h_rand: a fresh uniform score for every storage at every choice; the same seed, the same run."""

    def make_score() -> Score:
        uniform = np.random.default_rng(seed)
        return lambda s, m, c: uniform.random(len(c))

    return Heuristic("rand", make_score, "local")


def _fixed(
    name: str, score: Score, neighborhood: Neighborhood, time: Time = "staleness", horizon: int | None = None
) -> Heuristic:
    return Heuristic(name, lambda: score, neighborhood, time, horizon)


# Beyond this many a long chain costs more to count than the count is worth.
_HORIZON = 100

HEURISTICS: dict[str, Heuristic] = {
    heuristic.name: heuristic
    for heuristic in (
        _fixed("dtr", lambda s, m, c: c / (m * s), "exact"),
        _fixed("dtr-eq", lambda s, m, c: c / (m * s), "eq"),
        _fixed("dtr-local", lambda s, m, c: c / (m * s), "local"),
        _fixed("lru", lambda s, m, c: 1.0 / s, "local"),
        _fixed("size", lambda s, m, c: 1.0 / m, "local"),
        _fixed("msps", lambda s, m, c: c / m, "ancestors"),
        random(),
        # See ``addresses``.  Coop weighs no sizes: every window is large enough.
        replace(_fixed("coop", lambda s, m, c: c / s, "eq"), frees="window"),
        replace(_fixed("mge", lambda s, m, c: c / (m * s), "eq"), frees="gap"),
        _fixed("next-use", lambda s, m, c: c / (m * s), "needed", "next_use", _HORIZON),
        _fixed("next-use-root", lambda s, m, c: c / (m * np.sqrt(s)), "needed", "next_use", _HORIZON),
    )
}


def resolve(heuristic: str | Heuristic | Score) -> Heuristic:
    """A heuristic by name, as it is, or from a user's ``score(s, m, c)`` over arrays.

    Raises ValueError for an unknown name, TypeError for what is none of the three.
    """
    if isinstance(heuristic, Heuristic):
        is_ours = HEURISTICS.get(heuristic.name) is heuristic or isinstance(heuristic.make_score, _Checked)
        return heuristic if is_ours else replace(heuristic, make_score=_Checked(heuristic))
    if isinstance(heuristic, str):
        if heuristic not in HEURISTICS:
            raise ValueError(f"unknown heuristic {heuristic!r}; choose one of {', '.join(HEURISTICS)}")
        return HEURISTICS[heuristic]
    if not callable(heuristic):
        raise TypeError(f"a heuristic is a name, a Heuristic or a function score(s, m, c), not {heuristic!r}")
    return resolve(_fixed(getattr(heuristic, "__name__", "custom"), heuristic, "eq"))


@dataclass(frozen=True)
class _Checked:
    """``make_score`` of a user's heuristic: OptionError for scores that are no numbers."""

    heuristic: Heuristic

    def __call__(self) -> Score:
        option = f"heuristic {self.heuristic.name!r}"
        score = ask(option, self.heuristic.make_score)

        def checked(s: Array, m: Array, c: Array) -> Array:
            told = ask(option, score, s, m, c)
            try:
                scores = np.asarray(told, np.float64)
            except (TypeError, ValueError):
                scores = np.empty(0)
            if scores.shape != s.shape or np.isnan(scores).any():
                raise OptionError(f"{option} scores {len(s)} storages {told!r}: return a number for each")
            return scores

        return checked

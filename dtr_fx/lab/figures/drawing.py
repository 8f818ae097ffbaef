"""A figure of the paper by its number: the picture, and the numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dtr_fx.lab.figures.overheads import PlannerComparison, plot_overheads
from dtr_fx.lab.figures.residency import LinearTrace, plot_residency
from dtr_fx.lab.figures.slowdowns import plot_accesses, plot_slowdowns
from dtr_fx.lab.figures.study import SEEDS, Study
from dtr_fx.lab.sweep import as_csv, as_rows
from dtr_fx.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ABLATION = "Ablation of h'(s, m, c) = c / (m · s)"
_STUDIED = {
    2: ("Slowdown under seven heuristics", f"; $h_\\mathrm{{rand}}$: mean and range of {SEEDS} seeds"),
    7: (f"{_ABLATION}: cost c of the evicted neighbourhood e*", ""),
    8: (f"{_ABLATION}: cost c of the approximate neighbourhood ẽ*", ""),
    9: (f"{_ABLATION}: cost c of the storage alone", ""),
    10: (f"{_ABLATION}: without the cost c", f"; without all three: mean and range of {SEEDS} seeds"),
    11: ("Slowdown under $h_\\mathrm{DTR}$, by what the last release of a storage does", ""),
    12: ("Storages accessed to evaluate the heuristic and to keep its metadata", ""),
}

# Every figure that is drawn here; the paper's others show the algorithm, the prototype and proofs.
FIGURES = (2, 3, 5, 7, 8, 9, 10, 11, 12)
REPLAYED = tuple(_STUDIED)


@dataclass(frozen=True)
class Drawing:
    """A figure: the ``picture``, and a row for each point in it."""

    picture: Figure
    rows: Sequence[dict[str, Any]]

    def csv(self) -> str:
        """A line of column names, and one for each row."""
        return as_csv(list(self.rows[0]), self.rows)


def draw_study(study: Study, number: int) -> Drawing:
    """Figure 2, 7, 8, 9, 10, 11 or 12, from a study that has run."""
    replays = study.replays(number)
    what, note = _STUDIED[number]
    title = f"Figure {number}. {what}\nReplays of {format_count(len(study.programs), 'operator log')}{note}"
    if number == 12:
        picture = plot_accesses(replays, title)
    else:
        picture = plot_slowdowns(replays, title, study.programs)
    rows = [{"ratio": replay.budget / replay.whole, **row} for replay, row in zip(replays, as_rows(replays))]
    return Drawing(picture, rows)


def draw_comparison(comparison: PlannerComparison) -> Drawing:
    """Figure 3, from a comparison that has run."""
    title = (
        "Figure 3. Overhead of DTR and of static planners\n"
        "Operator graphs of training steps; constants aside; hollow: not proved optimal in time"
    )
    picture = plot_overheads(comparison.graphs, comparison.results, title)
    return Drawing(picture, [asdict(result) for result in comparison.results])


def draw_linear(trace: LinearTrace) -> Drawing:
    """Figure 5."""
    title = (
        f"Figure 5. Tensors in memory over time: linear network, N = {trace.n}, B = {trace.budget}\n"
        f"Evicted by cost of e* over size; {trace.steps} operators executed for the program's {2 * trace.n}"
    )
    picture = plot_residency(trace, title)
    return Drawing(picture, [asdict(interval) for interval in trace.intervals])

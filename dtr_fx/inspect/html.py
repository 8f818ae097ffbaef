"""Reports as one HTML page: the verdict, memory over time by kind, the folded diff, the table of storages.

The page is drawn by the scripts in ``assets``, from the reports that lie in it as columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape

from dtr_fx.inspect.columns import to_columns
from dtr_fx.inspect.diff import circumstances
from dtr_fx.inspect.page import asset, document
from dtr_fx.report import KINDS, Report
from dtr_fx.units import format_bytes, format_percent

_SCRIPTS = ("data.js", "list.js", "diff.js", "chart.js", "storages.js", "report.js")
_STORAGE_HEADS = {
    "name": "storage",
    "kind": "kind",
    "nbytes": "bytes",
    "drops": "dropped",
    "recomputes": "recomputed",
    "cost": "recompute cost",
}


def render(reports: Sequence[Report]) -> str:
    """The page, complete in itself.

    Parameters
    ----------
    reports:
        One for each graph that was traced, in order.

    Raises
    ------
    ValueError
        There are no reports.
    """
    if not reports:
        raise ValueError("no reports, so there is nothing to show")
    body = asset("report.html").substitute(
        verdict=escape(reports[0].summary()),
        circumstances=escape(circumstances(reports[0])),
        traces="\n".join(_traces(reports)) if len(reports) > 1 else "",
        legend="\n".join(map(_legend_entry, KINDS)),
        heads="".join(_head(*head) for head in _STORAGE_HEADS.items()),
        data=_as_data(reports),
    )
    return document("dtr_fx report", body, styles=("report.css",), scripts=_SCRIPTS)


def _traces(reports: Sequence[Report]) -> Iterator[str]:
    """A row for each graph, with a button that shows it below."""
    yield '<section class="wide"><table id="traces">'
    yield "<tr>" + "".join(f"<th>{name}</th>" for name in _TRACE_HEADS) + "</tr>"
    for number, report in enumerate(reports, 1):
        cells = (
            report.trigger,
            f"{format_bytes(report.baseline_peak)} → {format_bytes(report.planned_peak)}",
            report.budget_text,
            str(report.drops),
            str(report.recomputes),
            format_percent(report.overhead),
        )
        texts = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f'<tr><td><button type="button">graph {number}</button></td>{texts}</tr>'
    yield "</table></section>"


_TRACE_HEADS = ("", "why", "peak", "budget", "drops", "recomputes", "overhead")


def _legend_entry(kind: str) -> str:
    return f'<li class="{kind}"><i></i>{kind} <output></output></li>'


def _head(key: str, title: str) -> str:
    return f'<th data-key="{key}" scope="col"><button type="button">{title}</button></th>'


def _as_data(reports: Sequence[Report]) -> str:
    """JSON in which nothing ends the script that it lies in."""
    return json.dumps(to_columns(reports), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")

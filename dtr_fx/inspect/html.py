"""Reports as one HTML page: the verdict, memory over time by kind, the folded diff, the table of storages.

The page is drawn by the scripts in ``assets``, from the reports that lie in it compressed.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from importlib import resources
from string import Template
from typing import Any

from dtr_fx.inspect.diff import circumstances
from dtr_fx.inspect.packed import Packed
from dtr_fx.inspect.timeline import peak_lines
from dtr_fx.report import KINDS, Report
from dtr_fx.units import format_bytes, format_percent

# The policy holds the browser to it that nothing is loaded.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
<script>
"use strict";
{script}</script>
{rest}
</body>
</html>
"""
_SCRIPTS = (
    *("units.js", "plans.js", "series.js", "zoom.js", "layers.js", "gestures.js", "chart.js", "list.js"),
    *("diff.js", "tree.js", "storages.js", "addresses.js", "search.js", "views.js", "curve.js", "report.js"),
)
_STYLES = ("base.css", "report.css", "views.css", "curve.css")
_TRACE_HEADS = ("", "why", "peak", "budget", "drops", "recomputes", "overhead")


def row(cell: str, texts: Iterable[str]) -> str:
    """A row of a table, of cells ``th`` or ``td``."""
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"


def html_table(rows: Sequence[Mapping[str, object]]) -> str:
    """A row for each mapping, whose keys are the heads of the columns."""
    body = "\n".join(row("td", map(str, each.values())) for each in rows)
    return f'<div class="wide"><table>{row("th", rows[0])}\n{body}</table></div>'


def asset(name: str) -> str:
    return (resources.files("dtr_fx.inspect") / "assets" / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Choice:
    """Plans of one graph to choose among: ``html`` is shown above them, ``data`` is for ``assets/curve.js``.

    ``first`` is the number of the plan that is shown at first.
    """

    html: str
    data: Mapping[str, Any]
    first: int


def render(
    reports: Sequence[Report], *, command: str = "", choice: Choice | None = None, above: str = ""
) -> str:
    """The page of one report or more: of graphs, or with a ``choice`` of plans for one graph.

    ``above`` is HTML that is shown before the plans.  ``command`` is how the page was asked for, and empty if
    not on a command line.  ``SOURCE_DATE_EPOCH`` sets its date.
    """
    if not reports:
        raise ValueError("no reports, so there is nothing to show")
    first = 0 if choice is None else choice.first
    packed = Packed(reports)
    shared = {
        **packed.shared,
        "plans": list(map(_head, reports)),
        "first": first,
        "curve": None if choice is None else choice.data,
    }
    body = Template(asset("report.html")).substitute(
        about="".join(_about(reports[first], command)),
        verdict=escape(reports[first].summary()),
        circumstances=escape(circumstances(reports[first])),
        traces="\n".join(_traces(reports)) if choice is None and len(reports) > 1 else "",
        choice=above if choice is None else choice.html,
        legend="\n".join(f'<li class="{kind}"><i></i>{kind} <output></output></li>' for kind in KINDS),
        shared=_data("shared", shared),
        plan=_data(f"plan-{first}", packed.plans[first]),
    )
    # Behind the scripts, which show the first plan while the others come in.
    rest = (_data(f"plan-{number}", plan) for number, plan in enumerate(packed.plans) if number != first)
    model = reports[first].model
    title = f"{model}: dtr_fx report" if model else "dtr_fx report"
    return _PAGE.format(
        title=escape(title),
        style="".join(map(asset, _STYLES)),
        body=body,
        script="".join(map(asset, _SCRIPTS)),
        rest="\n".join(rest),
    )


def _about(report: Report, command: str) -> Iterator[str]:
    """The title block, without what is not known."""
    made = datetime.fromtimestamp(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())), timezone.utc)
    facts = {
        "model": report.model,
        "command": command,
        "options": "" if command else f"budget={report.asked} {report.options}".strip(),
        "torch": report.torch,
        "device": report.device,
        "date": f"{made:%Y-%m-%d}",
    }
    for name, text in facts.items():
        if text:
            yield f'<div class="{name}"><dt>{name}</dt><dd>{escape(text)}</dd></div>\n'


def _data(name: str, data: object) -> str:
    """Data in letters that end no script."""
    text = json.dumps(data, separators=(",", ":"))
    packed = b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>'


def _traces(reports: Sequence[Report]) -> Iterator[str]:
    """A row for each graph, with a button that shows it below."""
    yield f'<section class="wide"><table id="traces">{row("th", _TRACE_HEADS)}'
    for number, report in enumerate(reports, 1):
        peaks = f"{format_bytes(report.baseline_peak)} → {format_bytes(report.planned_peak)}"
        changes = f"{report.drops}", f"{report.recomputes}", format_percent(report.overhead)
        cells = (report.trigger, peaks, report.budget_text, *changes)
        texts = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f'<tr><td><button type="button">graph {number}</button></td>{texts}</tr>'
    yield "</table></section>"


def _head(report: Report) -> dict[str, Any]:
    """Of a plan what is shown before its columns are read."""
    before, after = peak_lines(report)
    return {
        "texts": {
            "verdict": report.summary(),
            "circumstances": circumstances(report),
            "peak-before": before,
            "peak-after": after,
        },
        "budget": report.budget,
        "budgetText": format_bytes(report.budget),
    }

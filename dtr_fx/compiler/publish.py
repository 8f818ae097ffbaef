"""Where a plan is reported: the log, ``TORCH_TRACE``, report files, and the caller's own function."""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from dtr_fx.errors import ask
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import trace_structured

log = logging.getLogger(__name__)

# All plans of this process, by the file that they are written to.
_published: defaultdict[Path, list[Report]] = defaultdict(list)


def publish(report: Report, options: Options) -> None:
    """Report a plan that is made; a file that cannot be written is a warning, not the end of a training."""
    for tensor in report.relied:
        log.warning("%s", tensor)
    _trace("dtr_plan", "json", report.to_json)
    _trace("dtr_diff", "string", lambda: _diff(report))
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", _diff(report))
    files = [] if options.report is None else [options.report]
    if folder := os.environ.get("DTR_REPORT"):
        files += [Path(folder, f"dtr-{os.getpid()}{suffix}") for suffix in (".html", ".json")]
    for path in files:
        _published[path].append(report)
        _write(path, _published[path])
    if options.on_report is not None:
        ask("on_report", options.on_report, report)


def _trace(name: str, encoding: str, text: Callable[[], str]) -> None:
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": encoding}, payload_fn=text)


def _diff(report: Report) -> str:
    from dtr_fx.inspect.diff import render_diff

    return render_diff(report)


def _write(path: Path, reports: list[Report]) -> None:
    if path.suffix == ".html":
        from dtr_fx.inspect.html import render

        text = render(reports)
    else:
        text = json.dumps([report.to_data() for report in reports]) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        log.info("wrote the report %s", path)
    except OSError as error:
        log.warning("cannot write the report %s: %s", path, error.strerror)

"""Reports in a notebook: as Jupyter formats them, and in one that it runs, as a browser shows it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from test_diff import compute, drop, report

from dtr_fx.compiler.explain import Reports
from dtr_fx.inspect.views import Report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDED = "pip install '.[test]'"

CELLS = (
    """\
import torch, dtr_fx
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(32, 32), torch.nn.GELU())]
model, batch = torch.nn.Sequential(*layers), torch.randn(256, 32)
reports = dtr_fx.explain(model, batch, "80%", plan_seconds=0.05)
reports""",
    "reports[0]",
    "print(reports)",
    """\
compiled = torch.compile(model, backend="dtr", options={"budget": "80%", "on_report": display})
compiled(batch).sum().backward()""",
    'dtr_fx.explain(model, batch, "1%")',
)


@pytest.fixture(scope="module")
def notebook() -> Any:
    """The notebook with its outputs; a cell that fails holds its error."""
    v4 = pytest.importorskip("nbformat.v4", reason=NEEDED)
    execute = pytest.importorskip("nbconvert.preprocessors", reason=NEEDED).ExecutePreprocessor
    made = v4.new_notebook(cells=list(map(v4.new_code_cell, CELLS)))
    return execute(timeout=120, kernel_name="python3", allow_errors=True).preprocess(made, {})[0]


def outputs(notebook: Any, cell: int) -> list[Any]:
    return notebook.cells[cell].outputs


def test_jupyter_formats_a_report_as_the_page_and_in_short_as_its_verdict() -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason=NEEDED)
    made = report(compute("gelu"), drop("gelu"))
    own = Report(**vars(made))
    for shown in (own, Reports([own, own])):
        texts, _ = formatters.DisplayFormatter().format(shown)
        assert "&lt;!DOCTYPE html&gt;" in texts["text/html"]
        assert f"<Report: {made.summary()}>" in texts["text/plain"]
        assert len(texts["text/plain"]) < 300  # the notebook's file holds it, too


@pytest.mark.slow
def test_a_report_at_the_end_of_a_cell_is_the_page(notebook: Any) -> None:
    for cell in (0, 1):
        (shown,) = outputs(notebook, cell)
        assert shown.output_type == "execute_result", shown
        assert "&lt;!DOCTYPE html&gt;" in shown.data["text/html"]
        assert "fits: peak " in shown.data["text/html"]
        assert "fits: peak " in shown.data["text/plain"]
        assert len(shown.data["text/plain"]) < 300  # the notebook's file holds it, too


@pytest.mark.slow
def test_a_report_is_printed_as_its_verdict(notebook: Any) -> None:
    (printed,) = outputs(notebook, 2)
    assert printed.text.startswith("fits: peak ")


@pytest.mark.slow
def test_on_report_may_display_it(notebook: Any) -> None:
    (shown,) = outputs(notebook, 3)
    assert shown.output_type == "display_data", shown
    assert "fits: peak " in shown.data["text/html"]


@pytest.mark.slow
def test_an_error_says_what_to_do(notebook: Any) -> None:
    error = outputs(notebook, 4)[-1]
    assert error.output_type == "error"
    assert error.ename == "InfeasibleBudgetError"
    assert "smallest budget that works" in error.evalue


@pytest.mark.slow
def test_the_browser_shows_what_jupyter_wrote(notebook: Any) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason=NEEDED)
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    page, _ = pytest.importorskip("nbconvert").HTMLExporter().from_notebook_node(notebook)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        check(browser.new_page(viewport={"width": 1000, "height": 1200}), page)
        browser.close()


def check(shown: Any, page: str) -> None:
    problems: list[str] = []
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.set_content(page, wait_until="domcontentloaded")
    frames = shown.frame_locator("iframe[title='dtr_fx report']")
    frames.first.locator("#diff .drop").first.wait_for(state="visible")
    frame = shown.locator("iframe[title='dtr_fx report']")
    assert frame.count() == 3
    box = frame.first.bounding_box()
    assert box is not None
    assert box["width"] > 600
    assert box["height"] > 600
    assert frames.first.locator("h1").inner_text().startswith("fits: peak")
    assert problems == []

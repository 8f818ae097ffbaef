"""One thread for torch, here and in the commands that tests start: tests run side by side, one per core.

Under ``pytest.mark.little_effort`` a search takes a tenth of its effort: what holds of a plan, however
good, holds of one that is found in less.

Times of operators are kept in a folder of the run, not in that of the user. Random cases are the same in
every run, and may take their time on a busy machine; ``--hypothesis-profile=new`` looks for others.
"""

import gc
import importlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dtr_fx.runtime import Program
from dtr_fx.search import default_effort

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DTR_DEBUG"] = "1"  # an order that the runtime refuses is an error
os.environ.pop("COLUMNS", None)  # 80 in a worker of xdist, which cuts what is printed

settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("new"), derandomize=True, database=None)
settings.load_profile("same")


def pytest_configure() -> None:
    importlib.import_module("torch._dynamo")
    # pytest listens to loggers that do not propagate; torch would print each graph for it.
    logging.getLogger("torch.__trace").propagate = True
    gc.set_threshold(20_000, 20, 20)  # a compilation makes millions of objects that stay
    gc.freeze()  # what is imported need not be looked through at each measurement of memory


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[test]'")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; and the page loads nothing that would need one.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_html(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page of reports as a file; what the console or the network then hears of fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_html(html: str, **options: Any) -> Any:
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(10_000)
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.extend(_network(request.url)))
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.locator("#status:not(:empty)").wait_for()  # the plan is shown
        return page

    yield open_html
    for context in contexts:
        context.close()
    assert complaints == []


def _network(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:")) else [f"loads {url}"]


@pytest.fixture(scope="session", autouse=True)
def _nothing_from_earlier_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTR_CACHE", "off")
        yield


@pytest.hookimpl(tryfirst=True)  # before the fixtures of a module, which plan too
def pytest_runtest_setup(item: pytest.Item) -> None:
    little = item.get_closest_marker("little_effort") is not None
    search = importlib.import_module("dtr_fx.search.search")
    search.default_effort = _little_effort if little else default_effort  # type: ignore[attr-defined]


def _little_effort(program: Program) -> float:
    return default_effort(program) / 10

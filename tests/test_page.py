"""The HTML page of reports, in a headless Chromium, as a person would use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from large_reports import large
from torch import nn

from dtr_fx.compiler.explain import plan_step
from dtr_fx.inspect.diff import why
from dtr_fx.inspect.html import render
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options
from dtr_fx.report import Event, StorageStats
from dtr_fx.units import format_bytes, format_percent, format_seconds

pytestmark = pytest.mark.little_effort

DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
Open = Callable[..., Any]


@pytest.fixture
def open_page(open_html: Open) -> Open:
    """Opens the page of reports."""

    def open_page(*reports: Report, viewport: dict[str, int] = DESKTOP, **options: Any) -> Any:
        return open_html(render(reports), viewport=viewport, **options)

    return open_page


@pytest.fixture(scope="module")
def step() -> Report:
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    (report,) = plan_step(nn.Sequential(*layers), (torch.randn(256, 64),), Options(budget="60%"))
    return report


def text(page: Any, selector: str) -> str:
    return page.locator(selector).inner_text()


def rows(page: Any) -> list[list[str]]:
    """The cells of all rows of the diff, from top to bottom."""
    found: dict[int, list[str]] = {}
    page.evaluate("document.getElementById('diff').scrollTop = 0")
    while True:
        shown = page.evaluate(
            """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(
                [...document.querySelectorAll('#diff [data-row]')].map((row) => [
                    Number(row.dataset.row), [...row.children].map((cell) => cell.textContent),
                ])))))"""
        )
        found.update(dict(shown))
        at_end = page.evaluate(
            """() => { const list = document.getElementById('diff'), was = list.scrollTop;
            list.scrollTop += list.clientHeight; return list.scrollTop === was; }"""
        )
        if at_end:
            assert sorted(found) == list(range(len(found)))
            return [found[number] for number in sorted(found)]


def changes(report: Report) -> list[Event]:
    return [event for event in report.events if event.kind in ("drop", "recompute")]


def first_pair(report: Report) -> tuple[Event, Event]:
    """The first drop and the recompute that undoes it."""
    drop = next(event for event in report.events if event.kind == "drop")
    later = report.events[report.events.index(drop) :]
    again = next(e for e in later if e.kind == "recompute" and drop.storages[0] in e.storages)
    return drop, again


# --- numbers ------------------------------------------------------------------------------------------------


def test_the_verdict_and_the_peaks(open_page: Open, step: Report) -> None:
    page = open_page(step)
    assert text(page, "h1") == step.summary()
    assert format_bytes(step.lower_bound) in text(page, "#circumstances")
    for which, points, peak in (
        ("before", step.before, step.baseline_peak),
        ("after", step.after, step.planned_peak),
    ):
        name = max(points, key=lambda point: point.live).name
        assert text(page, f"#peak-{which}").startswith(f"peak {format_bytes(peak)} at {name}")
        assert f"{which}: {format_bytes(peak)} at {name}" in page.locator("#chart").text_content()
    assert f"budget {format_bytes(step.budget)}" in page.locator("#chart").text_content()


def test_the_verdict_is_there_without_scripts(open_page: Open, step: Report) -> None:
    assert text(open_page(step, java_script_enabled=False), "h1") == step.summary()


def test_every_row_of_the_diff_says_what_its_event_says(open_page: Open, step: Report) -> None:
    page = open_page(step)
    page.get_by_role("button", name="Unfold all").click()
    shown = [cells for cells in rows(page) if len(cells) == 7]
    marks = {"compute": ["", ""], "drop": ["−", "drop"], "recompute": ["+", "recompute"]}
    assert shown == [
        [
            *marks[event.kind],
            event.origin,
            format_bytes(event.nbytes),
            why(event),
            event.source or event.module,
            format_bytes(event.live),
        ]
        for event in step.events
    ]


def test_scores_are_shown_as_in_the_terminal(open_page: Open, step: Report) -> None:
    scores = [2.5e-07, 1.25e-11, 0.0123, 1.0, 12.3]
    events = [replace(step.events[0], kind="drop", reason="budget", score=score) for score in scores]
    page = open_page(replace(step, events=tuple(events)))
    assert [cells[4] for cells in rows(page) if len(cells) == 7] == [f"budget ({s:.2g})" for s in scores]


def test_the_legend_tells_the_bytes_by_kind_at_any_operator(open_page: Open, step: Report) -> None:
    page = open_page(step)

    def legend() -> list[str]:
        return page.locator("#legend output").all_inner_texts()

    peak = max(step.after, key=lambda point: point.live)
    assert legend() == [format_bytes(part) for part in peak.parts]
    page.locator("#chart").focus()
    page.keyboard.press("Home")
    for number, point in enumerate(step.after[:20], 1):
        assert legend() == [format_bytes(part) for part in point.parts]
        assert text(page, "#readout").startswith(
            f"Operator {number} of {len(step.after)} after: {point.name}, {format_bytes(point.live)} live"
        )
        page.keyboard.press("ArrowRight")


def test_the_stack_can_be_that_of_before(open_page: Open, step: Report) -> None:
    page = open_page(step)
    page.get_by_label("before, with after as a line").check()
    peak = max(step.before, key=lambda point: point.live)
    assert page.locator("#legend output").all_inner_texts() == [format_bytes(part) for part in peak.parts]


@pytest.mark.parametrize(
    ("head", "key", "rises"),
    [
        ("bytes", lambda s: s.nbytes, False),
        ("dropped", lambda s: s.drops, False),
        ("recompute cost", lambda s: s.recompute_cost, False),
        ("kind", lambda s: s.kind, True),
    ],
)
def test_the_table_of_storages_sorts(
    open_page: Open, step: Report, head: str, key: Callable[[StorageStats], Any], rises: bool
) -> None:
    page = open_page(step)
    while page.locator("#more").is_visible():
        page.locator("#more").click()
    button = page.locator("#storages").get_by_role("button", name=head)
    if head != "dropped":  # the order at first
        button.click()
    # Among equals the order stays as it was.
    at_first = sorted(step.storages, key=lambda storage: (storage.drops, storage.nbytes), reverse=True)
    ordered = sorted(at_first, key=key, reverse=not rises)
    assert _table(page) == [_storage_row(storage) for storage in ordered]
    button.click()
    turned = sorted(ordered, key=key, reverse=rises)
    assert _table(page) == [_storage_row(storage) for storage in turned]
    sorted_heads = page.locator("#storages th[aria-sort]")
    assert sorted_heads.count() == 1
    assert sorted_heads.get_attribute("aria-sort") == ("descending" if rises else "ascending")


def _table(page: Any) -> list[list[str]]:
    return page.evaluate(
        """[...document.querySelectorAll('#storages tbody tr')].map(
            (row) => [...row.children].map((cell) => cell.textContent))"""
    )


def _storage_row(storage: StorageStats) -> list[str]:
    cost = format_seconds(storage.recompute_cost) if storage.recompute_cost else "0"
    drops, recomputes = str(storage.drops), str(storage.recomputes)
    return [storage.name, storage.kind, format_bytes(storage.nbytes), drops, recomputes, cost]


# --- use ----------------------------------------------------------------------------------------------------


def test_pointing_at_a_drop_lights_its_recompute(open_page: Open, step: Report) -> None:
    page = open_page(step)
    drop, again = first_pair(step)
    row = page.locator("#diff .drop").first
    row.hover()
    status = text(page, "#status")
    assert f"{format_bytes(drop.nbytes)} dropped" in status
    assert f"made again {again.reason}, {format_seconds(again.cost)}" in status
    assert page.locator("#chart line.lit.drop").count() == 1
    assert page.locator("#chart line.lit.recompute").count() == 1
    page.get_by_label("Search").fill(drop.origin)  # both come into view
    page.locator("#diff .drop", has_text=drop.origin).first.hover()
    lit = page.locator("#diff .lit")
    assert {cell.split("\n")[1] for cell in lit.all_inner_texts()} == {"drop", "recompute"}
    page.locator("h1").hover()
    assert page.locator(".lit").count() == 0


def test_pointing_at_a_drop_in_the_picture_lights_the_same(open_page: Open, step: Report) -> None:
    page = open_page(step)
    drop, _ = first_pair(step)
    box = page.locator("#chart").bounding_box()
    mark = page.evaluate(
        "document.querySelector('#chart .lane.drop').getAttribute('d').match(/[0-9.]+,[0-9.]+/)[0]"
    )
    x, y = map(float, mark.split(","))
    page.mouse.move(box["x"] + x, box["y"] + y + 2)
    assert f"{format_bytes(drop.nbytes)} dropped" in text(page, "#status")
    assert page.locator("#chart line.lit.recompute").count() >= 1
    page.mouse.click(box["x"] + x, box["y"] + y + 2)
    assert drop.origin in page.locator("#diff [aria-selected=true]").inner_text()


def test_enter_goes_from_a_drop_to_its_recompute_and_back(open_page: Open, step: Report) -> None:
    page = open_page(step)
    page.locator("#diff").focus()
    selected = page.locator("#diff [aria-selected=true]")
    while not page.locator("#diff .drop[aria-selected=true]").count():
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "recompute" in selected.inner_text()
    page.keyboard.press("Enter")
    assert "drop" in selected.inner_text()


def test_folds_open_and_close_by_pointer_and_by_keyboard(open_page: Open, step: Report) -> None:
    page = open_page(step)
    fold = page.locator("#diff .fold").first
    operators = int(fold.inner_text().split()[1])
    total = len(rows(page))
    page.evaluate("document.getElementById('diff').scrollTop = 0")
    fold.click()
    assert len(rows(page)) == total + operators
    page.evaluate("document.getElementById('diff').scrollTop = 0")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    page.locator("#diff").focus()
    assert page.locator("#diff .fold[aria-selected=true]").get_attribute("aria-expanded") == "true"
    page.keyboard.press("ArrowLeft")
    assert len(rows(page)) == total


def test_the_folds_hold_what_has_not_changed(open_page: Open, step: Report) -> None:
    shown = rows(open_page(step))
    folded = sum(int(cells[0].split()[1]) for cells in shown if cells[0].startswith("…"))
    events = [cells for cells in shown if len(cells) == 7]
    assert folded + len(events) == len(step.events)
    assert [cells[2] for cells in events if cells[1]] == [event.origin for event in changes(step)]


def test_search(open_page: Open, step: Report) -> None:
    page = open_page(step)
    page.get_by_label("Search").fill("recompute")
    assert [cells[2] for cells in rows(page)] == [e.origin for e in step.events if e.kind == "recompute"]
    assert text(page, "#found") == f"{step.recomputes} of {len(step.events)} steps"
    page.get_by_label("Search").fill("no such operator")
    assert rows(page) == []
    page.get_by_label("Search").fill("")
    assert any(cells[0].startswith("…") for cells in rows(page))


def test_pointing_at_a_storage_lights_its_life(open_page: Open, step: Report) -> None:
    page = open_page(step)
    most = max(storage.drops for storage in step.storages)
    page.locator("#storages tbody tr").first.hover()
    assert page.locator("#chart line.lit.drop").count() == most
    second = sorted(step.storages, key=lambda s: (s.drops, s.nbytes), reverse=True)[1]
    page.locator("#storages tbody tr").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#storages tr:focus td").first.inner_text() == second.name
    assert page.locator("#chart line.lit.drop").count() == second.drops


def test_one_row_for_each_trace(open_page: Open, step: Report) -> None:
    other = replace(step, budget=step.planned_peak + 1, trigger="size 0 of x: 256 → 512")
    page = open_page(step, other)
    traces = page.locator("#traces tr")
    assert traces.count() == 3
    assert other.trigger in traces.nth(2).inner_text()
    assert format_percent(other.overhead) in traces.nth(2).inner_text()
    page.get_by_role("button", name="graph 2").click()
    assert text(page, "h1") == other.summary()
    page.get_by_role("button", name="graph 1").click()
    assert text(page, "h1") == step.summary()


def test_text_from_the_program_is_text(open_page: Open, step: Report) -> None:
    hostile = "</script><img src=x onerror=alert(1)> & <b>"
    events = tuple(replace(event, source=hostile, origin=f"<i>{event.origin}") for event in step.events)
    page = open_page(replace(step, events=events, trigger=hostile), step)
    assert page.locator("img, #diff i, #diff b").count() == 0
    assert hostile in page.locator("#diff").text_content()
    assert hostile in text(page, "#traces")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all_without_scrolling_sideways(open_page: Open, step: Report, scheme: str) -> None:
    page = open_page(step, replace(step, trigger="x" * 200), viewport=PHONE, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for inner in ("#diff", "#changes"):
        fits = "(element) => element.scrollWidth <= element.clientWidth"
        assert page.locator(inner).evaluate(fits)
    lightness = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (lightness == "rgb(255, 255, 255)") == (scheme == "light")


def test_an_empty_graph_can_be_shown(open_page: Open, step: Report) -> None:
    empty = replace(step, events=(), before=(), after=(), storages=())
    assert rows(open_page(empty)) == []


# --- size ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_of_20000_nodes_is_small_opens_fast_and_scrolls_smoothly(open_page: Open) -> None:
    report = large(20_000)
    started = time.process_time()
    size = len(render([report]).encode())
    assert size < 5e6
    assert time.process_time() - started < 5
    page = open_page(report)
    opened = page.evaluate("performance.now()")
    assert opened < 5000
    page.get_by_role("button", name="Unfold all").click()
    usual = page.evaluate(
        """async () => {
            const list = document.getElementById('diff');
            const frame = () => new Promise(requestAnimationFrame);
            const times = [];
            for (let i = 0; i < 60; i++) {
                list.scrollTop = (i * 7919 * 26) % list.scrollHeight;
                const started = performance.now();
                await frame();
                await frame();
                list.getBoundingClientRect();
                times.push(performance.now() - started);
            }
            return times.sort((a, b) => a - b)[30];
        }"""
    )
    assert usual < 100  # two frames, 33 ms, where nothing else runs
    assert page.locator("#diff [data-row]").count() < 100
    page.keyboard.press("Tab")
    page.locator("#diff").focus()
    page.keyboard.press("End")
    assert report.events[-1].origin in page.locator("#diff [aria-selected=true]").inner_text()


def test_no_reports_make_no_page() -> None:
    with pytest.raises(ValueError, match="no reports"):
        render([])

"""The page's views: the chart's zoom and brush, modules, the search, paper, phone and keyboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from large_reports import large
from page_frames import LIMIT, frames
from torch import Tensor, nn

from dtr_fx.compiler.explain import plan_step
from dtr_fx.inspect.exports import segments_at_peak
from dtr_fx.inspect.html import render
from dtr_fx.inspect.modules import Module, module_tree
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options
from dtr_fx.report import KINDS, Event
from dtr_fx.units import format_bytes, format_seconds

pytestmark = pytest.mark.little_effort

DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 780}
Open = Callable[..., Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(5)), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def plan(budget: str) -> Report:
    torch.manual_seed(0)
    (report,) = plan_step(Net(), (torch.randn(256, 32),), Options(budget=budget))
    return report


@pytest.fixture(scope="module")
def report() -> Report:
    return plan("60%")


@pytest.fixture
def open_page(open_html: Open) -> Open:
    def open_page(*reports: Report, viewport: dict[str, int] = DESKTOP, **options: Any) -> Any:
        return open_html(render(reports), viewport=viewport, **options)

    return open_page


def operators(report: Report) -> list[Event]:
    return [event for event in report.events if event.kind != "drop"]


def in_view(page: Any) -> tuple[int, int]:
    """The numbers of the first and the last operator that the chart shows, from 1."""
    ends = page.locator("#brush-box [role=slider]").all()
    return tuple(int(end.get_attribute("aria-valuenow")) for end in ends)  # type: ignore[return-value]


def settle(page: Any) -> None:
    """Wait until what was asked for is drawn."""
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.evaluate(f"() => {frame}.then(() => {frame})")


def at(page: Any, share: float, height: float = 0.4) -> tuple[float, float]:
    """A point of the chart, by its share of the time and from top to bottom."""
    box = page.locator("#chart").bounding_box()
    left, right = 78, 12  # the chart's margins
    return box["x"] + left + share * (box["width"] - left - right), box["y"] + height * box["height"]


# --- the chart ----------------------------------------------------------------------------------------------


def test_the_wheel_zooms_to_what_is_under_the_pointer(open_page: Open, report: Report) -> None:
    page = open_page(report)
    count = len(operators(report))
    assert in_view(page) == (1, count)
    page.mouse.move(*at(page, 0.3))
    pointed = page.locator("#tip .tip-head").inner_text()
    for _ in range(4):
        page.mouse.wheel(0, -200)
    settle(page)
    first, last = in_view(page)
    assert 8 <= last - first + 1 < count / 2
    page.mouse.move(*at(page, 0.3, 0.5))
    assert page.locator("#tip .tip-head").inner_text() == pointed
    for _ in range(9):
        page.mouse.wheel(0, 200)
    settle(page)
    assert in_view(page) == (1, count)


def test_the_wheel_scrolls_the_page_where_there_is_nothing_to_zoom(open_page: Open, report: Report) -> None:
    page = open_page(report)
    page.mouse.move(*at(page, 0.3))
    page.mouse.wheel(0, 300)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") > 0
    assert in_view(page) == (1, len(operators(report)))


def test_a_drag_zooms_to_what_it_went_over(open_page: Open, report: Report) -> None:
    page = open_page(report)
    count = len(operators(report))
    page.mouse.move(*at(page, 0.25))
    page.mouse.down()
    page.mouse.move(*at(page, 0.5), steps=3)
    assert page.locator("#chart .selection").get_attribute("width") != "0"
    page.mouse.up()
    settle(page)
    first, last = in_view(page)
    assert first == pytest.approx(0.25 * count, abs=2)
    assert last == pytest.approx(0.5 * count, abs=2)
    assert page.locator("#diff [aria-selected=true]").count() == 0  # it was no click
    page.locator("#chart").focus()
    page.keyboard.press("Escape")
    settle(page)
    assert in_view(page) == (1, count)


def test_the_keyboard_zooms_and_moves(open_page: Open, report: Report) -> None:
    page = open_page(report)
    chart = page.locator("#chart")
    count = len(operators(report))
    chart.focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    settle(page)
    first, last = in_view(page)
    assert last - first + 1 == pytest.approx(count / 4, abs=2)
    for key, number in (("Home", 1), ("End", count)):
        page.keyboard.press(key)
        settle(page)
        assert chart.get_attribute("aria-valuenow") == str(number)
        first, last = in_view(page)
        assert first <= number <= last
    page.keyboard.press("-")
    settle(page)
    assert in_view(page)[0] < first
    page.keyboard.press("0")
    settle(page)
    assert in_view(page) == (1, count)


def test_the_brush_moves_and_widens_what_is_in_view(open_page: Open, report: Report) -> None:
    page = open_page(report)
    count = len(operators(report))
    box = page.locator("#brush").bounding_box()
    left, width = box["x"] + 78, box["width"] - 90
    middle = box["y"] + box["height"] / 2

    def drag(start: float, end: float) -> None:
        page.mouse.move(left + start * width, middle)
        page.mouse.down()
        page.mouse.move(left + end * width, middle, steps=3)
        page.mouse.up()
        settle(page)

    drag(0.2, 0.4)  # anew
    assert in_view(page) == (pytest.approx(0.2 * count, abs=2), pytest.approx(0.4 * count, abs=2))
    drag(0.3, 0.6)  # what is in the frame
    assert in_view(page) == (pytest.approx(0.5 * count, abs=2), pytest.approx(0.7 * count, abs=2))
    drag(0.7, 0.9)  # an end
    assert in_view(page) == (pytest.approx(0.5 * count, abs=2), pytest.approx(0.9 * count, abs=2))
    page.get_by_role("slider", name="First operator in view").focus()
    page.keyboard.press("Home")
    settle(page)
    assert in_view(page) == (1, pytest.approx(0.9 * count, abs=2))
    page.get_by_role("button", name="Whole step").click()
    settle(page)
    assert in_view(page) == (1, count)


def test_another_plan_keeps_the_operators_in_view(open_page: Open, report: Report) -> None:
    other = plan("80%")
    page = open_page(report, other)
    page.mouse.move(*at(page, 0.6))
    page.mouse.wheel(0, -250)
    page.mouse.wheel(0, -250)
    settle(page)
    number = {point.name: number for number, point in enumerate(report.before)}

    def ends(plan: Report) -> list[int]:
        """Where in the graph as it was the first and the last operator in view stand."""
        first, last = in_view(page)
        shown = [number[event.name] for event in operators(plan)[first - 1 : last] if event.name in number]
        return [shown[0], shown[-1]]

    before = ends(report)
    page.get_by_role("button", name="graph 2").click()
    settle(page)
    assert ends(other) == pytest.approx(before, abs=2)
    page.get_by_role("button", name="graph 1").click()
    settle(page)
    assert ends(report) == pytest.approx(before, abs=3)


def test_the_tooltip_stands_at_the_cursor(open_page: Open, report: Report) -> None:
    page = open_page(report)
    tip = page.locator("#tip")
    assert not tip.is_visible()
    count = len(operators(report))
    for share in (0.1, 0.5, 0.95):
        x, y = at(page, share)
        page.mouse.move(x, y)
        event = operators(report)[int(share * count)]
        assert event.origin in tip.inner_text()
        assert event.module in tip.inner_text()
        assert f"{format_bytes(event.live)} live" in tip.inner_text()
        box = tip.bounding_box()
        assert min(abs(box["x"] - x), abs(box["x"] + box["width"] - x)) < 30
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= DESKTOP["width"]
    page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_the_chart_stays_in_view_while_the_list_scrolls(open_page: Open, report: Report) -> None:
    page = open_page(report)
    page.locator("#changes").evaluate("(head) => head.scrollIntoView()")
    page.mouse.wheel(0, 1)
    drop = page.locator("#diff .drop").first
    drop.hover()
    chart, row = page.locator("#chart").bounding_box(), drop.bounding_box()
    assert chart["y"] >= 0
    assert chart["y"] + chart["height"] < row["y"]
    assert row["y"] + row["height"] <= DESKTOP["height"]
    assert page.locator("#chart line.lit.drop").count() == page.locator("#brush line.lit.drop").count() == 1
    assert page.locator("#chart line.lit.recompute").count() == 1
    # The line below the axis tells what the list has in view.
    seen = page.locator("#chart .seen")
    at_first = seen.get_attribute("d")
    page.locator("#diff").focus()
    page.keyboard.press("End")
    settle(page)
    assert seen.get_attribute("d") != at_first


def test_the_legend_does_not_move_the_chart(open_page: Open, report: Report) -> None:
    page = open_page(report)
    places = []
    for share in (0.01, 0.3, 0.6, 0.99):
        page.mouse.move(*at(page, share))
        places.append(page.locator("#chart").bounding_box()["y"])
    assert len(set(places)) == 1


def test_every_phase_has_its_name(open_page: Open, report: Report) -> None:
    backward = [event for event in report.events if event.phase == "backward"]
    last = backward[-len(backward) // 3 :]
    among = backward[5]
    changed = {id(event): replace(event, phase="optimizer") for event in (*last, among)}
    events = tuple(changed.get(id(event), event) for event in report.events)
    page = open_page(replace(report, events=events))
    assert page.locator("#chart .phase-name").all_text_contents() == ["forward", "backward", "optimizer"]
    assert (
        page.locator("#chart .lane.optimizer").get_attribute("d").count("M") >= 2
    )  # among the backward pass, too
    phases = page.locator("#phases tbody th").all_text_contents()
    assert phases == ["forward", "backward", "optimizer"]
    titles = [row.inner_text() for row in page.locator("#diff .phase").all()]
    assert titles[0].startswith("forward: ")
    page.locator("#modules").focus()
    assert page.locator("#modules").get_by_text("(optimizer)").count() <= 1


def test_the_table_says_what_the_picture_shows(open_page: Open, report: Report) -> None:
    page = open_page(report)
    page.locator("summary").click()
    cells = [row.split("\t") for row in page.locator("#at-peaks tbody").inner_text().splitlines()]
    before, after = (max(points, key=lambda point: point.live) for points in (report.before, report.after))
    parts = [
        [kind, format_bytes(a), format_bytes(b)]
        for kind, a, b in zip(KINDS, before.parts, after.parts)
        if a or b
    ]
    live = ["live", format_bytes(before.live), format_bytes(after.live)]
    assert cells == [["operator", before.name, after.name], *parts, live]
    phases = [row.split("\t") for row in page.locator("#phases tbody").inner_text().splitlines()]
    assert sum(int(row[2]) for row in phases) == report.drops
    assert sum(int(row[3]) for row in phases) == report.recomputes


# --- modules ------------------------------------------------------------------------------------------------


def cells_of(module: Module) -> list[str]:
    found = module.figures
    at_peak, dropped, recomputed = map(format_bytes, (found.at_peak, found.dropped, found.recomputed))
    figures = (at_peak, found.at_peak), (dropped, found.dropped), (recomputed, found.recomputed)
    return [text if value else "·" for text, value in (*figures, (format_seconds(found.extra), found.extra))]


def test_the_tree_has_the_figures_of_every_module(open_page: Open, report: Report) -> None:
    page = open_page(report)
    page.locator("#modules").focus()
    for depth, module in module_tree(report).walk():
        page.keyboard.press("ArrowDown")
        row = page.locator("#modules [aria-selected=true]")
        assert row.get_attribute("aria-level") == str(depth + 1)
        assert row.locator(".name").inner_text().strip("▸▾ \n") == (module.name or "whole graph")
        assert row.locator(".figure").all_inner_texts() == cells_of(module)
        assert format_bytes(module.figures.at_peak) in row.get_attribute("aria-label")
        page.keyboard.press("ArrowRight")
        assert row.get_attribute("aria-expanded") == ("true" if module.modules else None)


def test_boxes_are_as_wide_as_what_they_stand_for(open_page: Open, report: Report) -> None:
    page = open_page(report)
    tree = module_tree(report)
    for label, figure in (
        ("bytes at the peak", "at_peak"),
        ("extra time", "extra"),
        ("bytes dropped", "dropped"),
    ):
        page.get_by_label(label).check()
        whole = page.locator("#flame").bounding_box()["width"]
        for _, module in tree.walk():
            share = getattr(module.figures, figure) / getattr(tree.figures, figure)
            box = page.locator(f"#flame [data-path='{module.path}']")
            assert box.count() == (share >= 0.0015)
            if share > 0.02:
                assert box.bounding_box()["width"] == pytest.approx(share * whole, abs=1.5)


def test_the_map_of_addresses_is_that_of_a_card(open_page: Open, report: Report) -> None:
    """A row for each segment, its blocks as wide as they are large; a plan for the CPU has none."""
    page = open_page(replace(report, device="cuda:0"), report)
    segments = list(segments_at_peak(report))
    rows = page.locator("#addresses li")
    assert rows.count() == len(segments)
    for number, (pool, blocks) in enumerate(segments):
        assert rows.nth(number).get_attribute("aria-label").startswith(f"{pool} segment of ")
        titles = [f"{name or 'free'}: {format_bytes(nbytes)}" for name, _, nbytes in blocks]
        assert rows.nth(number).locator("i").evaluate_all("all => all.map(i => i.title)") == titles
    assert page.locator("#reserved").inner_text().startswith(f"{format_bytes(report.reserved_peak)} reserved")
    page.locator("#traces button").nth(1).click()
    page.locator("#addresses-of").wait_for(state="hidden")


def test_a_click_on_a_module_marks_its_operators(open_page: Open, report: Report) -> None:
    page = open_page(report)
    own = [event for event in report.events if event.module.startswith("blocks.2")]
    assert own
    page.locator("#flame [data-path='blocks.2']").click()
    settle(page)
    assert page.locator("#chart .lane.marked").get_attribute("d")
    marked = page.locator("#diff .marked")
    assert marked.count() > 0
    page.get_by_label("Search").fill("blocks.2")
    assert page.locator("#found").inner_text() == f"{len(own)} of {len(report.events)} steps"
    shown = page.locator("#diff [data-row]")
    assert marked.count() == shown.count() > 0
    page.get_by_role("button", name="No longer mark blocks.2").click()
    settle(page)
    assert page.locator(".marked[data-row]").count() == 0
    # From the table, by pointer and by keyboard.
    page.get_by_label("Search").fill("")
    settle(page)
    row = page.locator("#modules [role=treeitem]", has_text="head")
    row.click()
    assert page.locator("#unmark").inner_text().startswith("head")
    page.locator("#modules").focus()
    page.keyboard.press("Enter")
    assert not page.locator("#unmark").is_visible()


def test_a_marked_module_stays_marked_in_another_plan(open_page: Open, report: Report) -> None:
    page = open_page(report, plan("80%"))
    page.locator("#flame [data-path='blocks.1']").click()
    page.get_by_role("button", name="graph 2").click()
    settle(page)
    assert page.locator("#unmark").inner_text().startswith("blocks.1")
    assert page.locator("#chart .lane.marked").get_attribute("d")


def test_another_plan_keeps_search_and_order(open_page: Open, report: Report) -> None:
    other = plan("80%")
    page = open_page(report, other)
    page.get_by_label("Search").fill("blocks.1")
    page.locator("#storages").get_by_role("button", name="storage").click()
    page.get_by_role("button", name="graph 2").click()
    settle(page)
    found = [event for event in other.events if event.module.startswith("blocks.1")]
    assert page.locator("#found").inner_text() == f"{len(found)} of {len(other.events)} steps"
    assert page.locator("#storages th[aria-sort]").inner_text().startswith("storage")
    names = {other.storages[number].name for event in found for number in event.storages}
    assert set(page.locator("#storages tbody td:first-child").all_inner_texts()) == names


def test_going_to_an_operator_brings_it_into_view(open_page: Open, report: Report) -> None:
    page = open_page(report)
    page.locator("#chart").focus()
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("+")
    settle(page)
    page.get_by_label("Search").fill("recompute")
    page.locator("#diff").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")  # to its drop, and back
    page.keyboard.press("Enter")
    settle(page)
    again = [number for number, event in enumerate(operators(report), 1) if event.kind == "recompute"]
    first, last = in_view(page)
    assert first <= again[-1] <= last


# --- the search ---------------------------------------------------------------------------------------------


def test_one_search_filters_list_tree_and_storages(open_page: Open) -> None:
    report = plan("80%")  # of which much is folded
    page = open_page(report)
    line = next(event.source for event in report.events if event.source).partition(" ")[0]
    wanted: dict[str, Callable[[Event], bool]] = {
        "blocks.3.norm": lambda event: "blocks.3.norm" in event.module,
        line: lambda event: event.source.startswith(line),
        "aten.gelu.default": lambda event: event.target == "aten.gelu.default",
        "blocks.1 drop": lambda event: event.kind == "drop" and "blocks.1" in event.module,
    }
    for words, is_meant in wanted.items():
        page.get_by_label("Search").fill(words)
        settle(page)
        found = [event for event in report.events if is_meant(event)]
        assert page.locator("#found").inner_text() == f"{len(found)} of {len(report.events)} steps"
        while page.locator("#more").is_visible():
            page.locator("#more").click()
        names = {report.storages[number].name for event in found for number in event.storages}
        shown = page.locator("#storages tbody td:first-child").all_inner_texts()
        assert set(shown) == names
        tree = page.locator("#modules .name").evaluate_all("(cells) => cells.map((cell) => cell.title)")
        paths = {event.module for event in found}
        assert set(tree) == {path for full in paths for path in _around(full, report)}
    page.get_by_label("Search").press("Escape")
    settle(page)
    assert page.locator("#found").inner_text() == ""
    assert page.locator("#diff .fold").count() > 0


def _around(path: str, report: Report) -> set[str]:
    """The modules of the tree that a path lies in."""
    tree = (module.path for _, module in module_tree(report).walk())
    return {one for one in tree if not one or f"{path}.".startswith(f"{one}.")}


def test_drop_finds_no_dropout(open_page: Open, report: Report) -> None:
    events = tuple(
        replace(event, origin=f"native_dropout_{event.origin}") if event.kind == "compute" else event
        for event in report.events
    )
    page = open_page(replace(report, events=events))
    page.get_by_label("Search").fill("drop")
    assert page.locator("#found").inner_text() == f"{report.drops} of {len(report.events)} steps"


def test_going_to_an_operator_ends_a_search_that_hides_it(open_page: Open, report: Report) -> None:
    page = open_page(report)
    page.get_by_label("Search").fill("drop")
    page.locator("#chart").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    settle(page)
    assert page.get_by_label("Search").input_value() == ""
    assert operators(report)[0].origin in page.locator("#diff [aria-selected=true]").inner_text()


# --- keyboard, screen reader, phone, paper ------------------------------------------------------------------


def test_tab_reaches_every_view_in_order(open_page: Open, report: Report) -> None:
    page = open_page(report)
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => { const at = document.activeElement;
            return [at.id || at.getAttribute('aria-label') || at.name || at.tagName,
                    getComputedStyle(at).outlineStyle]; }"""
        )
        if name == "BODY":  # round the end
            break
        assert outline != "none", name  # one sees where it is
        reached.append(name)
    order = [
        "chart",
        "First operator in view",
        "Last operator in view",
        "search",
        "Zoom out",
        "modules",
        "unfold",
        "diff",
    ]
    assert [name for name in reached if name in order][: len(order)] == order


def test_a_screen_reader_hears_what_the_picture_says(open_page: Open, report: Report) -> None:
    page = open_page(report)
    chart = page.get_by_role("slider", name="Live bytes over the operators")
    chart.focus()
    page.keyboard.press("Home")
    first = operators(report)[0]
    text = chart.get_attribute("aria-valuetext")
    assert text.startswith(
        f"Operator 1 of {len(report.after)} after: {first.name}, {format_bytes(first.live)} live"
    )
    assert text == page.locator("#readout").inner_text()
    assert page.get_by_role("tree", name="Modules").count() == 1
    assert page.get_by_role("tree", name="Operators in execution order").count() == 1
    assert page.get_by_role("search").count() == 1


def test_the_slash_leads_to_the_search(open_page: Open, report: Report) -> None:
    page = open_page(report)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("a/b")
    assert page.get_by_label("Search").input_value() == "a/b"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_of_360_pixels_has_room(open_page: Open, report: Report, scheme: str) -> None:
    page = open_page(
        report, replace(report, trigger="x" * 200), viewport=PHONE, color_scheme=scheme, has_touch=True
    )

    def fits() -> bool:
        return page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]

    assert fits()
    page.locator("summary").click()
    page.get_by_role("button", name="Unfold all").click()
    page.locator("#modules [role=treeitem]").nth(1).click()
    settle(page)
    assert fits()
    page.get_by_label("Search").fill("drop")
    settle(page)
    assert fits()
    rows = "#diff [data-row], #modules [data-row], #storages tbody tr"
    assert page.locator(rows).evaluate_all(
        "(rows) => rows.every((row) => row.scrollWidth <= row.clientWidth + 1)"
    )
    sizes = page.locator(f":is({rows}) > *, #legend li").evaluate_all(
        "(cells) => cells.map((cell) => parseFloat(getComputedStyle(cell).fontSize))"
    )
    assert min(sizes) >= 12
    source = page.locator("#diff .source").first
    assert source.is_visible()
    assert source.inner_text()


@pytest.mark.parametrize("width", [640, 768, 1024])
def test_no_width_makes_the_page_scroll_sideways(open_page: Open, report: Report, width: int) -> None:
    page = open_page(report, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.emulate_media(media="print")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_finger_points_and_goes_nowhere(open_page: Open, report: Report) -> None:
    page = open_page(report, viewport=PHONE, has_touch=True)
    page.locator("#chart").scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    page.touchscreen.tap(*at(page, 0.5))
    settle(page)
    assert page.locator("#tip").is_visible()
    found, told = operators(report), page.locator("#tip").inner_text()
    middle = {found[(len(found) - 1) // 2].origin, found[len(found) // 2].origin}
    assert told.split()[0] in middle
    assert page.evaluate("scrollY") == before
    assert page.locator("#diff [aria-selected=true]").count() == 0
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]


def test_paper_is_black_on_white_and_holds_what_is_folded(open_page: Open, report: Report) -> None:
    page = open_page(report, color_scheme="dark")
    page.emulate_media(media="print")
    settle(page)
    style = "(element, name) => getComputedStyle(element)[name]"
    assert page.locator("body").evaluate(style, "backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("h1").evaluate(style, "color") == "rgb(0, 0, 0)"
    assert page.locator("#lens").evaluate(style, "position") == "static"
    for hidden in ("#search", "#brush-box", "#unfold"):
        assert not page.locator(hidden).is_visible()
    diff = page.locator("#diff")
    assert diff.evaluate("(list) => list.scrollHeight <= list.clientHeight + 1")  # nothing has to be scrolled
    assert diff.locator(".drop").count() == min(report.drops, 150)
    page.emulate_media(media="screen")
    settle(page)
    assert page.locator("#search").is_visible()


@pytest.mark.slow
def test_20000_operators_are_drawn_within_a_frame(open_page: Open) -> None:
    page = open_page(large(20_000))
    rounds = [frames(page) for _ in range(3)]  # what else the machine does hits one of them
    found = {gesture: min(each[gesture] for each in rounds) for gesture in rounds[0]}
    assert max(found.values()) < LIMIT, found

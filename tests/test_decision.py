"""The page on which to choose a budget, in a headless Chromium: its slider, and what it says at each."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dtr_fx.cli import main
from dtr_fx.cli.targets import load_target
from dtr_fx.compiler.explain import plan_step
from dtr_fx.inspect.comparison import Comparison, Mark, decision_page
from dtr_fx.planning.options import Options
from dtr_fx.report.curve import Curve, CurvePoint
from dtr_fx.units import format_bytes, format_percent, format_seconds

pytestmark = pytest.mark.little_effort

DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
MODEL = """
import torch
from torch import nn

def factory():
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(256, 64)
"""
EFFORT = ("--plan-seconds", "0.02")
BUDGETS = ("80%", "60%")
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model.py"
    path.write_text(MODEL)
    return f"{path}:factory"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, target: str) -> Path:
    """What the command writes: page.html, curve.json."""
    folder = tmp_path_factory.mktemp("sweep")
    files = ("--html", str(folder / "page.html"), "-o", str(folder / "curve.json"))
    assert main(["sweep", target, "--budgets", *BUDGETS, *EFFORT, *files]) == 0
    return folder


@pytest.fixture(scope="module")
def points(folder: Path) -> list[dict[str, Any]]:
    """The points of the curve that the slider has."""
    found = json.loads((folder / "curve.json").read_text())
    peaks = {mark["peak"] for mark in found["marks"]}
    first, *between, last = found["curve"]["points"]
    return [first, *(point for point in between if point["budget"] not in peaks), last]


@pytest.fixture
def page(folder: Path, open_html: Open) -> Any:
    return open_html((folder / "page.html").read_text(encoding="utf-8"), viewport=DESKTOP)


def printed(capsys: pytest.CaptureFixture[str], verb: str, target: str, *arguments: object) -> str:
    torch.compiler.reset()  # as in a process of its own
    assert main([verb, target, *map(str, arguments)]) == 0
    return capsys.readouterr().out


def slide_to(page: Any, number: int) -> None:
    """With the keyboard, from the smallest budget on."""
    page.get_by_role("slider", name="Budget").press("Home")
    for _ in range(number):
        page.get_by_role("slider", name="Budget").press("ArrowRight")
    page.wait_for_timeout(100)  # until the plan is read


def test_page_terminal_and_json_say_the_same_at_every_budget(
    page: Any, points: list[dict[str, Any]], target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(points) >= len(BUDGETS) + 2
    for number, point in enumerate(reversed(points)):
        slide_to(page, number)
        asked = ("--budget", f"{point['budget']}B", *EFFORT)
        terminal = printed(capsys, "diff", target, *asked)
        (data,) = json.loads(printed(capsys, "diff", target, *asked, "--json"))
        verdict, *circumstances = terminal.split("\n\n")[0].splitlines()
        shown = page.locator("h1").inner_text()
        assert figures(shown) == figures(verdict)
        assert page.locator("#circumstances").inner_text() == " ".join(circumstances)
        for figure in (point["peak"], data["planned_peak"]):
            assert f"→ {format_bytes(figure)}," in shown
        assert f"overhead {format_percent(point['overhead'])}" in shown
        told = page.locator("#told").inner_text()
        assert f"peak {format_bytes(data['planned_peak'])}" in told
        assert f"extra compute {format_percent(point['overhead'])}" in told
        assert page.evaluate("report.plan.rows.filter((row) => row.title).map((row) => row.title)") == [
            line.strip("─ ") for line in terminal.splitlines() if line.startswith("── ")
        ]
        cells = "report.plan.events.map((step) => [step.kind, step.name, step.bytes, step.live])"
        assert page.evaluate(cells) == [
            [event["kind"], event["name"], format_bytes(event["nbytes"]), format_bytes(event["live"])]
            for event in data["events"]
            if event["kind"] != "banish"
        ]
        assert page.evaluate("report.plan.after.map((point) => [point.name, ...point.parts])") == [
            [point["name"], *point["parts"]] for point in data["after"]
        ]
        assert page.evaluate("report.plan.storages.map((one) => [one.name, one.kind, one.drops])") == [
            [storage["name"], storage["kind"], storage["drops"]] for storage in data["storages"]
        ]


def figures(verdict: str) -> str:
    """Without how the budget was asked for."""
    return re.sub(r"budget (.* = )?", "budget ", verdict)


def test_a_plan_of_the_page_is_that_of_the_other_commands(
    points: list[dict[str, Any]], target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--budget", "60%", *EFFORT, "--json")
    (data,) = json.loads(printed(capsys, "diff", target, *asked))
    (point,) = (point for point in points if point["budget"] == data["budget"])
    base = data["base_cost"]
    assert point["peak"] == data["planned_peak"]
    assert point["overhead"] == pytest.approx((data["total_cost"] - base) / base)
    (timeline,) = json.loads(printed(capsys, "timeline", target, *asked))
    assert timeline["after"] == data["after"]


def test_a_click_on_a_point_shows_its_plan(page: Any, points: list[dict[str, Any]]) -> None:
    dots = page.locator("#curve .point:not(.between)")
    assert dots.count() == len(points)
    for number in (len(points) - 1, 1):
        dots.nth(number).click(force=True)
        overhead = format_percent(points[number]["overhead"])
        page.locator("h1", has_text=f"overhead {overhead}").wait_for()
        slider = page.get_by_role("slider", name="Budget")
        assert float(slider.input_value()) == points[number]["budget"]
        assert f"extra compute {overhead}" in slider.get_attribute("aria-valuetext")


def test_the_table_has_every_point_and_chooses_too(page: Any, folder: Path) -> None:
    found = json.loads((folder / "curve.json").read_text())
    page.get_by_text("All points as a table").click()
    assert page.locator("#points tbody tr").count() == len(found["curve"]["points"]) + len(found["marks"])
    page.locator("#points button").first.click()
    page.locator("h1", has_text="0 drops").wait_for()
    assert page.locator("#points button[aria-pressed=true]").count() == 1


def test_the_slider_by_pointer(page: Any, points: list[dict[str, Any]]) -> None:
    box = page.get_by_role("slider", name="Budget").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 10, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 12, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    page.locator("h1", has_text=f"overhead {format_percent(points[-1]['overhead'])}").wait_for()


def test_the_thumb_stands_under_the_point(page: Any, points: list[dict[str, Any]]) -> None:
    for number in range(len(points)):
        slide_to(page, number)
        point = page.locator("#curve .needle circle").bounding_box()
        slider = page.get_by_role("slider", name="Budget")
        box = slider.bounding_box()
        low, high, at = (float(slider.get_attribute(name)) for name in ("min", "max", "min"))
        at = float(slider.input_value())
        thumb = box["x"] + 10 + (box["width"] - 20) * (at - low) / (high - low)
        assert thumb == pytest.approx(point["x"] + point["width"] / 2, abs=1.5)


def test_the_others_are_named_with_what_they_cost(page: Any, folder: Path) -> None:
    found = json.loads((folder / "curve.json").read_text())
    kinds = {mark["kind"] for mark in found["marks"]}
    assert kinds == {"eager", "checkpoint", "sqrt", "partitioner", "inductor"}
    legend = page.locator("#rivals").inner_text()
    for name in ("checkpoint per block", "checkpoint √n", "PyTorch's partitioner", "Inductor before fusion"):
        assert name in legend
    page.get_by_role("slider", name="Budget").press("End")
    beside = page.locator("#beside").inner_text()
    (sqrt,) = (mark for mark in found["marks"] if mark["kind"] == "sqrt")
    assert f"checkpoint √n {format_percent(sqrt['overhead'])}" in beside
    page.get_by_role("slider", name="Budget").press("Home")
    assert f"checkpoint √n, from {format_bytes(sqrt['peak'])}" in page.locator("#beside").inner_text()
    bound = format_bytes(found["curve"]["lower_bound"])
    assert "lower bound" in page.locator("#curve").text_content()
    assert bound in page.locator("#curve").text_content()


def test_the_title_block(page: Any, target: str) -> None:
    names, texts = (page.locator(f"#about {kind}").all_inner_texts() for kind in ("dt", "dd"))
    about = dict(zip(names, texts))
    assert about["model"] == target
    assert about["command"].startswith(f"dtr-fx sweep {target} --budgets 80%")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
    assert about["torch"][0].isdigit()
    assert about["device"] == "cpu"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways(folder: Path, open_html: Open, scheme: str) -> None:
    html = (folder / "page.html").read_text(encoding="utf-8")
    page = open_html(html, viewport=PHONE, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    page.get_by_text("All points as a table").click()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_numbers_are_written_as_in_the_terminal(page: Any) -> None:
    draw = random.Random(0)
    sizes = [draw.randrange(2 ** draw.randrange(1, 45)) for _ in range(3000)]
    sizes += [1152, 10**4 * 1024 + 512, 1023, 1024, 1047552, 2**20 - 1, 0]  # halves, and ends of units
    seconds = [draw.random() * 10 ** draw.randrange(-10, 3) for _ in range(3000)]
    seconds += [0.001125, 1.125e-6, 0.0125, 0.99995, 100.5, 12.25]
    for name, numbers, write in (
        ("formatBytes", sizes, format_bytes),
        ("formatSeconds", seconds, format_seconds),
    ):
        assert page.evaluate(f"(numbers) => numbers.map({name})", numbers) == list(map(write, numbers))


def test_a_curve_of_one_point_can_be_shown(open_html: Open, folder: Path, target: str) -> None:
    model, inputs = load_target(target)
    (report,) = plan_step(model, inputs, Options(budget="100%"))
    whole = report.baseline_peak
    curve = Curve((CurvePoint(report.budget, report.planned_peak, 0.0),), whole, 1, 2, 1.0)
    found = Comparison("a<b", 3, curve, (Mark("eager", "", whole, 0.0),), ("a note",))
    page = open_html(decision_page(found, [report]), viewport=DESKTOP)
    assert page.get_by_role("slider", name="Budget").count() == 0
    assert "a note" in page.locator(".notes").inner_text()
    assert "a<b" in page.locator("#which + p").inner_text()

"""How large the page of a large model's plans is, and how soon it shows: ``python tests/large_reports.py``.

The reports are made up: of as many operators as one likes, with numbers that compress worse than a model's.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtr_fx.inspect.comparison import Comparison, Mark, decision_page
from dtr_fx.report import KINDS, Event, Point, Report, StorageStats
from dtr_fx.report.curve import Curve, CurvePoint


def large(operators: int, every: int = 10) -> Report:
    """A plan of the size of a large model's: the values of some operators are dropped and made again."""
    draw = random.Random(0)
    half = operators // 2
    names = [f"{draw.choice(('addmm', 'native_layer_norm', '_safe_softmax'))}_{i}" for i in range(operators)]
    sizes = [draw.randrange(2**24) for _ in names]
    costs = [draw.random() * 1e-3 for _ in range(200)]  # there are fewer shapes than operators
    parts = dict.fromkeys(KINDS, 2**28)
    events: list[Event] = []
    before: list[Point] = []
    after: list[Point] = []

    def run(kind: str, of: int, name: str, reason: str = "") -> None:
        phase = "forward" if len(before) < half else "backward"
        source = f"model.py:{of % 800} in forward: hidden = self.layers[{of % 97}](hidden, mask)"
        parts["temporary"] = sizes[-of]
        after.append(Point(sum(parts.values()), name, tuple(parts.values())))
        event = Event(kind, name, names[of], phase, sizes[of], costs[of % 200], after[-1].live, reason)
        module = f"layers.{of % half // 60}.{('attention', 'mlp')[of % 60 // 30]}"
        events.append(replace(event, source=source, storages=(of,), target="aten.mm.default", module=module))

    for i in range(operators):
        mirror = operators - 1 - i
        is_forward = i < half
        parts["activation"] += sizes[i] if is_forward else -sizes[mirror]
        parts["gradient"] += 0 if is_forward else draw.randrange(-(2**10), 2**12)
        if not is_forward and mirror % every == 0:
            run("recompute", mirror, f"{names[mirror]}_recompute", f"for {names[i]}")
        run("compute", i, names[i])
        before.append(after[-1])
        if is_forward and i % every == 0:
            live = after[-1].live - sizes[i]
            dropped = Event("drop", f"drop_{names[i]}", names[i], "forward", sizes[i], 0.0, live, "planned")
            again, away = draw.random() * 1e-3, draw.random()
            events.append(replace(dropped, storages=(i,), again=again, away=away))
    stats = tuple(
        StorageStats(name, "activation", size, drops, drops, drops * costs[i % 200])
        for i, (name, size) in enumerate(zip(names, sizes))
        for drops in [int(i < half and i % every == 0)]
    )
    peak = max(point.live for point in after)
    plan = (tuple(events), tuple(before), tuple(after), stats)
    return Report(peak, peak, peak, 1, 1, 1.0, 1.1, "next-use", "cpu", *plan, seconds={})


def page_of(operators: int, plans: int = 10) -> str:
    """The page on which to choose among plans of a large model."""
    reports = [large(operators, every) for every in range(20, 20 - plans, -1)]
    whole = max(report.baseline_peak for report in reports) + plans
    budgets = range(whole, whole - plans, -1)
    before = reports[0].before  # of one graph
    reports = [
        replace(report, budget=budget, baseline_peak=whole, before=before, asked="60%", model="large")
        for report, budget in zip(reports, budgets)
    ]
    points = tuple(CurvePoint(budget, budget, at / plans) for at, budget in enumerate(budgets))
    curve = Curve(points, whole, whole // 10, whole - plans, 1.0)
    found = Comparison("large", operators, curve, (Mark("eager", "", whole, 0.0),), ())
    return decision_page(found, reports, "python tests/large_reports.py")


# When the picture of the first plan is there, and how long it takes to show another.
WATCH = """new MutationObserver((_, watcher) => {
    if (!document.querySelector("#chart .kind")) return;
    window.drawn = performance.now();
    watcher.disconnect();
}).observe(document, { childList: true, subtree: true });"""
SWITCH = """async () => {
    const started = performance.now();
    await report.select(report.number === 0 ? 1 : 0);
    return performance.now() - started;
}"""


def measure(browser: Any, html: str, folder: Path) -> dict[str, float]:
    """Milliseconds from opening the page, and to another plan: one that is not read yet, one that is."""
    path = folder / "large.html"
    path.write_text(html, encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.add_init_script(WATCH)
    page.goto(path.as_uri())
    page.locator("#status:not(:empty)").wait_for()
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    found = {
        "first paint": page.evaluate(paint),
        "first plan drawn": page.evaluate("window.drawn"),
        "loaded": page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"),
        "another plan": page.evaluate(SWITCH),
        "another, read before": min(page.evaluate(SWITCH) for _ in range(3)),
    }
    page.close()
    return found


def main() -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for operators in [int(text) for text in sys.argv[1:]] or [5_000, 20_000]:
            html = page_of(operators)
            print(f"{operators} operators, ten plans: {len(html) / 1e6:.2f} MB")
            for _ in range(3):
                found = measure(browser, html, Path(folder))
                print("  " + ", ".join(f"{name} {time:.0f} ms" for name, time in found.items()))
        browser.close()


if __name__ == "__main__":
    main()

"""How long the page takes from a gesture to the next frame, with a plan of 20,000 operators.

  python tests/page_frames.py [OPERATORS]

Each gesture is made 15 times; the figures are milliseconds from the event until the frame with its result has
been painted, the wait for the display among them.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMIT = 50.0  # milliseconds, a frame that still looks immediate

# What is done in each of the frames, as a function of its number.
GESTURES = {
    "point": "(i) => mouse('pointermove', 100 + 40 * i, 100)",
    "zoom by wheel": "(i) => wheel(i < 8 ? -120 : 120)",
    "zoom by drag": "(i) => { zoom(i % 2 ? 200 : 700, 100 + 10 * i); }",
    "brush": "(i) => slide(i)",
    "key": "(i) => key('ArrowRight')",
    "search": "(i) => type(['layers.1', 'softmax', 'drop layers.7', 'model.py:4', ''][i % 5])",
    "module": "(i) => document.querySelectorAll('#modules [data-row]')[1 + (i % 8)].click()",
    "list": "(i) => { list.scrollTop = i * 7919; }",
}
SETUP = """
    const chart = document.getElementById('chart'), list = document.getElementById('diff');
    const { left, top, height } = chart.getBoundingClientRect();
    const usual = { bubbles: true, cancelable: true };
    const mouse = (kind, x, y) => chart.dispatchEvent(new PointerEvent(kind, {
        ...usual, clientX: left + x, clientY: top + y, pointerId: 1, pointerType: 'mouse' }));
    const wheel = (deltaY) => chart.dispatchEvent(new WheelEvent('wheel', {
        ...usual, deltaY, clientX: left + 500, clientY: top + 100 }));
    const zoom = (x, width) => {
        chart.setPointerCapture = () => {};
        for (const [kind, at] of [['pointerdown', x], ['pointermove', x + width], ['pointerup', x + width]]) {
            mouse(kind, at, 100);
        }
    };
    const handle = document.querySelector('#brush-box [role=slider]');
    const slide = (i) => handle.dispatchEvent(new KeyboardEvent('keydown', {
        ...usual, key: i % 2 ? 'PageUp' : 'ArrowRight' }));
    const key = (name) => chart.dispatchEvent(new KeyboardEvent('keydown', { ...usual, key: name }));
    const box = document.getElementById('search');
    const type = (text) => { box.value = text; box.dispatchEvent(new Event('input')); };
    const painted = () => new Promise((done) => requestAnimationFrame(() => {
        const channel = new MessageChannel();
        channel.port1.onmessage = done;
        channel.port2.postMessage(0);
    }));
"""


def frames(page: Any) -> dict[str, float]:
    """By gesture the median of the milliseconds until the next frame is there."""
    found = {}
    for name, gesture in GESTURES.items():
        times = page.evaluate(
            f"""async () => {{ {SETUP}
                const gesture = {gesture};
                const times = [];
                for (let i = 0; i < 15; i++) {{
                    await painted();
                    const started = performance.now();
                    gesture(i);
                    await painted();
                    times.push(performance.now() - started);
                }}
                type('');
                document.querySelector('[data-zoom=whole]').click();
                await painted();
                return times;
            }}"""
        )
        found[name] = statistics.median(times)
    return found


def main() -> None:
    from large_reports import large
    from playwright.sync_api import sync_playwright

    from dtr_fx.inspect.html import render

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        path.write_text(render([large(int(sys.argv[1]) if sys.argv[1:] else 20_000)]), encoding="utf-8")
        print(f"page: {path.stat().st_size / 1e6:.1f} MB")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(path.as_uri())
        page.locator("#status:not(:empty)").wait_for()
        print(f"{'first drawn':16}{page.evaluate('performance.now()'):8.1f} ms")
        for name, milliseconds in frames(page).items():
            print(f"{name:16}{milliseconds:8.1f} ms")
        browser.close()


if __name__ == "__main__":
    main()

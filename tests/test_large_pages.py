"""The page of ten plans of a large model: small enough to send, and soon there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from large_reports import measure, page_of


@pytest.mark.parametrize(
    ("operators", "most"), [(5_000, 5e6), pytest.param(20_000, 15e6, marks=pytest.mark.slow)]
)
def test_ten_plans_are_small_and_soon_there(
    browser: Any, tmp_path: Path, operators: int, most: float
) -> None:
    html = page_of(operators)
    assert len(html) < most
    found = [measure(browser, html, tmp_path) for _ in range(3)]
    print(found)
    assert min(each["first paint"] for each in found) < 1000
    assert min(each["first plan drawn"] for each in found) < 2000  # of several tests side by side

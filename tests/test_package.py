"""What ``import dtr_fx`` gives, and what it does not bring with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dtr_fx


@pytest.mark.parametrize("module", ["lab", "lab.planners", "search", "runtime"])
def test_the_experiments_of_the_paper_do_without_torch(module: str) -> None:
    code = f"import sys, dtr_fx.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_functions_are_not_hidden_by_the_modules_that_hold_them() -> None:
    import dtr_fx.planning.judge
    import dtr_fx.planning.transform

    assert callable(dtr_fx.judge)
    assert callable(dtr_fx.transform)


def test_every_name_is_there_and_no_other() -> None:
    assert set(dtr_fx.__all__) <= set(dir(dtr_fx))
    for name in dtr_fx.__all__:
        assert getattr(dtr_fx, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'transfrom'"):
        dtr_fx.transfrom  # noqa: B018

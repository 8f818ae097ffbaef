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
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from dtr_fx.runtime import Program
from dtr_fx.search import default_effort

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DTR_DEBUG"] = "1"  # an order that the runtime refuses is an error

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

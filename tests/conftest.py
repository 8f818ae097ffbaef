"""One thread for torch, here and in the commands that tests start: tests run side by side, one per core.

Times of operators are kept in a folder of the run, not in that of the user. Random cases are the same in
every run, and may take their time on a busy machine; ``--hypothesis-profile=new`` looks for others.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DTR_DEBUG"] = "1"  # an order that the runtime refuses is an error

settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("new"), derandomize=True, database=None)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTR_FX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

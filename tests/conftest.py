"""One thread for torch, here and in the commands that tests start: tests run side by side, one per core.

Times of operators are kept in a folder of the run, not in that of the user.
"""

import os
from collections.abc import Iterator

import pytest

os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTR_FX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

"""Python's cyclic garbage collector, which a run only gives work that frees nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector from walking a run's many objects, all of them alive, again and again.

    It doubles the time of a run otherwise, more with every module that is loaded.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

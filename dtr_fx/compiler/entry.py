"""What the entry point names: PyTorch loads it to register the backend, in each thread that finds it missing.

Of two threads that load it at once, PyTorch refuses the second one's backend as a duplicate.  So it is
registered here, once, and what PyTorch is given is None, which it registers as nothing.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch._dynamo

_lock = threading.Lock()


@functools.cache
def _register() -> None:
    from dtr_fx.compiler.backend import dtr

    torch._dynamo.register_backend(dtr, name="dtr")


def __getattr__(name: str) -> Any:
    if name != "dtr":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        _register()
    return None

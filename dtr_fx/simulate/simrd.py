"""The runtime with the rules of the original artifact's simulator, for comparison with its results.

Source: uwsampl/dtr-prototype, folder simrd, runtime ``V2EagerOptimized``.  Two of its rules are not ours:

- A storage that nothing can ask for again stays evicted, and goes on counting in its neighbours' scores.
- Inputs of operators that wait for a rematerialization stay locked, if need be until nothing is left to
  evict.  A U-Net at 40% of its peak runs out of memory that way, with most of its bytes locked.

``read_log(..., simrd=True)`` has the third, on mutation.  Among equal scores it evicts the last of the pool,
we the first: under h_size, where they are common, that shows.
"""

from __future__ import annotations

from dtr_fx.runtime import Runtime, events
from dtr_fx.runtime.graph import Operator, Storage


class SimrdRuntime(Runtime):
    """``Runtime`` with eager eviction as simrd has it; see the module."""

    def _retire(self, storage: Storage) -> None:
        if storage.slot >= 0 and storage.root.op is not None:
            self._evict(storage, storage.root.op, events.RELEASED)

    def _borrow(self, op: Operator) -> None:
        return None

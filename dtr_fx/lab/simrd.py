"""The runtime with the rules of the original artifact's simulator, for comparison with its results.

Source: uwsampl/dtr-prototype, folder simrd, runtime ``V2EagerOptimized``.  Three of its rules are not ours:

1. A storage that nothing can ask for again stays evicted, and goes on counting in its neighbours' scores.
2. Inputs of operators that wait for a rematerialization stay locked, if need be until nothing is left to
   evict.  A U-Net at 40% of its peak runs out of memory that way, with most of its bytes locked.
3. A mutation renews the name that was written and no other; ``read_log(..., simrd=True)`` has that one, and
   marks the program, so that it is replayed by the other two.

A fourth is in no switch: among equal scores the original evicts the last of the pool, dtr_fx the first.
Under h_size, where they are common, that shows.
"""

from __future__ import annotations

from dtr_fx.runtime import Runtime, steps
from dtr_fx.runtime.graph import Operator, Storage


class SimrdRuntime(Runtime):
    """``Runtime`` with eager eviction as simrd has it; see the module."""

    def _retire(self, storage: Storage) -> None:
        if storage.slot >= 0 and storage.root.op is not None:
            self.perform_eviction(storage, storage.root.op, steps.RELEASED)

    def _borrow(self, op: Operator) -> None:
        return None

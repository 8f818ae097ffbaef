"""Dynamic Tensor Rematerialization: Figure 1 and Appendix C of Kirisame et al., ICLR 2021.

Deviations from the paper, each where it occurs: rematerialization keeps its own stack instead of
recursing; locks held by operators that wait for a rematerialization give way when nothing else can be
evicted; a storage that nothing can ask for again is freed for good; constants are never freed, not even
by banishing.
"""

from __future__ import annotations

from .figure1 import Figure1
from .graph import Tensor


class Runtime(Figure1):
    """Runs operators under a byte budget, evicting and rematerializing as the paper prescribes.

    Its state is ``Memory``; ``Deallocating`` has what the program has released (C.5), ``Moving``
    transfers, ``Figure1`` the rest.
    ``execute``, where it is set, runs an operator right after room was made for it, and returns what that
    cost; the first time counts.  Else nothing is run, and costs are as given.

    Parameters
    ----------
    budget, heuristic:
        Bytes that may be resident at any time, and what goes first; see ``resolve``.
    deallocation:
        What the last ``release`` of a storage does (C.5): ``"eager"`` evicts it, ``"ignore"`` nothing;
        ``"banish"`` frees it for good once no evicted storage could ask for it, and pins what it alone could
        recompute.
    keep_passed:
        Released storages that are rematerialized on the way to others stay until they are evicted, as in the
        paper; else they are dropped as soon as they have been read.
    order:
        What is missing is rematerialized ``"depth first"``, input by input (as in the paper), or in
        ``"program"`` order, all at once and each operator of it once.
    tier:
        Where storages may be moved to, with its speed in the unit of costs; see ``Moving``.
    moves:
        What is evicted for the budget is moved to the tier where that is the cheaper way; else only what
        ``move_out`` is called for.
    max_recompute:
        Cost of rematerialized operators, with what waits for transfers, above which a run gives up with
        ``Thrash``.

    Examples
    --------
    >>> runtime = Runtime(budget=2, heuristic="lru")
    >>> x = runtime.constant(0)
    >>> [a] = runtime.perform_op([x], [1], cost=1.0)
    >>> [b] = runtime.perform_op([a], [1], cost=1.0)
    >>> [c] = runtime.perform_op([b], [1], cost=1.0)
    >>> runtime.access(a)
    >>> [step.kind for step in runtime.steps]
    ['compute', 'compute', 'drop', 'compute', 'drop', 'recompute']
    """

    def access(self, tensor: Tensor) -> None:
        """Make a tensor defined, rematerializing it if it must be."""
        if tensor.is_moved:
            self._touch(tensor.storage)
            self.bring_back(tensor)
            self.wait_for(tensor.storage)
        else:
            self.recompute(tensor)

    def recompute(self, tensor: Tensor) -> None:
        """Make a tensor defined, and not by a transfer."""
        self._touch(tensor.storage)
        self._leave_now(tensor)
        if not tensor.defined:
            assert tensor.op is not None
            self._perform(tensor.op)

"""The abstractions of Appendix C.1, with their metadata (C.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .caching_allocator import Block


@dataclass(eq=False, repr=False, slots=True)
class Storage:
    """A buffer of ``size`` bytes: the unit that is evicted and rematerialized (C.1).

    ``dependents`` are storages that could still ask for it: evictable, and themselves not retired.
    One that is ``evicted`` has to be recomputed.  One that was copied out is ``outside``, too, from that time
    on, and comes back in ``seconds_back``, infinite where it may not be moved.  Until something has waited
    for that, a copy out ``leaves`` by a time, and what was last brought back ``arrives`` by one.
    """

    id: int
    size: int
    root: Tensor = field(init=False)
    tensors: list[Tensor] = field(init=False, default_factory=list)
    parents: list[Storage] = field(init=False, default_factory=list)
    children: list[Storage] = field(init=False, default_factory=list)
    cost: float = 0.0
    last_access: float = 0.0
    next_use: float = 0.0
    resident: bool = False
    evicted: bool = False
    pinned: bool = False
    retired: bool = False
    locks: int = 0
    refs: int = 0
    dependents: int = 0
    has_let_go: bool = False
    slot: int = -1
    block: Block | None = None
    seconds_back: float = math.inf
    outside: float | None = None
    leaves: float | None = None
    arrives: float | None = None


@dataclass(eq=False, repr=False, slots=True)
class Tensor:
    """A view of a storage, produced by ``op``; ``defined`` while it can be read without rematerializing."""

    storage: Storage
    op: Operator | None
    defined: bool = False

    @property
    def is_moved(self) -> bool:
        """True if it is outside alone, and comes back by a transfer."""
        storage = self.storage
        return storage.outside is not None and not storage.resident and self is storage.root


@dataclass(eq=False, repr=False, slots=True)
class Operator:
    """A pure function call (C.1): ``allocates`` counts its fresh outputs and its temporary workspace."""

    id: int
    inputs: tuple[Tensor, ...]
    cost: float
    workspace: int
    recomputable: bool
    movable: bool = False
    outputs: tuple[Tensor, ...] = ()
    reads: tuple[Storage, ...] = field(init=False)
    allocates: int = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.reads = tuple(dict.fromkeys(tensor.storage for tensor in self.inputs))
        self.allocates = self.workspace


@dataclass(eq=False, repr=False, slots=True)
class Frame:
    """An operator that is waiting for its inputs; ``held`` are those that it has locked."""

    op: Operator
    wanted: Sequence[Tensor] = ()
    done: bool = False
    held: list[Storage] = field(default_factory=list)
    lent: int = 0

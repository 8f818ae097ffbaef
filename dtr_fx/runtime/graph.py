"""The abstractions of Appendix C.1: storages, the tensors that view them, and the operators between them.

C.2 lists the metadata that the runtime keeps per storage and per tensor; the attributes below are that
list, with the paper's names in the comments where ours differ.
"""

from __future__ import annotations

from collections.abc import Sequence


class Storage:
    """A buffer of ``size`` bytes: the unit that is evicted and rematerialized (C.1)."""

    __slots__ = (
        "children",
        "cost",
        "dependents",
        "evicted",
        "has_let_go",
        "id",
        "last_access",
        "locks",
        "next_use",
        "parents",
        "pinned",
        "refs",
        "resident",
        "retired",
        "root",
        "size",
        "slot",
        "tensors",
    )

    root: Tensor

    def __init__(self, id: int, size: int) -> None:
        self.id = id
        self.size = size
        self.tensors: list[Tensor] = []
        self.parents: list[Storage] = []
        self.children: list[Storage] = []
        self.cost = 0.0
        self.last_access = 0.0
        self.next_use = 0.0
        self.resident = False
        self.evicted = False
        self.pinned = False
        self.retired = False
        self.locks = 0
        self.refs = 0
        # Storages that could still ask for this one: evictable, and themselves not retired.
        self.dependents = 0
        self.has_let_go = False
        self.slot = -1

    def __repr__(self) -> str:
        return f"Storage({self.id}, {self.size} bytes)"


class Tensor:
    """A view of a storage, produced by ``op``; ``defined`` while it can be read without rematerializing."""

    __slots__ = ("defined", "op", "storage")

    def __init__(self, storage: Storage, op: Operator | None) -> None:
        self.storage = storage
        self.op = op
        self.defined = False


class Operator:
    """A pure function call (C.1): ``allocates`` counts its fresh outputs and its temporary workspace."""

    __slots__ = ("allocates", "cost", "id", "inputs", "outputs", "recomputable", "reads", "runs", "workspace")

    def __init__(
        self, id: int, inputs: Sequence[Tensor], cost: float, workspace: int, *, recomputable: bool
    ) -> None:
        self.id = id
        self.inputs = tuple(inputs)
        self.reads = tuple(dict.fromkeys(tensor.storage for tensor in inputs))
        self.outputs: tuple[Tensor, ...] = ()
        self.cost = cost
        self.workspace = workspace
        self.allocates = workspace
        self.recomputable = recomputable
        self.runs = 0


class Frame:
    """An operator that is waiting for its inputs; ``held`` are those that it has locked."""

    __slots__ = ("done", "held", "lent", "op", "wanted")

    def __init__(self, op: Operator, wanted: Sequence[Tensor] = ()) -> None:
        self.op = op
        self.wanted = wanted
        self.done = False
        self.held: list[Storage] = []
        self.lent = 0

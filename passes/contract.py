"""Passes that state what they require and what they ensure, checked when a pipeline is put together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from dtr_fx.errors import DTRError

VALUES = 'every node has its fake value in meta["val"], sharing storages as the nodes do'
ORDER = "nodes stand in the order in which they run, and their tags say in which pass"
KERNELS = "operators that one kernel computes are one node"
PLAN = "Drop and Recompute nodes do what a plan says"
VERIFIED = "every rule of verify holds"


class PipelineError(DTRError, TypeError):
    """A pass stands where what it requires does not hold: a defect of the pipeline."""


class Pass(ABC):
    """One change of a graph in place, or one check; its fields are its options."""

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    breaks: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def call(self, gm: GraphModule) -> bool:
        """Do it; True if the graph may have changed."""


class Pipeline:
    """Passes, one after the other; what they require is ``given`` with the graph, or ensured by earlier ones.

    ``PipelineError`` if it is neither, or a pass between breaks it.
    """

    def __init__(self, *passes: Pass, given: Iterable[str] = ()) -> None:
        holds = set(given)
        for each in passes:
            for fact in each.requires:
                if fact not in holds:
                    raise PipelineError(
                        f"pass {each.name!r} requires: {fact}; no pass before it ensures that"
                    )
            holds = (holds - set(each.breaks)) | set(each.ensures)
        self.passes = passes
        self.ensures = frozenset(holds)

    def __call__(self, gm: GraphModule, done: Callable[[str], None] = lambda name: None) -> PassResult:
        """Run every pass; ``done`` is called with the name of each that has run."""
        modified = False
        for each in self.passes:
            modified |= each.call(gm)
            done(each.name)
        return PassResult(gm, modified)

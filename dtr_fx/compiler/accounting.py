"""One budget for the graphs of a step that hold memory side by side.

After a graph break, or with two forward passes before a backward pass, several compiled graphs have saved
what their backward passes will read.  A ``Ledger`` knows what that is, so that the next graph is planned for
what is left.  It keeps books by thread, for a budget in bytes:

    Books
      ├─ held       bytes that other graphs hold now: saved, and parameters with their gradients
      ├─ course     the graphs that ran since nothing was held: the forward half of a step
      └─ share      how much of what it would like each graph of a course gets, learned from the last one

The first time that a course is seen, its graphs are planned one after the other, each for what is left, and a
late one may find too little: it then exceeds the budget, with a warning.  From the second time on all of them
get the same share of what they would like above their inputs, the largest that fits.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from dtr_fx.passes.storages import storage_bytes
from dtr_fx.planning.options import BudgetSpec, Options, parse_budget
from dtr_fx.torch_private import is_compiled_step, pytree, saved_tensors, top_saved_tensors_hooks

_HALVINGS = 30
_LONGEST = 256  # graphs in a course, after which it counts as ended
_MOST_KNOWN = 4096  # courses, after which all are forgotten and learned again


@dataclass(frozen=True)
class Need:
    """Bytes that a compiled graph takes: its inputs, its peak as it is, the least that works, and its plan.

    ``key`` is the same for whatever is compiled from one graph for one tuple of sizes.
    """

    key: Hashable
    inputs: int
    whole: int
    least: int
    planned: int

    def saved(self, share: float) -> int:
        """The bytes that the graph may save at a share of what it would like above its inputs."""
        return int(share * (self.whole - self.inputs))

    def peak(self, share: float) -> int:
        """The bytes that it then is to have while it runs.

        What is not saved is there again, in parts, while the backward pass runs: the less is saved the more
        that is beside it.  The root is the compromise of checkpointing every √n-th value.
        """
        return max(self.least, self.inputs + int(math.sqrt(share) * (self.whole - self.inputs)))


@dataclass(frozen=True)
class _Entry:
    """A graph in a course, with bytes of its inputs.

    ``shared`` are those that others hold, ``carried`` those that are there for its sake, and ``parameters``
    those of its parameters and their gradients.
    """

    need: Need
    shared: int
    carried: int
    parameters: int


class Ledger:
    """A budget in bytes that several graphs share; each thread has books of its own."""

    def __init__(self, budget: int, options: Mapping[str, Any] | None) -> None:
        self._budget = budget
        self._options = options  # whose identity stays theirs as long as this lives
        self._local = threading.local()

    @property
    def books(self) -> Books:
        """Those of this thread."""
        if not hasattr(self._local, "books"):
            self._local.books = Books(self._budget)
        return cast(Books, self._local.books)


def ledger_of(given: Mapping[str, Any] | None, options: Options) -> Ledger | None:
    """The ledger of all graphs compiled with one object of options; None if their budget is not in bytes.

    ``torch.compile`` hands the same object over for each graph of a model, and models with the same object
    share a budget.
    """
    spec = parse_budget(options.budget)
    if spec.kind != "bytes":
        return None
    with _LOCK:
        key = id(given), int(spec.value)
        ledger = _LEDGERS.get(key)
        if ledger is None:
            ledger = _LEDGERS[key] = Ledger(int(spec.value), given)
        return ledger


_LEDGERS: weakref.WeakValueDictionary[tuple[int, int], Ledger] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


class Books:
    """What the graphs of one ledger hold, in one thread."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._saved: list[weakref.ref[Any]] = []
        self._parameters: dict[StorageWeakRef, int] = {}
        self._course: list[_Entry] = []
        self._learned: list[_Entry] = []
        self._known: dict[tuple[Hashable, ...], _Entry] = {}
        self._shares: dict[Hashable, float] = {}
        self._divided: dict[Hashable, float] = {}

    def begin(self) -> None:
        """A graph is about to run; if nothing is held, a new course starts with it."""
        self._saved = [reference for reference in self._saved if _saved_by(reference())]
        if not self._saved:
            self._divide()
        if not self._saved or len(self._course) >= _LONGEST:
            self._course = []

    def recall(self, need: Need) -> bool:
        """Whether the course goes on as it did before, with a plan that was found right."""
        entry = self._known.get(self._path(need))
        if entry is None or entry.need is not need:
            return False
        self._course.append(entry)
        return True

    def held(self, arguments: Sequence[Any]) -> int:
        """Bytes that other graphs hold on the device, besides the arguments."""
        self._learn_parameters(arguments)
        given = set(_storages(arguments, _device_of(arguments)))
        others = {**self._saved_bytes(_device_of(arguments)), **self._parameters}
        return sum(nbytes for reference, nbytes in others.items() if reference not in given)

    def is_right(self, need: Need, left: int) -> bool:
        """Whether a plan does with what is left, or nearly if it may, and saves as its share allows."""
        if self._share(need) < self._divided.get(need.key, 1.0):
            return False
        return need.planned <= left or (need.least > left and self.may_exceed())

    def allowance(self, need: Need, left: int) -> BudgetSpec:
        """What to plan a graph anew for."""
        share = self._divided[need.key] = self._share(need)
        return BudgetSpec("bytes", left, need.saved(share) if share < 1 else None)

    def _share(self, need: Need) -> float:
        start = self._course[0].need if self._course else need
        return self._shares.get(start.key, 1.0)

    def may_exceed(self) -> bool:
        """Whether a graph that finds too little may go on: once, since the next such course is divided."""
        return bool(self._course) and self._course[0].need.key not in self._shares

    def enter(self, need: Need, arguments: Sequence[Any]) -> None:
        """The graph runs next, by a plan that was found right."""
        device = _device_of(arguments)
        given = _storages(arguments, device)
        shared = sum(given.get(reference, 0) for reference in self._saved_bytes(device))
        parameters = given.keys() & self._parameters.keys()
        carried = sum(given.values()) - shared - sum(given[reference] for reference in parameters)
        entry = _Entry(need, shared, carried, sum(self._parameters[reference] for reference in parameters))
        if max(len(self._known), len(self._shares), len(self._divided)) > _MOST_KNOWN:
            self._forget()
        self._known[self._path(need)] = entry
        self._course.append(entry)

    def note(self, outputs: Any, arguments: Sequence[Any]) -> None:
        """The graph ran: remember what it saved, unless somebody else keeps that."""
        node = None if _are_saved_elsewhere() else _compiled_node(outputs, arguments)
        if node is not None:
            self._saved.append(weakref.ref(node))

    def _path(self, need: Need) -> tuple[Hashable, ...]:
        return (*(entry.need.key for entry in self._course), need.key)

    def _saved_bytes(self, device: torch.device) -> dict[StorageWeakRef, int]:
        saved = [_saved_by(reference()) for reference in self._saved]
        return _storages([tensor for tensors in saved for tensor in tensors], device)

    def _learn_parameters(self, arguments: Sequence[Any]) -> None:
        """Parameters, and as much again for the gradient of each."""
        self._parameters = {ref: size for ref, size in self._parameters.items() if not ref.expired()}
        device = _device_of(arguments)
        before = sum(self._parameters.values())
        for argument in arguments:
            if isinstance(argument, nn.Parameter):
                [(reference, nbytes)] = _storages([argument], device).items()
                self._parameters[reference] = nbytes * (2 if argument.requires_grad else 1)
        if sum(self._parameters.values()) > before:
            self._known.clear()  # plans were right beside fewer

    def _forget(self) -> None:
        self._known.clear()
        self._shares.clear()
        self._divided.clear()

    def _divide(self) -> None:
        """Learn from the course that ended which share its graphs may have."""
        if len(self._course) < 2 or self._course == self._learned:
            return
        self._learned = self._course
        start = self._course[0].need.key
        share = _largest_share(self._course, self.budget, sum(self._parameters.values()))
        if share < self._shares.get(start, 1.0):
            self._shares[start] = share
            self._known.clear()


def _largest_share(course: Sequence[_Entry], budget: int, parameters: int) -> float:
    """The largest share, the same for all graphs of a course, with which each fits beside those before it."""
    low, high = 0.0, 1.0
    if _fits(course, budget, parameters, high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _fits(course, budget, parameters, middle) else (low, middle)
    return low


def _fits(course: Sequence[_Entry], budget: int, parameters: int, share: float) -> bool:
    saved = 0
    for entry in course:
        elsewhere = parameters - entry.parameters + saved - entry.shared
        if elsewhere + entry.need.peak(share) > budget:
            return False
        saved += entry.carried + entry.need.saved(share)
    return True


def _storages(values: Iterable[Any], device: torch.device) -> dict[StorageWeakRef, int]:
    """Bytes of the tensors' storages; a storage that several share counts once."""
    found = {}
    for value in values:
        if isinstance(value, Tensor):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # it has no storage
                found[StorageWeakRef(value.untyped_storage())] = storage_bytes(value, device)
    return found


def _device_of(arguments: Iterable[Any]) -> torch.device:
    devices = [argument.device for argument in arguments if isinstance(argument, Tensor)]
    accelerators = (device for device in devices if device.type not in ("cpu", "meta"))
    return next(accelerators, torch.device("cpu"))


def _are_saved_elsewhere() -> bool:
    """Whether hooks take what is saved: to look at it would make a checkpoint's region run again."""
    return top_saved_tensors_hooks(True) is not None


def _compiled_node(outputs: Any, arguments: Sequence[Any]) -> Any:
    """The node of a compiled step in autograd's graph; None where it has no backward pass."""
    earlier = {node for made in _made(arguments) for node in _ancestors(made)}
    for made in _made(pytree.tree_leaves(outputs)):
        for node in _ancestors(made):
            if node not in earlier and is_compiled_step(node):
                return node
    return None


def _made(values: Iterable[Any]) -> Iterator[Any]:
    """What made the tensors, by autograd."""
    return (value.grad_fn for value in values if isinstance(value, Tensor) and value.grad_fn is not None)


def _ancestors(node: Any) -> Iterator[Any]:
    """The node and, as outputs may be views of what a step returns, two generations before it."""
    generation = [node]
    for _ in range(3):
        yield from generation
        generation = [before for node in generation for before, _ in node.next_functions if before]


def _saved_by(node: Any) -> Sequence[Tensor]:
    """The tensors that wait for the backward pass of a node: none when it ran."""
    try:
        return () if node is None else saved_tensors(node)
    except RuntimeError:  # they are freed
        return ()

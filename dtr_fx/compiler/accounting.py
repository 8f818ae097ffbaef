"""One budget for the graphs of a step that hold memory side by side.

After a graph break, or with two forward passes before a backward pass, several compiled graphs have saved
tensors for their backward passes: the next graph is planned for what these leave.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from dtr_fx.passes.tensors import storage_bytes
from dtr_fx.planning.options import Budget, Options
from dtr_fx.torch_private import is_compiled_step, pytree, saved_tensors, top_saved_tensors_hooks

_HALVINGS = 30
_LONGEST = 256  # graphs in a sequence, after which it counts as ended
_MOST_KNOWN = 4096  # sequences, after which all are forgotten and learned again

_SHARED: weakref.WeakValueDictionary[tuple[int, int], StepAccounting] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Need:
    """The bytes of a compiled graph: inputs, unconstrained peak, smallest budget, planned peak.

    ``key`` is the same for whatever is compiled from one graph for one tuple of sizes.
    """

    key: Hashable
    inputs: int
    unconstrained: int
    smallest: int
    planned: int

    def saved_at(self, fraction: float) -> int:
        """The bytes that the graph may save at a fraction of what it would like above its inputs."""
        return int(fraction * (self.unconstrained - self.inputs))

    def peak_at(self, fraction: float) -> int:
        """The bytes that it then is to have while it runs.

        What is not saved is there again, in parts, while the backward pass runs: the less is saved the more
        that is.  The root is the compromise of checkpointing every √n-th value.
        """
        above = math.sqrt(fraction) * (self.unconstrained - self.inputs)
        return max(self.smallest, self.inputs + int(above))


@dataclass(frozen=True)
class _Run:
    """A graph in a sequence, with bytes of its inputs.

    ``saved_by_others`` are those that earlier graphs hold, too, ``own`` those there for its sake, and
    ``parameters`` those of its parameters and their gradients.
    """

    need: Need
    saved_by_others: int
    own: int
    parameters: int


class _Saver:
    """A node of autograd's graph that saved tensors, and whether its backward pass has started."""

    def __init__(self, node: Any) -> None:
        self.node = weakref.ref(node)
        self.started = False
        node.register_prehook(self._start)

    def _start(self, _: Any) -> None:
        self.started = True


@dataclass(frozen=True)
class _Doubt:
    """What was learned from a sequence that broke off: its graphs, and the fractions before."""

    path: tuple[Hashable, ...]
    fractions: dict[Hashable, float]


def shared_accounting(given: Mapping[str, Any] | None, options: Options) -> StepAccounting | None:
    """The accounting of all graphs compiled with one object of options; None if its budget is not in bytes.

    ``torch.compile`` hands the same object over for each graph of a model, and models with the same object
    share a budget.
    """
    budget = options.budget
    if budget.kind != "bytes":
        return None
    with _LOCK:
        return _SHARED.setdefault((id(given), int(budget.value)), StepAccounting(budget, given))


class StepAccounting(threading.local):
    """The memory that the graphs of one shared budget hold; each thread has its own.

    ``held`` are bytes that other graphs hold now: saved tensors, and parameters with their gradients.  A
    sequence is the graphs that ran since nothing was held, the forward half of a step.  The first time that
    it is seen, its graphs are planned one after the other, each for what is left, and a late one may find too
    little: it then exceeds the budget, with a warning.  From the second time on all of them get the same
    fraction of what they would like above their inputs, the largest that fits.

    A sequence broke off if a forward pass of its raised, or a backward pass did not come to its end.  Unless
    the next sequence is the same, what was learned from it is forgotten, and its graphs are planned anew.
    """

    def __init__(self, budget: Budget, options: Mapping[str, Any] | None) -> None:
        self.budget = budget
        self.nbytes = int(budget.value)
        self._options = options  # whose identity stays theirs as long as this lives
        self._savers: list[_Saver] = []
        self._parameters: dict[StorageWeakRef, int] = {}
        self._sequence: list[_Run] = []
        self._learned_from: list[_Run] = []
        self._known: dict[tuple[Hashable, ...], _Run] = {}
        self._fractions: dict[Hashable, float] = {}  # by the first graph of a sequence
        self._planned_at: dict[Hashable, float] = {}  # by graph; infinite if it is to be planned anew
        self._runs = self._broke_off = False
        self._doubt: _Doubt | None = None

    def start_graph(self) -> None:
        """A graph is about to run; if nothing is held, a new sequence starts with it."""
        held = [saver for saver in self._savers if _saved_by(saver.node())]
        # Of a backward pass that ends, what was saved is freed.
        self._broke_off |= self._runs or any(saver.started == (saver in held) for saver in self._savers)
        self._savers, self._runs = held, True
        if not held:
            self._forget_if_unlike()
            self._learn_fraction()
        if not held or len(self._sequence) >= _LONGEST:
            self._sequence, self._broke_off = [], False

    def continues(self, need: Need) -> bool:
        """Add a graph whose plan was found right in this place before; False if there is none."""
        run = self._known.get(self._path(need))
        if run is None or run.need is not need:
            return False
        self._sequence.append(run)
        return True

    def held(self, arguments: Sequence[Any]) -> int:
        """Bytes that other graphs hold on the device, the arguments apart."""
        self._learn_parameters(arguments)
        device = _device_of(arguments)
        others = {**self._saved_bytes(device), **self._parameters}
        return sum(others[storage] for storage in others.keys() - _storages(arguments, device).keys())

    def is_right(self, need: Need, left: int) -> bool:
        """True if a plan does with what is left, or nearly if it may, and saves as its fraction allows."""
        if self._fraction(need) < self._planned_at.get(need.key, 1.0):
            return False
        return need.planned <= left or (need.smallest > left and self.may_exceed())

    def budget_for(self, need: Need, left: int) -> Budget:
        """The budget to plan a graph anew for."""
        fraction = self._planned_at[need.key] = self._fraction(need)
        return replace(self.budget, value=left, saved=need.saved_at(fraction) if fraction < 1 else None)

    def may_exceed(self) -> bool:
        """True if a graph that finds too little may go on: once, since the next such sequence is divided."""
        return bool(self._sequence) and self._sequence[0].need.key not in self._fractions

    def add(self, need: Need, arguments: Sequence[Any]) -> None:
        """The graph runs next, by a plan that was found right."""
        device = _device_of(arguments)
        given = _storages(arguments, device)
        saved = sum(given.get(storage, 0) for storage in self._saved_bytes(device))
        parameters = given.keys() & self._parameters.keys()
        own = sum(given.values()) - saved - sum(given[storage] for storage in parameters)
        run = _Run(need, saved, own, sum(self._parameters[storage] for storage in parameters))
        if max(len(self._known), len(self._fractions), len(self._planned_at)) > _MOST_KNOWN:
            for learned in (self._known, self._fractions, self._planned_at):
                learned.clear()
        self._known[self._path(need)] = run
        self._sequence.append(run)

    def end_graph(self, outputs: Any, arguments: Sequence[Any], earlier: Collection[Any]) -> None:
        """The graph ran: remember what it saved, unless hooks keep that: looking would run a region again."""
        self._runs = False
        is_hooked = top_saved_tensors_hooks(True) is not None
        node = None if is_hooked else compiled_node(outputs, arguments, earlier)
        if node is not None:
            self._savers.append(_Saver(node))

    def _fraction(self, need: Need) -> float:
        first = self._sequence[0].need if self._sequence else need
        return self._fractions.get(first.key, 1.0)

    def _path(self, need: Need) -> tuple[Hashable, ...]:
        return (*self._graphs, need.key)

    @property
    def _graphs(self) -> tuple[Hashable, ...]:
        return tuple(run.need.key for run in self._sequence)

    def _saved_bytes(self, device: torch.device) -> dict[StorageWeakRef, int]:
        return _storages((tensor for saver in self._savers for tensor in _saved_by(saver.node())), device)

    def _learn_parameters(self, arguments: Sequence[Any]) -> None:
        """Parameters, and as much again for the gradient of each."""
        self._parameters = {ref: size for ref, size in self._parameters.items() if not ref.expired()}
        device = _device_of(arguments)
        before = sum(self._parameters.values())
        for argument in arguments:
            if isinstance(argument, nn.Parameter):
                [(storage, nbytes)] = _storages([argument], device).items()
                self._parameters[storage] = nbytes * (2 if argument.requires_grad else 1)
        if sum(self._parameters.values()) > before:
            self._known.clear()  # plans were right beside fewer

    def _forget_if_unlike(self) -> None:
        """Forget what is in doubt, unless the sequence that ended is what it was learned from, once more."""
        doubt, self._doubt = self._doubt, None
        if doubt is not None and doubt.path != self._graphs:
            self._fractions = doubt.fractions
            self._planned_at.update(dict.fromkeys(doubt.path, math.inf))
            self._known.clear()
            self._learned_from = []

    def _learn_fraction(self) -> None:
        """Learn from the sequence that ended which fraction its graphs may have."""
        if len(self._sequence) < 2 or self._sequence == self._learned_from:
            return
        self._learned_from = self._sequence
        if self._broke_off and any(run.need.planned < run.need.unconstrained for run in self._sequence):
            self._doubt = _Doubt(self._graphs, dict(self._fractions))
        first = self._sequence[0].need.key
        parameters = sum(self._parameters.values())
        fraction = _largest_fraction(self._sequence, self.nbytes, parameters)
        if fraction < self._fractions.get(first, 1.0):
            self._fractions[first] = fraction
            self._known.clear()


def _largest_fraction(sequence: Sequence[_Run], budget: int, parameters: int) -> float:
    """The largest fraction, the same for all graphs, with which each fits beside those before it."""

    def fits(fraction: float) -> bool:
        saved = 0
        for run in sequence:
            elsewhere = parameters - run.parameters + saved - run.saved_by_others
            if elsewhere + run.need.peak_at(fraction) > budget:
                return False
            saved += run.own + run.need.saved_at(fraction)
        return True

    low, high = 0.0, 1.0
    if fits(high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _storages(values: Iterable[Any], device: torch.device) -> dict[StorageWeakRef, int]:
    """Bytes of the tensors' storages; a storage that several share counts once."""
    found = {}
    for value in values:
        if isinstance(value, Tensor):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # it has no storage
                found[StorageWeakRef(value.untyped_storage())] = storage_bytes(value, device)
    return found


def _device_of(arguments: Iterable[Any]) -> torch.device:
    """The first accelerator among the arguments' devices, else the CPU."""
    devices = [argument.device for argument in arguments if isinstance(argument, Tensor)]
    accelerators = (device for device in devices if device.type not in ("cpu", "meta"))
    return next(accelerators, torch.device("cpu"))


def compiled_node(outputs: Any, arguments: Sequence[Any], earlier: Collection[Any]) -> Any:
    """The node of a compiled step in autograd's graph; None where it has no backward pass.

    ``earlier`` are the makers of its arguments, some of which it may have written.
    """
    made = makers([*pytree.tree_leaves(outputs), *arguments])
    return next((node for node in made if node not in earlier and is_compiled_step(node)), None)


def makers(values: Iterable[Any]) -> Iterator[Any]:
    """What made tensors, in autograd's graph, and, as they may be views, two generations before it."""
    for value in values:
        generation = [value.grad_fn] if isinstance(value, Tensor) and value.grad_fn is not None else []
        for _ in range(3):
            yield from generation
            generation = [before for node in generation for before, _ in node.next_functions if before]


def _saved_by(node: Any) -> Sequence[Tensor]:
    """The tensors that wait for the backward pass of a node: none when it ran."""
    try:
        return () if node is None else saved_tensors(node)
    except RuntimeError:  # they are freed
        return ()

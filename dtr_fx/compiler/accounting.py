"""One budget for the graphs of a step that hold memory side by side.

After a graph break, or with two forward passes before a backward pass, several compiled graphs have saved
tensors for their backward passes: the next graph is planned for what these leave.  A share is of the peak
that all of them together would have.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dtr_fx.compiler.parameters import Parameters, device_of, storages
from dtr_fx.planning.options import Budget, Options, Others, resolve_budget
from dtr_fx.torch_private import is_compiled_step, pytree, saved_tensors, top_saved_tensors_hooks

_HALVINGS = 30
_LONGEST = 256  # graphs in a sequence, after which it counts as ended
_MOST_KNOWN = 4096  # sequences, after which all are forgotten and learned again

_Key: TypeAlias = "tuple[int, Hashable]"  # a graph's number, and sizes

_SHARED: weakref.WeakSet[StepAccounting] = weakref.WeakSet()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Need:
    """The bytes of a compiled graph: inputs, unconstrained peak, what it then saves, and planned peak.

    It needs ``smallest``, as far as is known.  ``key`` is the same for whatever is compiled from one graph
    for one tuple of sizes.
    """

    key: _Key
    inputs: int
    unconstrained: int
    saved: int
    smallest: int
    planned: int

    def saved_at(self, fraction: float) -> int:
        """The bytes that the graph may save at a fraction of what it saves unconstrained."""
        return int(fraction * self.saved)

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

    ``saved_by_others`` are those that earlier graphs hold, too, ``own`` those there for its sake, with those
    of the outputs that it saves.  ``family`` is what it was compiled with, ``parameters`` are its own.
    """

    need: Need
    family: int
    saved_by_others: int
    own: int
    parameters: frozenset[StorageWeakRef]


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


def shared_accounting(options: Options) -> StepAccounting | None:
    """The accounting of all graphs compiled with equal options, or under one name, if they share a budget."""
    budget = options.budget
    if budget.kind not in ("bytes", "fraction") or not options.limits:
        return None
    with _LOCK:
        for accounting in _SHARED:
            if accounting.covers(options):
                return accounting
        accounting = StepAccounting(options)
        _SHARED.add(accounting)
        return accounting


class StepAccounting(threading.local):
    """The memory that the graphs of one shared budget hold; each thread has its own.

    Other graphs hold saved tensors, and parameters with their gradients.  A sequence is the graphs that ran
    since nothing was held, the forward half of a step.  The first time that it is seen, its graphs are
    planned one after the other, each for what is left, and a late one may find too little: it then exceeds
    the budget, with a warning.  From the second time on all of them get the same fraction of what they would
    save, the largest that fits.

    Under ``strict`` no step exceeds it: the graphs of a new sequence save as little as they can.

    A sequence broke off if a forward pass of its raised, or a backward pass did not come to its end.  Unless
    the next sequence is the same, what was learned from it is forgotten, and its graphs are planned anew.

    A family is the graphs compiled with one object of options.  Copies are other families, which join when
    their graphs meet in a sequence.  In a budget in bytes all parameters of a family count, in a share those
    of the sequence.
    """

    def __init__(self, options: Options) -> None:
        self.budget = options.budget
        self._options = options
        self._savers: list[_Saver] = []
        self._families: list[object] = []  # objects of options: their families have their places as numbers
        self._joined: dict[int, int] = {}  # a family, and the one that it joined
        self._parameters: defaultdict[int, Parameters] = defaultdict(Parameters)  # by family or first graph
        self._every_parameter = Parameters()
        self._gradients = 0  # that were there when the sequence began
        self._peaks: dict[Hashable, int] = {}  # unconstrained, by the first graph of a sequence that ended
        self._largest: Counter[int] = Counter()  # of these with a backward pass, by family
        self._early: list[_Run] = []  # graphs without one that ran before the first of these came to its end
        self._before = 0  # of these, of graphs without a backward pass that the sequence follows
        self._sequence: list[_Run] = []
        self._sequences = 0  # that began
        self._learned_from: list[_Run] = []
        self._known: dict[tuple[Hashable, ...], _Run] = {}
        self._fractions: dict[Hashable, float] = {}  # by the first graph of a sequence
        self._planned_at: dict[Hashable, float] = {}  # by graph; infinite if it is to be planned anew
        self._runs = self._broke_off = self._is_added = self._exceeded = self._is_part = False
        self._device = torch.device("cpu")
        self._doubt: _Doubt | None = None

    def covers(self, options: Options) -> bool:
        """True if graphs with these options share this budget."""
        own = self._options
        if own.ledger is None and options.ledger is None:
            return own == options
        return own.ledger == options.ledger and own.budget == options.budget

    def start_graph(self) -> None:
        """A graph is about to run; if nothing is held, a new sequence starts with it."""
        held = [saver for saver in self._savers if _saved_by(saver.node())]
        # Of a backward pass that ends, what was saved is freed.
        self._broke_off |= self._runs or any(saver.started == (saver in held) for saver in self._savers)
        self._savers, self._runs = held, True
        if not held:
            self._sequences += 1
            self._forget_if_unlike()
            self._learn_fraction()
            goes_on = self._sequence and self._is_part and not any(run.need.saved for run in self._sequence)
            self._before = self._peaks.get(self._sequence[0].need.key, 0) if goes_on else 0
        if not held or len(self._sequence) >= _LONGEST:
            self._sequence, self._broke_off, self._exceeded = [], False, False
            self._gradients = self._every_parameter.gradients

    @property
    def is_early(self) -> bool:
        """True in the first two sequences, the one that plans as it goes and the one that divides."""
        return self._sequences <= 2

    def continues(self, need: Need) -> bool:
        """Add a graph whose plan was found right in this place before; False if there is none."""
        run = self._known.get(self._path(need))
        if run is None or run.need is not need:
            return False
        self._sequence.append(run)
        self._is_added = False
        return True

    def others(self, key: _Key, given: object, arguments: Sequence[Any], *, is_part: bool) -> Others:
        """What other graphs hold on the device, the arguments apart, beside the graph that is to run.

        It was compiled with the ``given`` object of options, and ``is_part`` of more if others are to come.
        """
        self._is_part = is_part or bool(self._sequence)
        parameters = self._parameters[self._group(key, self._family(given))]
        self._every_parameter.learn(arguments)
        if parameters.learn(arguments):
            self._known.clear()  # plans were right beside fewer
        device = device_of(arguments)
        saved, own = self._saved_bytes(device), storages(arguments, device)
        elsewhere = parameters.elsewhere(own.keys(), self._later(key), device)
        saved = {storage: saved[storage] for storage in saved.keys() - parameters.among(saved.keys())}
        held = elsewhere + sum(saved[storage] for storage in saved.keys() - own.keys())
        first = self._first(key)
        if self.budget.kind == "bytes":
            return Others(held, peak=self._peaks.get(first, 0))
        counted_twice = sum(saved[storage] for storage in saved.keys() & own.keys())
        unconstrained = _saved_at(self._sequence, 1.0) - counted_twice
        peak = _peak_at(1.0, self._sequence, _beside(self._sequence, parameters, device))
        peak = max(peak, self._peaks.get(first, 0), self._before)
        largest = self._largest[self._family(given)]
        return Others(held, max(0, elsewhere + unconstrained), peak, largest, self._is_part)

    def _later(self, key: _Key) -> Set[StorageWeakRef]:
        """The parameters of the graphs that came after this one the last time."""
        before, last = (*self._graphs, key), self._learned_from
        if tuple(run.need.key for run in last[: len(before)]) != before:
            return frozenset()
        return frozenset().union(*(run.parameters for run in last[len(before) :]))

    def first_budget(self, key: _Key, others: Others) -> Budget:
        """The budget of a graph that is planned for the first time."""
        if self._fraction(key) > 0:
            return replace(self.budget, others=others)
        self._planned_at[key] = 0.0
        return replace(self.budget, others=others, saved=0)

    def is_right(self, need: Need, others: Others, *, is_new: bool) -> bool:
        """True if a plan does with what is left, or nearly if it may, and saves as its fraction allows.

        One that ``is_new`` was made for what is left.
        """
        fraction, planned_at = self._fraction(need.key), self._planned_at.get(need.key, 1.0)
        if fraction < planned_at or (planned_at == 0 and fraction > 0):
            return False
        if is_new:
            return True
        others = others if need.saved else others.of_largest_step
        left = resolve_budget(replace(self.budget, others=others), need.unconstrained)
        return need.planned <= left or (need.smallest > left and self.may_exceed(need.key))

    def budget_for(self, need: Need, others: Others) -> Budget:
        """The budget to plan a graph anew for."""
        fraction = self._planned_at[need.key] = self._fraction(need.key)
        saved = need.saved_at(fraction) if fraction < 1 else None
        return replace(self.budget, others=others, saved=saved)

    def may_exceed(self, key: _Key, *, is_news: bool = False) -> bool:
        """True if a graph that finds too little may go on: once, since the next such sequence is divided.

        So may one of which it ``is_news`` how much it needs.  Of a share so may all that are part of a new
        sequence: what comes makes the budget larger.
        """
        first = self._first(key)
        if self._is_part and self.budget.kind == "fraction" and first not in self._peaks:
            return True
        if self._options.strict:
            return False
        return is_news or (bool(self._sequence) and first not in self._fractions)

    def is_first_excess(self) -> bool:
        """True the first time that this is asked in a sequence."""
        is_first, self._exceeded = not self._exceeded, True
        return is_first

    def add(self, need: Need, given: object, arguments: Sequence[Any]) -> None:
        """The graph runs next, by a plan that was found right."""
        family = self._family(given)
        device = device_of(arguments)
        own = storages(arguments, device)
        parameters = self._parameters[self._group(need.key, family)].among(own.keys())
        other = own.keys() - parameters
        saved = sum(own[storage] for storage in other & self._saved_bytes(device).keys())
        run = _Run(need, family, saved, sum(own[storage] for storage in other) - saved, parameters)
        learned: list[dict[Any, Any]] = [self._known, self._fractions, self._planned_at, self._peaks]
        if max(map(len, learned)) > _MOST_KNOWN:
            for each in learned:
                each.clear()
        self._sequence.append(run)
        self._is_added, self._device = True, device
        self._know(run)
        if self._is_part and not need.saved and not self._largest[family]:
            self._early.append(run)

    def _know(self, run: _Run) -> None:
        """Remember what the last graph of the sequence takes."""
        self._sequence[-1] = run
        path = (self._gradients, *self._graphs)
        self._known[path] = run

    def end_graph(self, node: Any, outputs: Any, arguments: Sequence[Any]) -> None:
        """The graph ran, as a ``compiled_node``: remember what it saved.

        Not if hooks keep that: looking would run a region again.
        """
        self._runs = False
        if node is None or top_saved_tensors_hooks(True) is not None:
            return
        self._savers.append(_Saver(node))
        if self._is_added:
            run, device = self._sequence[-1], device_of(arguments)
            given, made = (storages(each, device) for each in (arguments, pytree.tree_leaves(outputs)))
            saved = storages(_saved_by(node), device).keys() & (made.keys() - given.keys())
            self._know(replace(run, own=run.own + sum(made[storage] for storage in saved)))

    def _fraction(self, key: _Key) -> float:
        """Of what a graph would save; in a sequence that is new and must not exceed the budget, nothing."""
        first = self._first(key)
        must_fit = self._options.strict and self._is_part and first not in self._peaks
        return self._fractions.get(first, 0.0 if must_fit else 1.0)

    def _first(self, key: _Key) -> _Key:
        """The first graph of the sequence that a graph is to run in."""
        return self._sequence[0].need.key if self._sequence else key

    def _path(self, need: Need) -> tuple[Hashable, ...]:
        return (self._gradients, *self._graphs, need.key)

    @property
    def _graphs(self) -> tuple[Hashable, ...]:
        return tuple(run.need.key for run in self._sequence)

    def _saved_bytes(self, device: torch.device) -> dict[StorageWeakRef, int]:
        return storages((tensor for saver in self._savers for tensor in _saved_by(saver.node())), device)

    def _family(self, given: object) -> int:
        known = self._families
        at = next((at for at, each in enumerate(known) if each is given), len(known))
        if at == len(known):
            known.append(given)
        return at

    def _group(self, key: _Key, family: int) -> int:
        """Whose parameters are counted together, of the sequence that a graph is to run in."""
        if self.budget.kind == "fraction":
            number, _ = self._first(key)
            return number
        if self._sequence:
            self._join(family, self._sequence[0].family)
        return self._joined.get(family, family)

    def _join(self, family: int, other: int) -> None:
        family, other = (self._joined.get(each, each) for each in (family, other))
        if family != other:
            for each in (family, *(old for old, new in self._joined.items() if new == family)):
                self._joined[each] = other
            self._parameters[other].update(self._parameters.pop(family, Parameters()))

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
        if not self._sequence or self._sequence == self._learned_from:
            return
        self._learned_from = self._sequence
        start = self._sequence[0]
        first, group = start.need.key, self._parameters[self._group(start.need.key, start.family)]
        beside = _beside(self._sequence, group, self._device)
        peak = _peak_at(1.0, self._sequence, beside)
        self._peaks[first] = max(peak, self._peaks.get(first, 0), self._before)
        budget = resolve_budget(replace(self.budget, others=Others(peak=self._peaks[first])), 0)
        if any(run.need.saved for run in self._sequence):
            self._largest[start.family] = max(self._largest[start.family], self._peaks[first])
            self._check_early(start.family)
        if len(self._sequence) < 2:
            if start.need.saved and start.need.planned > budget:  # it was taken for a part, and is alone
                self._known.clear()
            return
        if self._broke_off and any(run.need.planned < run.need.unconstrained for run in self._sequence):
            self._doubt = _Doubt(self._graphs, dict(self._fractions))
        fraction = _largest_fraction(self._sequence, budget, beside)
        if fraction < self._fractions.get(first, 1.0):
            self._fractions[first] = fraction
            self._known.clear()

    def _check_early(self, family: int) -> None:
        """Plan graphs anew whose share was not known, if they turn out to be above it: then it is told."""
        early = [run.need.planned for run in self._early if run.family == family]
        self._early = [run for run in self._early if run.family != family]
        peak = max([self._largest[family], *early])
        if max(early, default=0) > resolve_budget(replace(self.budget, others=Others(peak=peak)), 0):
            self._known.clear()


def _largest_fraction(sequence: Sequence[_Run], budget: int, beside: Sequence[int]) -> float:
    """The largest fraction, the same for all graphs, with which each fits beside those before it."""
    low, high = 0.0, 1.0
    if _peak_at(high, sequence, beside) <= budget:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = _peak_at(middle, sequence, beside) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def _peak_at(fraction: float, sequence: Sequence[_Run], beside: Sequence[int]) -> int:
    """The peak of graphs of a fraction; each runs ``beside`` parameters, and what those before it save."""
    peak = saved = 0
    for run, parameters in zip(sequence, beside):
        elsewhere = parameters + saved - run.saved_by_others
        peak = max(peak, elsewhere + run.need.peak_at(fraction))
        saved += _saved_at([run], fraction)
    return peak


def _beside(sequence: Sequence[_Run], parameters: Parameters, device: torch.device) -> list[int]:
    """For each graph the bytes of the parameters of others and of their gradients, as it goes backward."""
    later: set[StorageWeakRef] = set()
    found = []
    for run in reversed(sequence):
        found.append(parameters.elsewhere(run.parameters, later, device))
        later |= run.parameters
    return found[::-1]


def _saved_at(sequence: Sequence[_Run], fraction: float) -> int:
    return sum(run.own + run.need.saved_at(fraction) for run in sequence)


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

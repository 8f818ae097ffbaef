"""Every heuristic against its definition (section 4.1, C.2, C.3 and Appendix D).

The properties run random programs and compare what a heuristic is given, at every choice and after every
step, with naive implementations that share nothing with the runtime but its record of events.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import MAX_COST, Driver, programs

from dtr_fx.runtime import HEURISTICS, Heuristic, Runtime, Storage, Tensor, parameterized, random, resolve
from dtr_fx.runtime.steps import BANISH, BUDGET, COMPUTE, DROP
from dtr_fx.tiers.tier import Bandwidth, Tier

budgets = st.integers(6, 16)
many = settings(max_examples=60)


class History:
    """The dependency graph and the evicted storages (C.2), rebuilt from the events alone."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._runtime = driver.runtime
        self._seen = 0
        self.cost: dict[Storage, float] = {}
        self.deps: dict[Storage, set[Storage]] = {}
        self.evicted: set[Storage] = set()
        self._component: dict[Storage, int] = {}
        self._component_cost: dict[int, float] = {}

    def catch_up(self) -> None:
        events = self._runtime.steps
        while self._seen < len(events):
            event = events[self._seen]
            self._seen += 1
            if event.kind == DROP:
                self._evict(self._runtime.storages[event.storage])
            elif event.kind != BANISH:
                self._execute(event.op, first=event.kind == COMPUTE)
        for storage in [storage for storage in self.evicted if storage.retired]:
            self._leave(storage)

    def _execute(self, number: int, *, first: bool) -> None:
        op = self._driver.operators[number]
        for storage in {tensor.storage for tensor in op.outputs}:
            if first:
                self.cost[storage] = self.cost.get(storage, 0) + op.cost
                self.deps.setdefault(storage, set()).update({t.storage for t in op.inputs} - {storage})
            elif storage in self.evicted and storage.root.op is op and not storage.retired:
                self._leave(storage)

    def _leave(self, storage: Storage) -> None:
        """Rematerialized, or dead: the component's cost goes down and nothing else is split (C.2)."""
        self.evicted.remove(storage)
        self._component_cost[self._component.pop(storage)] -= self.cost[storage]

    def _evict(self, storage: Storage) -> None:
        number = len(self._component_cost)
        self._component_cost[number] = self.cost[storage]
        for other in self.neighbors(storage):
            merged = self._component[other]
            if merged != number:
                self._component_cost[number] += self._component_cost[merged]
                for member, component in self._component.items():
                    if component == merged:
                        self._component[member] = number
        self._component[storage] = number
        self.evicted.add(storage)

    def dependents(self, storage: Storage) -> set[Storage]:
        return {other for other, deps in self.deps.items() if storage in deps}

    def neighbors(self, storage: Storage) -> set[Storage]:
        return (self.deps[storage] | self.dependents(storage)) & self.evicted

    def _closure(self, storage: Storage, step: Callable[[Storage], set[Storage]]) -> set[Storage]:
        closure: set[Storage] = set()
        while True:
            frontier = set().union(*(step(one) for one in closure | {storage})) & self.evicted
            if frontier <= closure:
                return closure
            closure |= frontier

    def local(self, storage: Storage) -> float:
        return self.cost[storage]

    def eq(self, storage: Storage) -> float:
        components = {self._component[other] for other in self.neighbors(storage)}
        return self.cost[storage] + sum(self._component_cost[number] for number in components)

    def ancestors(self, storage: Storage) -> float:
        return self.cost[storage] + self._sum(self._closure(storage, self.deps.__getitem__))

    def exact(self, storage: Storage) -> float:
        up = self._closure(storage, self.deps.__getitem__)
        return self.cost[storage] + self._sum(up | self._closure(storage, self.dependents))

    def needed(self, storage: Storage) -> float:
        up = self._closure(storage, self.deps.__getitem__)
        down = {other for other in self._closure(storage, self.dependents) if other.refs}
        return self.cost[storage] + self._sum(up | down)

    def _sum(self, storages: set[Storage]) -> float:
        return sum(self.cost[storage] for storage in storages)


class Probe:
    """A heuristic that checks what it is given before it scores with ``c / (m · s)``."""

    def __init__(self, neighborhood: str, budget: int, **options: object) -> None:
        heuristic = Heuristic("probe", lambda: self.score, neighborhood)
        self.runtime = Runtime(budget, heuristic, max_recompute=MAX_COST, **options)
        self.driver = Driver(self.runtime)
        self.history = History(self.driver)
        self.choices: list[tuple[int, Storage, float]] = []
        self._define = getattr(self.history, neighborhood)

    def score(self, s: np.ndarray, m: np.ndarray, c: np.ndarray) -> np.ndarray:
        self.history.catch_up()
        members = self.runtime._pool.members
        assert list(m) == [storage.size for storage in members]
        assert list(c) == [self._define(storage) for storage in members]
        scores = c / (m * s)
        unlocked = [slot for slot, storage in enumerate(members) if not storage.locks]
        if unlocked:
            best = min(unlocked, key=lambda slot: scores[slot])
            self.choices.append((len(self.runtime.steps), members[best], scores[best]))
        return scores

    def observe(self) -> None:
        """Check the whole pool between two steps, when no choice is made."""
        self.history.catch_up()
        self.runtime._neighborhood.refresh()
        for storage in self.runtime._pool.members:
            assert self.runtime._pool.cost[storage.slot] == self._define(storage)
            assert self.runtime._pool.last_access[storage.slot] == storage.last_access

    def check_choices(self) -> None:
        for position, storage, score in self.choices:
            event = self.runtime.steps[position]
            assert (event.kind, event.reason) == (DROP, BUDGET)
            assert event.storage == storage.id
            assert event.score == score


def _check(neighborhood: str, program: list, budget: int, **options: object) -> None:
    probe = Probe(neighborhood, budget, **options)
    probe.driver.run(program, probe.observe)
    probe.check_choices()


@many
@given(programs(), budgets, st.sampled_from(["eager", "banish", "ignore"]), st.booleans())
@pytest.mark.parametrize("neighborhood", ["exact", "ancestors", "needed", "local"])
def test_cost_is_the_definition(neighborhood, program, budget, deallocation, keep_passed):
    """e*, its two relatives and c alone are, at every moment, what the set definitions say."""
    _check(neighborhood, program, budget, deallocation=deallocation, keep_passed=keep_passed)


@many
@given(programs(), budgets, st.sampled_from(["eager", "ignore"]), st.booleans())
def test_union_find_is_the_history(program, budget, deallocation, keep_passed):
    """ẽ* depends on the order of evictions and rematerializations; a naive union-find replays it.

    Banishing is left out, as in the paper, which does not define ẽ* for banished neighbours (D.2).
    """
    _check("eq", program, budget, deallocation=deallocation, keep_passed=keep_passed)


def test_union_find_forgets_directions_and_keeps_phantom_connections():
    """m feeds c1 and c2; x reads c1 only.  All three evicted, then m rematerialized.

    e*(x) is {c1, m}, and then {c1}.  ẽ*(x) counts c2 from the start, for directions are forgotten, and
    still when m is back and nothing connects c1 with c2: m's cost is subtracted, the set is not split.
    """
    for name, before, after in [("dtr", 1 + 2 + 1, 1 + 2), ("dtr-eq", 1 + 1 + 2 + 4, 1 + 2 + 4)]:
        runtime = Runtime(100, name)
        [m] = runtime.perform_op([runtime.constant(0)], [1], 1.0)
        [c1] = runtime.perform_op([m], [1], 2.0)
        [c2] = runtime.perform_op([m], [1], 4.0)
        [x] = runtime.perform_op([c1], [1], 1.0)
        for tensor in (m, c1, c2):
            evict(runtime, tensor)
        assert cost(runtime, x) == before
        runtime.access(m)
        assert cost(runtime, x) == after


def evict(runtime: Runtime, tensor: Tensor) -> None:
    runtime.perform_eviction(tensor.storage, tensor.op, BUDGET)


def cost(runtime: Runtime, tensor: Tensor) -> float:
    runtime._neighborhood.refresh()
    return float(runtime._pool.cost[tensor.storage.slot])


def test_a_neighborhood_ends_at_what_was_moved_and_counts_its_transfer():
    """x reads b, b reads a; a is moved, b evicted.  Made again, a has no more to do with it."""
    tier = Tier("host", speed=Bandwidth(1.0, 0.5))
    runtime = Runtime(100, "dtr", tier=tier, moves=True)
    [root] = runtime.perform_op([runtime.constant(0)], [1], 8.0)
    [a] = runtime.perform_op([root], [1], 16.0, movable=True)
    [b] = runtime.perform_op([a], [1], 4.0)
    [x] = runtime.perform_op([b], [1], 1.0)
    for tensor in (root, b):
        evict(runtime, tensor)
    assert cost(runtime, x) == 1 + 4
    runtime.move_out(a)
    evict(runtime, a)
    assert cost(runtime, x) == 1 + 4 + 2
    runtime.bring_back(a)
    assert cost(runtime, x) == 1 + 4


def test_one_component_reached_twice_counts_once():
    runtime = Runtime(100, "dtr-eq")
    [a] = runtime.perform_op([runtime.constant(0)], [1], 1.0)
    [b] = runtime.perform_op([a], [1], 2.0)
    [c] = runtime.perform_op([a, b], [1], 4.0)
    evict(runtime, a)
    evict(runtime, b)
    assert cost(runtime, c) == 4 + 1 + 2


@pytest.mark.parametrize("neighborhood", ["exact", "eq", "ancestors", "needed", "local"])
def test_a_view_costs_its_storage_and_binds_it_to_what_it_reads(neighborhood):
    """cost(S) and deps(S) run over all tensors of S (C.2), from the moment the view exists."""
    runtime = Runtime(100, Heuristic("probe", lambda: lambda s, m, c: c, neighborhood))
    [base] = runtime.perform_op([runtime.constant(0)], [1], 1.0)
    [index] = runtime.perform_op([runtime.constant(0)], [1], 2.0)
    evict(runtime, index)
    [view] = runtime.perform_op([base, index], [base], 4.0)
    assert cost(runtime, base) == 1 + 4
    evict(runtime, index)
    assert cost(runtime, base) == 1 + 4 + (2 if neighborhood != "local" else 0)
    evict(runtime, base)
    runtime.access(view)
    assert cost(runtime, index) == 2


def test_a_storage_above_and_below_counts_once():
    """A view of s reads t, which was computed from s: t is both an ancestor and a descendant."""
    runtime = Runtime(100, "dtr")
    [s] = runtime.perform_op([runtime.constant(0)], [1], 1.0)
    [t] = runtime.perform_op([s], [1], 2.0)
    runtime.perform_op([s, t], [s], 4.0)
    evict(runtime, t)
    assert cost(runtime, s) == 1 + 4 + 2


def test_needed_follows_the_references_of_evicted_storages():
    runtime = Runtime(100, "next-use")
    [a] = runtime.perform_op([runtime.constant(0)], [1], 1.0)
    [b] = runtime.perform_op([a], [1], 2.0)
    runtime.perform_op([b], [1], 4.0)
    evict(runtime, b)
    assert cost(runtime, a) == 1 + 2
    runtime.release(b)
    assert cost(runtime, a) == 1
    runtime.retain(b)
    assert cost(runtime, a) == 1 + 2


def test_staleness_is_the_time_since_the_last_reference_by_a_queued_operator():
    """The clock counts every operator that runs (C.4), rematerializations included."""
    seen: list[dict[int, float]] = []

    def score(s, m, c):
        seen.append({storage.id: float(time) for storage, time in zip(runtime._pool.members, s)})
        return c / (m * s)

    runtime = Runtime(3, score)
    x = runtime.constant(0)  # storage 0
    [a] = runtime.perform_op([x], [1], 1.0)  # storage 1, ends at 1
    [b] = runtime.perform_op([a], [1], 2.0)  # reads a at 1, ends at 3
    [c] = runtime.perform_op([b], [1], 4.0)  # reads b at 3, ends at 7
    [d] = runtime.perform_op([c], [1], 8.0)  # reads c at 7
    assert seen[-1] == {1: 6, 2: 4, 3: pytest.approx(0, abs=1e-9)}  # a goes; d ends at 15
    runtime.access(b)
    runtime.perform_op([d], [1], 16.0)
    assert seen[-1] == {2: pytest.approx(0, abs=1e-9), 3: 8, 4: pytest.approx(0, abs=1e-9)}


def test_time_to_the_next_use_runs_on_the_programs_own_cost():
    seen: list[list[float]] = []

    def score(s, m, c):
        seen.append(list(s))
        return 1 / s

    runtime = Runtime(2, Heuristic("belady", lambda: score, "local", "next_use"))
    x = runtime.constant(0)
    [a] = runtime.perform_op([x], [1], 1.0)
    runtime.expect(a, 10.0)
    [b] = runtime.perform_op([x], [1], 2.0)
    runtime.expect(b, np.inf)
    runtime.perform_op([x], [1], 4.0)
    assert seen == [[7.0, np.inf]]
    assert not b.defined
    assert a.defined


arrays = st.lists(st.tuples(*[st.floats(1e-6, 1e6, allow_nan=False)] * 3), min_size=1, max_size=9).map(
    lambda rows: tuple(np.array(rows).T)
)

DEFINITIONS: dict[str, tuple[str, str, Callable]] = {
    "dtr": ("exact", "staleness", lambda s, m, c: c / (m * s)),
    "dtr-eq": ("eq", "staleness", lambda s, m, c: c / (m * s)),
    "dtr-local": ("local", "staleness", lambda s, m, c: c / (m * s)),
    "lru": ("local", "staleness", lambda s, m, c: 1 / s),
    "size": ("local", "staleness", lambda s, m, c: 1 / m),
    "msps": ("ancestors", "staleness", lambda s, m, c: c / m),
    "coop": ("eq", "staleness", lambda s, m, c: c / s),
    "mge": ("eq", "staleness", lambda s, m, c: c / (m * s)),
    "next-use": ("needed", "next_use", lambda s, m, c: c / (m * s)),
    "next-use-root": ("needed", "next_use", lambda s, m, c: c / (m * s**0.5)),
}


def test_every_named_heuristic_is_defined_here():
    assert set(HEURISTICS) == {*DEFINITIONS, "rand"}


@given(arrays)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_formulas(name, smc):
    neighborhood, time, formula = DEFINITIONS[name]
    heuristic = resolve(name)
    assert (heuristic.name, heuristic.neighborhood, heuristic.time) == (name, neighborhood, time)
    scores = heuristic.make_score()(*smc)
    for score, s, m, c in zip(scores, *smc):
        assert score == pytest.approx(formula(float(s), float(m), float(c)))


@given(arrays)
@pytest.mark.parametrize("use_cost", ["exact", "eq", "local", "no"])
@pytest.mark.parametrize("use_size", [True, False])
@pytest.mark.parametrize("use_staleness", [True, False])
def test_parameterized_family(use_staleness, use_size, use_cost, smc):
    if (use_staleness, use_size, use_cost) == (False, False, "no"):
        return  # random: see below
    heuristic = parameterized(staleness=use_staleness, size=use_size, cost=use_cost)
    assert heuristic.neighborhood == ("local" if use_cost == "no" else use_cost)
    scores = heuristic.make_score()(*smc)
    for score, s, m, c in zip(scores, *smc):
        numerator = 1.0 if use_cost == "no" else c
        assert score == pytest.approx(numerator / ((m if use_size else 1) * (s if use_staleness else 1)))


def test_parameterized_family_names_and_members():
    chosen = itertools.product([True, False], [True, False], ["exact", "eq", "local", "no"])
    names = [parameterized(staleness=s, size=m, cost=c).name for s, m, c in chosen]
    assert len(set(names)) == 16
    assert "h'(s, m, eq)" in names
    assert "h'(-, -, no)" in names


def test_parameterized_without_any_information_is_random():
    nothing = parameterized(staleness=False, size=False, cost="no").make_score()
    ones = np.ones(50)
    assert len(set(nothing(ones, ones, ones))) == 50


def _events(heuristic, budget: int = 4) -> list:
    runtime = Runtime(budget, heuristic)
    chain = [runtime.constant(0)]
    for _ in range(30):
        chain += runtime.perform_op([chain[-1]], [1], 1.0)
    for tensor in reversed(chain):
        runtime.access(tensor)
    return runtime.steps


def test_random_is_seeded_and_uniform():
    assert _events("rand") == _events(random(0))
    assert _events(random(3)) == _events(random(3))
    assert _events(random(3)) != _events(random(4))
    ones = np.ones(10_000)
    draws = random(7).make_score()(ones, ones, ones)
    assert 0 <= draws.min() < 0.01
    assert 0.99 < draws.max() < 1
    assert draws.mean() == pytest.approx(0.5, abs=0.02)


@given(programs(), budgets, st.sampled_from([*HEURISTICS]))
@settings(max_examples=50)
def test_every_heuristic_is_deterministic(program, budget, name):
    runs = [Driver(Runtime(budget, name, max_recompute=MAX_COST)) for _ in range(2)]
    assert runs[0].run(program) == runs[1].run(program)
    assert runs[0].runtime.steps == runs[1].runtime.steps


def test_a_users_function():
    """Any function of staleness, size and cost with its neighbourhood ẽ*, over arrays."""

    def largest_first(s, m, c):
        return -m

    runtime = Runtime(6, largest_first)
    assert runtime.heuristic.name == "largest_first"
    assert runtime.heuristic.neighborhood == "eq"
    x = runtime.constant(0)
    for size in (1, 3, 2):
        runtime.perform_op([x], [size], 1.0)
    runtime.perform_op([x], [1], 1.0)
    assert [event.storage for event in runtime.steps if event.kind == DROP] == [2]
    assert runtime.steps[-2].score == -3


def test_a_users_function_may_return_its_argument_a_list_or_integers():
    for score in (
        lambda s, m, c: m,
        lambda s, m, c: c,
        lambda s, m, c: list(m),
        lambda s, m, c: m.astype(int),
    ):
        runtime = Runtime(6, score)
        [a] = runtime.perform_op([runtime.constant(0)], [2], 5.0)
        [b] = runtime.perform_op([a], [3], 1.0)
        [c] = runtime.perform_op([a, b], [1], 1.0)
        [d] = runtime.perform_op([c], [1], 1.0)  # c is locked, and so crossed out of the scores
        pool = runtime._pool
        assert [pool.size[t.storage.slot] for t in (c, d)] == [1, 1]
        assert np.isfinite(pool.cost[: len(pool.members)]).all()


def test_a_users_function_may_forbid_with_infinity_as_long_as_something_is_left():
    """An infinite score is a last resort, as it would be in a loop over the pool; a lock is absolute."""
    runtime = Runtime(2, lambda s, m, c: np.full(len(s), np.inf))
    [a] = runtime.perform_op([runtime.constant(0)], [1], 1.0)
    [b] = runtime.perform_op([a], [1], 1.0)
    [c] = runtime.perform_op([b], [1], 1.0)
    assert [a.defined, b.defined, c.defined] == [False, True, True]
    runtime.perform_op([b], [1], 1.0)  # b is locked, and first in the pool
    assert [b.defined, c.defined] == [True, False]


def test_a_score_of_the_wrong_shape_is_an_error():
    runtime = Runtime(1, lambda s, m, c: c.sum())
    runtime.perform_op([], [1], 1.0)
    with pytest.raises(ValueError, match=r"scores 1 storages .*: return a number for each"):
        runtime.perform_op([], [1], 1.0)


def test_unknown_heuristics():
    with pytest.raises(ValueError, match=r"unknown heuristic 'dtr_eq'; choose one of dtr, dtr-eq, "):
        Runtime(1, "dtr_eq")
    with pytest.raises(TypeError, match=r"not 3"):
        Runtime(1, 3)


def test_a_heuristic_object_is_taken_as_it_is():
    heuristic = parameterized(size=False, cost="exact")
    assert resolve(heuristic).name == Runtime(1, heuristic).heuristic.name == heuristic.name
    assert resolve(heuristic).neighborhood == heuristic.neighborhood

"""What the runtime does, as event orders on one line (see ``runtime.trace``) that were derived by hand.

``C`` compute, ``R`` recompute, ``D`` drop, ``B`` banish.  Sizes and costs are units; a network's operators
and storages carry the names of the tensors that they produce.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import MAX_COST, Driver, programs

from dtr_fx.runtime import HEURISTICS, OutOfBudget, Runtime, Step, Tensor, Thrash, parameterized, trace
from dtr_fx.runtime.graph import Storage
from dtr_fx.runtime.steps import (
    BANISH,
    BUDGET,
    COMPUTE,
    DEAD,
    DROP,
    DUPLICATE,
    OFFLOAD,
    PASSED,
    RELEASED,
    RELOAD,
    WAIT,
)
from dtr_fx.tiers.tier import Bandwidth, Tier

# The reduced heuristic of Appendix A: evict the tensor with the smallest evicted neighbourhood.
H_E_STAR = parameterized(staleness=False, cost="exact")


class Network:
    """A runtime whose tensors, storages and operators have names."""

    def __init__(self, budget: float = math.inf, heuristic: object = "lru", **options: object) -> None:
        self.runtime = Runtime(budget, heuristic, **options)
        self.tensors: dict[str, Tensor] = {}
        self._operators: dict[int, str] = {}
        self._storages: dict[int, str] = {}

    def constant(self, name: str, size: int = 0) -> None:
        self._name(name, self.runtime.constant(size))

    def op(
        self,
        names: str,
        inputs: str = "",
        sizes: Sequence[int | str] = (),
        cost: float = 1.0,
        **options: object,
    ) -> None:
        """``op("a b", "x y", [1, "x"])``: a is a fresh unit, b a view of x; default: fresh units."""
        self._operators[len(self._operators)] = names.replace(" ", "+")
        outputs = [self.tensors[size] if isinstance(size, str) else size for size in sizes]
        tensors = self.runtime.perform_op(
            [self.tensors[name] for name in inputs.split()],
            outputs or [1] * len(names.split()),
            cost,
            **options,
        )
        for name, tensor in zip(names.split(), tensors):
            self._name(name, tensor)

    def _name(self, name: str, tensor: Tensor) -> None:
        self.tensors[name] = tensor
        self._storages.setdefault(tensor.storage.id, name)

    def chain(self, *names: str) -> None:
        previous = ""
        for name in names:
            self.op(name, previous)
            previous = name

    def access(self, name: str) -> None:
        self.runtime.access(self.tensors[name])

    def release(self, *names: str) -> None:
        for name in names:
            self.runtime.release(self.tensors[name])

    def pin(self, name: str) -> None:
        self.runtime.pin(self.tensors[name])

    @property
    def resident(self) -> str:
        names = self._storages.items()
        return " ".join(name for number, name in names if self.runtime.storages[number].resident)

    @property
    def trace(self) -> str:
        return trace(self.runtime.steps, self._operators.__getitem__, self._storages.__getitem__)

    @property
    def reasons(self) -> str:
        return " ".join(event.reason for event in self.runtime.steps if event.reason)

    def since(self, position: int) -> str:
        """The trace of what came after the first ``position`` events."""
        return trace(self.runtime.steps[position:], self._operators.__getitem__, self._storages.__getitem__)


# Figure 1


def figure_1() -> Network:
    """The network that section 2 reads off Figure 1, up to t6, then t7, on a budget of five tensors.

    The text there fixes most of it: with t0, t2, t3, t6 resident before t7 is computed, e*(t2) = {t1, t4}
    and e*(t3) = {t1, t4, t5}.  So t1 comes from t0; t2 and t3 from t1; t4 from t2 and t3; t5 from t3 and
    not from t4.  That t6 reads t4, and t7 reads t5 and t6, is our choice: the text does not say.
    """
    net = Network(5, H_E_STAR)
    net.constant("t0", 1)
    net.op("t1", "t0")
    net.op("t2", "t1")
    net.op("t3", "t1")
    net.op("t4", "t2 t3")
    net.op("t5", "t3")
    net.op("t6", "t4")
    return net


def test_figure_1():
    """Derived by hand from PerformOp, Rematerialize, AllocateBuffer and PerformEviction, with h_e*.

    ====  ==============  =====================================  ========  =============================
    call  locked          resident (of 5), need                  evict     because
    ====  ==============  =====================================  ========  =============================
    t1-4                  t0, then one more each: full                     there is room
    t5    t3              t0 t1 t2 t3 t4, need 1                 t1        all have |e*| = 0: first in pool
    t6    t4              t0 t2 t3 t4 t5, need 1                 t5        |e*|: t2 1, t3 1, t5 0
    t7    t6; t5 missing, so f5 is performed first:
     t5   t6, t3          t0 t2 t3 t4 t6, need 1                 t4        |e*|: t2 1, t4 0
                          here memory is {t0, t2, t3, t6}, as in the paper's text
    t7    t6, t5          t0 t2 t3 t5 t6, need 1                 t2        |e*|: t2 2, t3 2; first in pool
    ====  ==============  =====================================  ========  =============================
    """
    net = figure_1()
    net.op("t7", "t5 t6")
    assert net.trace == "C t1, C t2, C t3, C t4, D t1, C t5, D t5, C t6, D t4, R t5, D t2, C t7"
    assert net.resident == "t0 t3 t5 t6 t7"
    assert net.runtime.peak == 5


def test_figure_1_evicted_neighborhoods():
    """The two sets that section 2 names, as scores: 1 + |e*|, at the moment at which it names them.

    Here t7 takes two units, so that a second victim is chosen right after t4 went.
    """
    pools = []

    def score(s, m, c):
        pools.append(dict(zip(net.runtime._pool.members, c)))
        return c / m

    net = figure_1()
    net.runtime._score = score
    net.op("t7", "t6", [2])
    assert net.since(8) == "D t4, D t2, C t7"
    assert pools[-1][net.tensors["t2"].storage] == 1 + len({"t1", "t4"})
    assert pools[-1][net.tensors["t3"].storage] == 1 + len({"t1", "t4", "t5"})


# Chains and diamonds


def test_chain_with_room():
    net = Network(4)
    net.chain("a", "b", "c", "d")
    net.access("a")
    assert net.trace == "C a, C b, C c, C d"
    assert net.reasons == ""


def test_chain_recomputes_from_the_nearest_resident():
    """LRU on three units: the tail stays; asking for b walks down to nothing and up again."""
    net = Network(3)
    net.chain("a", "b", "c", "d", "e")
    assert net.trace == "C a, C b, C c, D a, C d, D b, C e"
    net.access("b")
    # For a: c is the stalest.  For b, a is locked: d is older than e.
    assert net.since(7) == "D c, R a, D d, R b"
    assert net.resident == "a b e"
    net.op("f", "b e")
    assert net.since(11) == "D a, C f"


def test_chain_without_room_for_one_more():
    """Two units hold an operator of a chain and its input, and nothing else."""
    net = Network(2)
    net.chain("a", "b", "c", "d")
    net.access("b")
    assert net.trace == "C a, C b, D a, C c, D b, C d, D c, R a, D d, R b"


def test_diamond():
    """d reads both arms, evicted one after the other; the top is recomputed once, for both."""
    net = Network(3)
    net.op("top")
    net.op("left", "top")
    net.op("right", "top")
    net.op("x")
    net.op("y")
    net.op("z")
    assert net.trace == "C top, C left, C right, D top, C x, D left, C y, D right, C z"
    net.op("d", "left right")
    # x and y make room for top and left, z for right, top for d.
    assert net.since(9) == "D x, R top, D y, R left, D z, R right, D top, C d"
    assert net.resident == "left right d"


def test_an_input_read_twice_is_locked_once():
    net = Network(2)
    net.op("a")
    net.op("b", "a a")
    net.op("c", "b b")
    assert net.trace == "C a, C b, D a, C c"
    assert not net.runtime._locked


def test_an_operator_without_outputs():
    net = Network(2)
    net.op("a")
    net.runtime.perform_op([net.tensors["a"]], [], 1.0)
    assert [event.kind for event in net.runtime.steps] == [COMPUTE, COMPUTE]


def test_the_clock_is_the_sum_of_costs():
    net = Network(2)
    net.op("a", cost=1.0)
    net.op("b", "a", cost=2.0)
    net.op("c", "b", cost=4.0)
    net.access("a")
    assert net.trace == "C a, C b, D a, C c, D b, R a"
    assert net.runtime.base_cost == 7
    assert net.runtime.clock == 8


# Views (C.1)


def test_a_view_costs_no_bytes_and_goes_with_its_storage():
    net = Network(2)
    net.op("a")
    net.op("v", "a", ["a"], cost=0.0)
    net.op("b", "v")
    net.op("c", "b")
    assert net.trace == "C a, C v, C b, D a, C c"
    assert not net.tensors["v"].defined


def test_a_view_of_an_evicted_storage_is_re_made_after_its_root():
    net = Network(2)
    net.op("a")
    net.op("v", "a", ["a"], cost=0.0)
    net.op("b", "v")
    net.op("c", "b")
    net.op("d", "v")
    assert net.since(5) == "D b, R a, R v, D c, C d"


def test_the_root_comes_back_without_its_views():
    """The paper's prototype destroys views with the storage: each is re-made when it is asked for (C.1)."""
    net = Network(2)
    net.op("a")
    net.op("v", "a", ["a"], cost=0.0)
    net.op("w", "v", ["v"], cost=0.0)
    net.op("b", "a")
    net.op("c", "b")
    net.op("d", "a")
    assert net.since(6) == "D b, R a, D c, C d"
    assert [net.tensors[name].defined for name in "avw"] == [True, False, False]
    net.access("w")
    assert net.since(10) == "R v, R w"


def test_a_view_that_reads_another_storage():
    """A view keeps what it reads alive for as long as it may be re-made."""
    net = Network(2)
    net.op("a")
    net.op("i")
    net.op("v", "a i", ["a"])
    net.release("i")
    assert net.trace == "C a, C i, C v, D i"
    net.op("b")
    net.op("c")
    net.access("v")
    assert net.since(4) == "C b, D a, C c, D b, R a, D c, R i, R v"
    net.release("a", "v")
    assert net.since(12) == "B a, B i"


def test_views_of_a_constant_stay():
    net = Network(1)
    net.constant("x", 1)
    net.op("v", "x", ["x"], cost=0.0)
    net.release("x", "v")
    assert net.tensors["v"].defined
    assert net.trace == "C v"


def test_pinning_keeps_what_an_undefined_view_reads():
    """a is back without its view v when it is pinned: v can still be asked for, and so can i."""
    net = Network(3)
    net.op("i")
    net.op("a")
    net.op("v", "a i", ["a"])
    net.release("i")
    net.op("b")
    net.op("c")
    net.op("d")
    net.access("a")
    net.pin("a")
    net.access("v")
    assert net.since(4) == "C b, C c, D a, C d, D b, R a, D c, R i, R v"


# Operators with several outputs (C.4)


def test_outputs_are_dropped_separately_and_recomputed_together():
    net = Network(3)
    net.op("p q")
    net.op("b", "q")
    net.op("c", "b")
    assert net.trace == "C p+q, C b, D p, C c"
    net.op("d", "p")
    # f makes p and q: two units, although q is there.  b and c go; the second q is freed at once.
    assert net.since(4) == "D q, D b, R p+q, D q, C d"


def test_an_output_that_is_still_there_is_not_kept_twice():
    net = Network(4)
    net.op("p q")
    net.op("b", "q")
    net.op("c", "b q")
    net.op("d", "c")
    assert net.trace == "C p+q, C b, C c, D p, C d"
    net.op("e", "p q")
    # q is locked: f needs two units beside it, and leaves one of them free for e.
    assert net.since(5) == "D b, D c, R p+q, C e"
    assert [event.live for event in net.runtime.steps[-2:]] == [4, 4]
    assert net.resident == "p q d e"


def test_a_dead_output_is_freed_at_once_when_its_sibling_is_recomputed():
    net = Network(3)
    net.op("p q")
    net.op("b", "p")
    net.release("q")
    net.op("c", "b")
    net.op("d", "c")
    assert net.trace == "C p+q, C b, B q, C c, D p, C d"
    net.access("p")
    assert net.since(6) == "D b, D c, R p+q"
    assert net.resident == "p d"


# Locks, constants, references


def test_inputs_of_waiting_operators_are_locked():
    """While b is recomputed for d, d's other input c stays, stalest or not."""
    net = Network(3)
    net.op("c")
    net.chain("a", "b", "x", "y")
    assert net.trace == "C c, C a, C b, D c, C x, D a, C y"
    net.access("c")
    net.op("d", "c b")
    assert net.since(7) == "D b, R c, D x, R a, D y, R b, D a, C d"


def test_borrowing_from_a_waiting_operator():
    """All that is resident is locked: the paper is out of memory, here the outermost input gives way.

    d holds z, and needs c, which needs b, which needs a and w: with z in the way b does not fit.  z is
    evicted, and d rematerializes it when its turn comes.
    """
    net = Network(3)
    net.op("w")
    net.op("a")
    net.op("b", "a w")
    net.op("c", "b")
    net.op("z")
    net.op("x")
    net.op("y")
    assert net.trace == "C w, C a, C b, D w, C c, D a, C z, D b, C x, D c, C y"
    net.op("d", "z c")
    assert net.since(11) == "D x, R a, D y, R w, D z, R b, D w, R c, D b, R z, D a, C d"
    [borrowed] = [event for event in net.runtime.steps if event.score == math.inf]
    assert borrowed.reason == BUDGET
    assert borrowed.storage == net.tensors["z"].storage.id
    assert not net.runtime._locked


def test_borrowing_ends():
    """Two units cannot hold d's two inputs and d: an input that was lent twice is not lent again."""
    net = Network(2)
    net.chain("a", "b")
    net.op("z")
    with pytest.raises(OutOfBudget):
        net.op("d", "z b")
    assert not net.runtime._locked


def test_constants_are_never_evicted():
    net = Network(3, "size")
    net.constant("weight", 2)
    net.op("a", "weight")
    net.op("b", "weight")
    net.op("c", "weight")
    net.release("weight")
    assert net.trace == "C a, D a, C b, D b, C c"
    assert net.resident == "weight c"


def test_constants_count_towards_the_budget():
    net = Network(3)
    net.constant("weight", 3)
    with pytest.raises(OutOfBudget):
        net.op("a", "weight")


def test_empty_storages_are_never_dropped_for_the_budget():
    net = Network(1, "size")
    net.op("e", sizes=[0])
    net.op("a", "e")
    net.op("b", "e")
    assert net.trace == "C e, C a, D a, C b"
    assert net.resident == "e b"


def test_only_the_last_reference_deallocates():
    net = Network()
    net.op("a")
    net.op("v", "a", ["a"])
    net.runtime.retain(net.tensors["a"])
    net.release("a", "v")
    assert net.trace == "C a, C v"
    net.release("a")
    assert net.trace == "C a, C v, B a"


# Deallocation (C.5)


def test_eager_eviction():
    """A released storage goes at once; it can come back for what depends on it, and is freed with that."""
    net = Network(deallocation="eager")
    net.chain("a", "b", "c")
    net.release("a", "b")
    assert net.trace == "C a, C b, C c, D a, D b"
    assert net.reasons == f"{RELEASED} {RELEASED}"
    net.release("c")
    assert net.since(5) == "B c"
    assert all(storage.retired for storage in net.runtime.storages)


def test_eager_eviction_of_what_was_rematerialized_on_the_way():
    net = Network(2, deallocation="eager")
    net.chain("a", "b", "c", "d")
    net.release("a")
    net.access("b")
    # a stays until it is evicted, as in the paper.
    assert net.trace == "C a, C b, D a, C c, D b, C d, D c, R a, D d, R b"
    assert net.resident == "a b"


def test_without_keep_passed_the_way_is_cleared_behind():
    net = Network(3, keep_passed=False)
    net.chain("a", "b", "c", "d")
    net.release("a", "b")
    assert net.trace == "C a, C b, C c, D a, C d, D b"
    net.op("e")
    net.op("f", "d")
    assert net.since(6) == "C e, D c, C f"
    net.access("c")
    # a goes as soon as b has read it, b as soon as c has.
    assert net.since(9) == "D e, R a, D d, R b, D a, R c, D b"
    assert net.reasons.split()[-2:] == [PASSED, PASSED]
    assert net.resident == "c f"


def test_without_keep_passed_a_sibling_that_nobody_asked_for_goes():
    net = Network(3, keep_passed=False)
    net.op("p q")
    net.op("b", "q")
    net.release("q")
    net.op("c")
    net.op("d")
    assert net.trace == "C p+q, C b, D q, C c, D p, C d"
    net.access("p")
    assert net.since(6) == "D b, D c, R p+q, D q"
    assert net.reasons.split()[-1] == DUPLICATE
    assert net.resident == "p d"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # Input by input: late is the first that is missing.
        ("depth first", "D z, R late, D w, R early, D v, R y"),
        # As the program ran them; early is held until y, its last reader, has run.
        ("program", "D z, R early, D w, R late, D v, R y"),
    ],
)
def test_order_of_rematerialization(order, expected):
    net = Network(3, order=order)
    net.op("early")
    net.op("late")
    net.op("y", "late early")
    net.release("early", "late")
    for name in "zwv":
        net.op(name)
    assert net.trace == "C early, C late, C y, D early, D late, C z, C w, D y, C v"
    net.access("y")
    assert net.since(9) == expected


def test_program_order_runs_what_two_inputs_share_once():
    """Depth first and without keep_passed, a would be dropped behind b and made again for c."""
    net = Network(4, order="program", keep_passed=False)
    net.op("a")
    net.op("b", "a")
    net.op("c", "a")
    net.op("y", "b c")
    net.release("a", "b", "c")
    for name in "pqrs":
        net.op(name)
    start = len(net.runtime.steps)
    net.access("y")
    assert [step for step in net.since(start).split(", ") if step[0] == "R"] == ["R a", "R b", "R c", "R y"]


def test_banishing():
    """A released storage is freed for good at once, and its children can never be evicted again."""
    net = Network(2, deallocation="banish")
    net.chain("a", "b")
    net.release("a")
    assert net.trace == "C a, C b, B a"
    assert net.reasons == DEAD
    net.op("c", "b")
    net.op("d")
    assert net.since(3) == "C c, D c, C d"
    net.access("c")
    assert net.since(6) == "D d, R c"
    net.release("b")  # pinned storages can be banished, too; that pins c
    net.op("e")
    assert net.since(8) == "B b, C e"
    net.op("f")
    assert net.since(10) == "D e, C f"
    assert net.resident == "c f"


def test_banishing_waits_for_evicted_children():
    """ "We retry banishing each time a dependent is rematerialized" (C.5)."""
    net = Network(3, "size", deallocation="banish")
    net.op("a")
    net.op("b", "a", [2])
    net.op("c")
    net.release("a")
    assert net.trace == "C a, C b, D b, C c"
    net.access("b")
    assert net.since(4) == "D c, R b, B a"
    net.op("d")
    net.op("e")
    assert net.since(7) == "C d, D d, C e"


def test_banishing_waits_for_the_views_that_read_it():
    """a is resident, its view v is not yet re-made, and to make v takes i."""
    net = Network(4, "size", deallocation="banish")
    net.op("i")
    net.op("a", sizes=[2])
    net.op("v", "a i", ["a"])
    net.op("b", sizes=[2])
    net.access("a")
    net.release("i")
    assert net.trace == "C i, C a, C v, D a, C b, D b, R a"
    net.access("v")
    assert net.since(7) == "R v, B i"


def test_ignoring():
    net = Network(2, deallocation="ignore")
    net.chain("a", "b")
    net.release("a", "b")
    assert net.trace == "C a, C b"
    net.op("c")
    assert net.since(2) == "D a, C c"


# What cannot be recomputed, and what must not be


def test_what_cannot_be_recomputed_is_never_evicted():
    net = Network(2)
    net.op("r", recomputable=False)
    net.op("a", "r")
    net.op("b")
    net.op("c")
    assert net.trace == "C r, C a, D a, C b, D b, C c"
    assert net.resident == "r c"


def test_what_cannot_be_recomputed_stays_while_something_can_ask_for_it():
    net = Network()
    net.op("r", recomputable=False)
    net.chain("x")
    net.op("a", "r")
    net.op("b", "a")
    net.release("r")
    assert net.resident == "r x a b"
    net.release("a")
    assert net.resident == "r x b"
    net.release("b")
    assert net.trace == "C r, C x, C a, C b, D a, B b, B r"
    assert net.resident == "x"


def test_what_feeds_only_an_operator_that_runs_once_is_dead_when_it_is_released():
    net = Network()
    net.op("a")
    net.op("r", "a", recomputable=False)
    net.release("a")
    assert net.trace == "C a, C r, B a"


def test_a_view_that_cannot_be_made_twice_pins_its_storage():
    """As an in-place operator's result does."""
    net = Network(2)
    net.op("a")
    net.op("w", "a", ["a"], recomputable=False)
    net.op("b")
    net.op("c")
    assert net.trace == "C a, C w, C b, D b, C c"
    assert net.tensors["w"].defined


def test_pin():
    """A gradient that is pinned when it is computed stays; nothing has to be kept to recompute it."""
    net = Network(2)
    net.op("a")
    net.op("g", "a")
    net.pin("g")
    net.release("a")
    assert net.trace == "C a, C g, B a"
    net.op("b")
    net.op("c")
    assert net.since(3) == "C b, D b, C c"
    net.release("g")
    assert net.since(6) == "B g"


def test_pinning_lets_go_of_evicted_parents():
    net = Network()
    net.chain("a", "b", "g")
    net.release("a", "b")
    net.pin("g")
    assert net.trace == "C a, C b, C g, D a, D b"
    assert [net.tensors[name].storage.retired for name in "abg"] == [True, True, False]


def test_a_parent_outlives_a_pinned_child_for_the_sake_of_another():
    net = Network(2)
    net.op("p")
    net.op("g", "p")
    net.pin("g")
    net.release("g")
    net.op("t", "p")
    net.release("p")
    net.op("x")
    net.op("y")
    assert net.trace == "C p, C g, B g, C t, D p, C x, D t, C y"
    net.access("t")
    assert net.since(8) == "D x, R p, D y, R t"


# Bytes


def test_workspace_is_allocated_during_every_run_and_freed_after_it():
    net = Network(4)
    net.op("a")
    net.op("b", "a", workspace=2)
    assert net.runtime.used == 2
    assert net.runtime.peak == 4
    net.op("c")
    net.op("d", "c", workspace=1)
    assert net.trace == "C a, C b, C c, D a, C d"
    net.access("a")
    net.op("e", "a")
    net.access("b")
    assert net.since(5) == "R a, D b, C e, D c, D d, D e, R b"
    assert net.runtime.steps[-1].live == 4
    assert net.runtime.used == 2


def test_out_of_budget_says_who_needs_what():
    net = Network(4)
    net.op("a", sizes=[2])
    net.op("b", "a")
    with pytest.raises(
        OutOfBudget, match=r"operator 2 needs 3 bytes beside 2 resident, .* budget of 4"
    ) as info:
        net.op("c", "a", [2], workspace=1)
    assert (info.value.op, info.value.needed, info.value.used) == (2, 3, 2)
    assert net.trace == "C a, C b, D b"


def test_a_runtime_goes_on_after_it_was_out_of_budget():
    net = Network(3)
    net.chain("a", "b", "c")
    with pytest.raises(OutOfBudget):
        net.runtime.perform_op([net.tensors["c"]], [3], 1.0)
    assert not net.runtime._locked
    assert not net.runtime._frames
    net.access("a")
    assert net.resident == "a c"


def test_thrash():
    net = Network(2, max_recompute=2.0)
    net.chain("a", "b", "c", "d")
    net.access("b")
    with pytest.raises(Thrash, match=r"rematerialization costs more than 2\.0"):
        net.access("d")
    assert net.runtime.clock == 7
    assert not net.runtime._locked


# Moving instead of recomputing


def link(speed: float, limit: int | None = None) -> Tier:
    return Tier("host", limit=limit, speed=Bandwidth(speed, speed))


def test_what_costs_more_than_its_transfer_is_moved_and_brought_back():
    net = Network(2, "dtr", tier=link(1.0), moves=True)
    for name, read in (("a", ""), ("b", "a"), ("c", "b")):
        net.op(name, read, cost=10.0, movable=True)
    assert net.trace == "C a, C b, O a, W a, D a, C c"
    net.access("a")
    assert net.since(6) == "O b, W b, D b, L a, W a"
    # Nothing hides these copies: two out, one back.
    assert (net.runtime.recompute_cost, net.runtime.waited, net.runtime.peak) == (0, 3, 2)


@pytest.mark.parametrize("tier", [link(0.01), link(1.0, limit=1)])
def test_what_costs_less_than_its_transfer_or_finds_no_room_is_recomputed(tier):
    net, other = Network(4, "dtr", tier=tier, moves=True), Network(4, "dtr")
    for each in (net, other):
        for name, read in (("a", ""), ("b", "a"), ("c", "b"), ("d", "c")):
            each.op(name, read, [2], movable=True)
        each.access("a")
    assert net.trace == other.trace


def test_copies_out_run_ahead_beside_what_is_computed():
    net = Network(4, "dtr", tier=link(1.0), moves=True)
    for name, read in (("a", ""), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "d")):
        net.op(name, read, cost=10.0, movable=True)
    assert net.trace == "C a, C b, O a, C c, O b, C d, O c, W a, D a, C e"
    assert net.runtime.waited == 0


def test_a_copy_back_is_hidden_by_what_else_is_recomputed():
    net = Network(4, "lru", tier=link(1.0), moves=True)
    net.op("dear", cost=10.0, movable=True)
    net.op("cheap", cost=1.5, movable=True)
    net.op("big", sizes=[4])
    assert net.resident == "big"
    position = len(net.runtime.steps)
    net.release("big")
    net.op("both", "dear cheap")
    assert net.since(position) == "B big, L dear, R cheap, W dear, C both"
    assert net.runtime.steps[-2].seconds == 0


def test_copies_back_run_ahead_of_a_pass_that_reads_backwards():
    net = Network(4, "lru", tier=link(1.0), moves=True)
    for name in "abcd":
        net.op(name, cost=10.0, movable=True)
    net.op("big", sizes=[4])
    assert net.resident == "big"
    position, waited = len(net.runtime.steps), net.runtime.waited
    net.release("big")
    for name in "dcba":
        net.op(name.upper(), name, cost=10.0)
        net.release(name)
        net.release(name.upper())
    backwards = "W c, L b, C C, D c, B C, W b, L a, C B, D b, B B, W a, C A, D a, B A"
    assert net.since(position) == f"B big, L d, W d, L c, C D, D d, B D, {backwards}"
    assert net.runtime.waited == waited + 1  # for the first, which nothing told of


# Long chains


def test_a_chain_of_20_000_is_recomputed_and_freed_without_recursion():
    n = 20_000
    assert n > sys.getrecursionlimit()
    runtime = Runtime(2)
    chain = runtime.perform_op([], [1], 1.0)
    for _ in range(n + 1):
        chain += runtime.perform_op([chain[-1]], [1], 1.0)
    assert sum(tensor.defined for tensor in chain) == 2
    runtime.access(chain[n - 1])
    assert runtime.clock == runtime.base_cost + n
    assert runtime.peak == 2
    for tensor in chain:
        runtime.release(tensor)
    assert runtime.used == 0
    assert all(storage.retired for storage in runtime.storages)


# Properties


class Replay:
    """Carries out a record of events, and believes nothing: what is read must be there, and must fit."""

    def __init__(self, driver: Driver) -> None:
        self.runtime = driver.runtime
        self.operators = driver.operators
        self.resident = {s for s in self.runtime.storages if s.root.op is None}
        self.defined = {tensor for storage in self.resident for tensor in storage.tensors[:1]}
        self.runs = [0] * len(self.operators)
        frees = ((i, event) for i, event in enumerate(self.runtime.steps) if event.kind in (DROP, BANISH))
        self.last_free = {event.storage: i for i, event in frees}
        self.outside: set[Storage] = set()
        self.in_transfer: set[Storage] = set()

    def run(self) -> None:
        for position, event in enumerate(self.runtime.steps):
            if event.kind in (DROP, BANISH):
                self._free(event)
                assert event.live == self.used
            elif event.kind in (OFFLOAD, RELOAD, WAIT):
                self._transfer(event)
                assert event.live == self.used <= self.runtime.budget
            elif event.op < len(self.operators):  # else it is the one that raised Thrash
                self._execute(event, position)

    @property
    def used(self) -> int:
        return sum(storage.size for storage in self.resident)

    def _transfer(self, event: Step) -> None:
        storage = self.runtime.storages[event.storage]
        if event.kind == OFFLOAD:
            assert storage in self.resident - self.outside
            self.in_transfer.add(storage)
        elif event.kind == RELOAD:
            assert storage in self.outside - self.resident
            self.in_transfer.add(storage)
            self.resident.add(storage)
            self.defined.add(storage.root)
        else:
            self.in_transfer.remove(storage)
            self.outside.add(storage)

    def _execute(self, event: Step, position: int) -> None:
        op = self.operators[event.op]
        assert self.defined.issuperset(op.inputs)
        back = self.in_transfer & self.outside
        assert back.isdisjoint(tensor.storage for tensor in op.inputs)
        assert (event.kind == COMPUTE) == (self.runs[op.id] == 0)
        self.runs[op.id] += 1
        fresh = [tensor for tensor in op.outputs if tensor is tensor.storage.root]
        assert event.live == self.used + sum(t.storage.size for t in fresh) + op.workspace
        assert event.live <= self.runtime.budget
        self.defined.update(tensor for tensor in op.outputs if tensor not in fresh)
        for tensor in fresh:
            # What was dead already is made again beside its siblings, and never has to be freed.
            if tensor.storage.resident or self.last_free.get(tensor.storage.id, -1) > position:
                self.resident.add(tensor.storage)
                self.defined.add(tensor)

    def _free(self, event: Step) -> None:
        storage = self.runtime.storages[event.storage]
        self.resident.remove(storage)
        assert storage not in self.in_transfer
        defined = self.defined.intersection(storage.tensors)
        self.defined -= defined
        if event.kind == DROP:
            assert all(tensor.op.recomputable for tensor in storage.tensors if tensor in defined)


@settings(max_examples=150)
@given(
    programs(),
    st.integers(6, 16),
    st.sampled_from([*HEURISTICS]),
    st.sampled_from(["eager", "banish", "ignore"]),
    st.booleans(),
    st.sampled_from(["depth first", "program"]),
    st.sampled_from([0.0, 0.3, 3.0]),
)
def test_every_run_is_possible(program, budget, heuristic, deallocation, keep_passed, order, speed):
    """Any program, budget, policy, link: a run that memory of that size could really carry out."""
    runtime = Runtime(
        budget,
        heuristic,
        deallocation=deallocation,
        keep_passed=keep_passed,
        order=order,
        max_recompute=MAX_COST,
        tier=Tier("host", speed=Bandwidth(speed, speed)) if speed else None,
        moves=True,
    )
    driver = Driver(runtime)
    driver.run(program)
    for tensor in driver.live:
        try:
            runtime.access(tensor)
        except OutOfBudget:
            continue
        except Thrash:
            break
        assert tensor.defined
    replay = Replay(driver)
    replay.run()
    assert runtime.used == replay.used == sum(s.size for s in runtime.storages if s.resident)
    assert {storage for storage in runtime.storages if storage.resident} == replay.resident
    assert runtime.peak <= budget
    assert not runtime._locked
    assert all(replay.runs[op.id] == 1 for op in driver.operators if not op.recomputable)
    assert all(storage.resident for storage in runtime.storages if storage.root.op is None)


@settings(max_examples=100)
@given(programs(), st.sampled_from(["eager", "banish", "ignore"]))
def test_without_a_limit_nothing_is_recomputed_but_what_was_released(program, deallocation):
    runtime = Runtime(math.inf, deallocation=deallocation)
    driver = Driver(runtime)
    assert driver.run(program)
    assert runtime.clock == runtime.base_cost == sum(op.cost for op in driver.operators)
    assert not [event for event in runtime.steps if event.reason == BUDGET]


@settings(max_examples=200)
@given(programs(reading_views=False), st.sampled_from(["eager", "banish"]))
def test_at_the_end_everything_dies(program, deallocation):
    """When all references are gone, constants are all that is left.

    Views that read other storages are left out: two storages, each read by a view of the other, wait for
    each other as in any reference counting.
    """
    runtime = Runtime(math.inf, deallocation=deallocation)
    driver = Driver(runtime)
    driver.run(program)
    for tensor in driver.live:
        runtime.release(tensor)
    constants = [storage for storage in runtime.storages if storage.root.op is None]
    assert [storage for storage in runtime.storages if storage.resident] == constants

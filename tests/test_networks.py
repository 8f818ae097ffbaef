"""Synthetic networks: what a training step has to be, whatever its shape."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtr_fx.lab.networks import Layer, linear, random_dag, residual, training_step, tree, unet
from dtr_fx.runtime import Runtime
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.program import Call, Keep, Output, Program, Release

programs = st.one_of(
    st.builds(linear, st.integers(1, 30)),
    st.builds(residual, st.integers(1, 12)),
    st.builds(unet, st.integers(1, 6)),
    st.builds(tree, st.integers(0, 5)),
    st.builds(random_dag, st.integers(1, 40), st.integers(0, 10**6), fan_in=st.integers(1, 6)),
)


def _forward(program: Program) -> list[Call]:
    return list(program.calls())[: program.backward]


def _backward(program: Program) -> list[Call]:
    return list(program.calls())[program.backward :]


@given(programs)
def test_every_input_is_live_and_all_but_results_is_released(program):
    live: set[int] = set()
    seen: set[int] = set()
    kept: set[int] = set()
    for step in program.instructions:
        match step:
            case Call():
                assert live.issuperset(step.inputs)
                made = {output.tensor for output in step.outputs}
                assert made
                assert not made & seen
                live |= made
                seen |= made
            case Release(tensor):
                live.remove(tensor)
            case Keep(tensor):
                assert tensor in live
                kept.add(tensor)
    assert live == kept


@given(programs)
def test_tensors_are_released_right_after_their_last_use(program):
    """No call comes between a tensor's last use, or its making, and its release."""
    last_call = None
    for step in program.instructions:
        if isinstance(step, Call):
            last_call = step
        elif isinstance(step, Release):
            touched = {*last_call.inputs, *(output.tensor for output in last_call.outputs)}
            assert step.tensor in touched


@given(programs)
def test_the_peak_is_that_of_liveness(program):
    """At each call: the bytes of all that was made and not yet released, counted anew."""
    birth, death, size = {}, {}, {}
    for time, step in enumerate(program.instructions):
        if isinstance(step, Call):
            for tensor, bytes_, _ in step.outputs:
                birth[tensor], size[tensor] = time, bytes_
        elif isinstance(step, Release):
            death[step.tensor] = time
    live = [
        sum(size[t] for t in birth if birth[t] <= time <= death.get(t, math.inf)) for time in birth.values()
    ]
    assert program.peak == max(live)


@given(programs)
def test_without_a_limit_nothing_is_rematerialized(program):
    runtime = Runtime(math.inf)
    drive(runtime, program)
    assert runtime.clock == pytest.approx(program.cost)
    assert {event.kind for event in runtime.steps} <= {"compute", "drop", "banish"}
    assert sum(event.kind == "compute" for event in runtime.steps) == len(list(program.calls()))
    assert runtime.peak == program.peak


@given(programs)
def test_at_its_own_peak_nothing_is_rematerialized(program):
    runtime = Runtime(program.peak)
    drive(runtime, program)
    assert runtime.recompute_cost == 0


@given(programs)
def test_every_operator_has_its_gradient_operator(program):
    """In reverse order; it reads what the operator read, and returns one gradient for each, of its size."""
    forward = _forward(program)
    sizes = [call.outputs[0].size for call in forward]
    backward = [call for call in _backward(program) if call.name != "sum"]
    assert len(backward) == len(forward)
    ratio = 1 if program.name.startswith("linear") else 2
    for number, gradient in zip(reversed(range(len(forward))), backward):
        call = forward[number]
        assert gradient.inputs[: len(call.inputs)] == call.inputs
        assert all(tensor >= len(forward) for tensor in gradient.inputs[len(call.inputs) :])
        returned = call.inputs or (number,)
        assert [output.size for output in gradient.outputs] == [sizes[tensor] for tensor in returned]
        assert gradient.cost == ratio * call.cost


@given(programs)
def test_the_backward_pass_adds_up_all_paths(program):
    """If every operator added its inputs up, the gradient of a source would be the number of paths from it to
    the network's outputs: counted here forward, and by carrying out the backward pass."""
    forward = _forward(program)
    read = {number for call in forward for number in call.inputs}
    paths = [int(number not in read) for number in range(len(forward))]
    for call in reversed(forward):
        for number in call.inputs:
            paths[number] += paths[call.outputs[0].tensor]
    sources = [call.outputs[0].tensor for call in reversed(forward) if not call.inputs]

    gradients: dict[int, int] = {}
    for call in _backward(program):
        from_above = [gradients[number] for number in call.inputs if number in gradients]
        assert len(from_above) == 2 if call.name == "sum" else len(from_above) <= 1
        for output in call.outputs:
            gradients[output.tensor] = sum(from_above) if from_above else 1
    results = [step.tensor for step in program.instructions if isinstance(step, Keep)]
    assert [gradients[tensor] for tensor in results] == [paths[tensor] for tensor in sources]


def test_linear_is_the_program_of_appendix_a():
    names = "t1 t2 t3 t4 g4 g3 g2 g1".split()
    program = [
        f"{names[call.outputs[0].tensor]}({', '.join(names[number] for number in call.inputs)})"
        for call in linear(4).calls()
    ]
    assert program == ["t1()", "t2(t1)", "t3(t2)", "t4(t3)", "g4(t3)", "g3(t2, g4)", "g2(t1, g3)", "g1(g2)"]


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_linear_holds_what_the_backward_pass_needs(n):
    """t_1 … t_{N-1} beside t_N or the first gradient."""
    assert linear(n).peak == n
    assert linear(n).cost == 2 * n


def test_a_residual_block_is_read_twice_and_its_gradients_are_summed():
    calls = list(residual(5).calls())
    assert sum(call.name == "sum" for call in calls) == 5
    readers = Counter(number for call in _forward(residual(5)) for number in call.inputs)
    assert [readers[block] for block in range(0, 10, 2)] == [2] * 5


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_unet_skips_join_tensors_of_one_level(depth):
    """The k-th level down is read by the k-th from the end of the way up, in the same size."""
    forward = _forward(unet(depth))
    joins = [call for call in forward if len(call.inputs) == 2]
    assert len(joins) == depth
    skips = [max(call.inputs) - min(call.inputs) for call in joins]
    assert skips == sorted(skips)
    for call in joins:
        sizes = {forward[number].outputs[0].size for number in call.inputs}
        assert sizes == {call.outputs[0].size}
    assert [call.outputs[0].size for call in joins] == [2**level for level in range(1, depth + 1)]


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_tree_reduces_its_leaves_depth_first(depth):
    """2^depth leaves; never more than one value for each level waits for its sibling."""
    forward = _forward(tree(depth))
    assert sum(not call.inputs for call in forward) == 2**depth
    assert sum(len(call.inputs) == 2 for call in forward) == len(forward) - 2**depth == 2**depth - 1
    waiting: set[int] = set()
    for call in forward:
        waiting = (waiting - set(call.inputs)) | {call.outputs[0].tensor}
        assert len(waiting) <= depth + 1
    assert len(waiting) == 1


def test_random_networks_differ_by_seed_alone():
    assert random_dag(30, 7) == random_dag(30, 7)
    assert random_dag(30, 7).instructions != random_dag(30, 8).instructions


@pytest.mark.parametrize("fan_in", [1, 2, 5])
def test_random_networks_reach_their_fan_in_and_no_more(fan_in):
    fans = {len(call.inputs) for call in _forward(random_dag(200, 1, fan_in=fan_in))}
    assert fans == set(range(fan_in + 1))


def test_an_input_that_is_read_twice_has_one_gradient():
    program = training_step("square", [Layer("x", (), size=3), Layer("square", (0, 0), size=5)])
    square, x = _backward(program)
    assert square.inputs == (0, 0)
    assert square.outputs == (Output(2, 3),)
    assert x.inputs == (2,)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: linear(0), "n is 0; it must be at least 1"),
        (lambda: residual(-1), "n is -1"),
        (lambda: unet(0), "depth is 0"),
        (lambda: tree(-1), "depth is -1; it must be at least 0"),
        (lambda: random_dag(0), "n is 0"),
        (lambda: random_dag(5, fan_in=0), "fan_in is 0"),
        (lambda: training_step("", []), "at least one layer"),
        (lambda: training_step("", [Layer("f", (0,))]), "layer 0 reads"),
        (lambda: training_step("", [Layer("f", ()), Layer("g", (-1,))]), "layer 1 reads"),
        (lambda: training_step("", [Layer("f", (), cost=-1)]), "layer 0 has cost -1"),
        (lambda: training_step("", [Layer("f", (), size=-1)]), "size -1"),
        (lambda: training_step("", [Layer("f", ())], backward_cost=-2), "backward_cost is -2"),
    ],
)
def test_rejects(build, message):
    with pytest.raises(ValueError, match=message):
        build()

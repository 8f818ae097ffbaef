"""The verifier catches graphs that were broken by hand, and its timelines are those worked out by hand.

One 512×512 float32 tensor is one MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from chains import chain
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx import InfeasibleBudgetError
from dtr_fx.passes import rng
from dtr_fx.passes.drops import drop
from dtr_fx.passes.liveness import liveness
from dtr_fx.passes.verify import VerificationError, verify

aten = torch.ops.aten
MiB = 2**20
CPU = torch.device("cpu")


def mib(n: int = 1) -> Tensor:
    return torch.ones(n * 512, 512)


def traced(fn: Callable[..., Any], *inputs: Any) -> GraphModule:
    return make_fx(fn, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def good(fn: Callable[..., Any], *inputs: Any) -> GraphModule:
    """The function's graph, rewritten for the smallest budget of one pass; the verifier finds nothing.

    A search avoids what is to be broken here where it can.
    """
    gm = traced(fn, *inputs)
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, 1, planner="online")
    rewritten, report = dtr_fx.transform(gm, caught.value.smallest, planner="online")
    assert report.recomputes > 0
    verify(rewritten)
    return rewritten


def noisy(x: Tensor) -> Tensor:
    """One draw, read in phases that need all the memory, and other draws between."""
    noise = torch.rand_like(x)
    total = x.sum()
    for number in range(3):
        a = (x + number).sin()
        b = a.cos()
        total = total + (a * b * a.exp() * x).sum() + (noise * noise.exp()).sum()
        total = total + torch.rand_like(x).sum()
    return total


def sorting(x: Tensor) -> Tensor:
    values, indices = x.sort()
    total = values.exp().sum()
    for _ in range(3):
        a = x.sin()
        b = a.cos()
        total = total + (a * b * a.exp() * b.exp() * x).sum()
    return total + values.sum() + indices.sum()


def changing(x: Tensor) -> Tensor:
    """x is read before it is changed; c needs x as it was."""
    c = x.sin()
    d = c.cos()
    x.add_(1)
    return chain(d * x) + c.sum()


def of_role(gm: GraphModule, role: str) -> list[Node]:
    return [node for node in gm.graph.nodes if node.meta.get("dtr", {}).get("role") == role]


def recompute_of(gm: GraphModule, target: Any) -> Node:
    """The first recompute whose origin calls the target."""
    origins = {node.name: node for node in gm.graph.nodes if "dtr" not in node.meta}
    for node in of_role(gm, "recompute"):
        if origins[node.meta["dtr"]["origin"]].target is target:
            return node
    raise AssertionError(f"{target} is not recomputed")


def origin_of(gm: GraphModule, node: Node) -> Node:
    name = node.meta["dtr"]["origin"]
    return next(other for other in gm.graph.nodes if other.name == name)


def position(gm: GraphModule, node: Node) -> int:
    return list(gm.graph.nodes).index(node)


def assert_broken(gm: GraphModule, rule: str, node: Node) -> None:
    """The error names the rule and the node, with what the node calls."""
    with pytest.raises(VerificationError) as caught:
        verify(gm)
    assert f"rule {rule!r}" in str(caught.value)
    assert f"%{node.name} " in str(caught.value)
    assert isinstance(caught.value, dtr_fx.DTRError)


# --- live ---------------------------------------------------------------------------------------------------


def test_a_recompute_moved_behind_its_reader() -> None:
    gm = good(chain, mib())
    node = recompute_of(gm, aten.sin.default)
    reader = next(iter(node.users))
    reader.append(node)
    assert_broken(gm, "live", reader)


def test_an_operator_moved_before_what_it_reads() -> None:
    gm = good(chain, mib())
    first = next(node for node in gm.graph.nodes if node.op == "call_function")
    second = next(user for user in first.users if user.target is aten.sin.default)
    first.prepend(second)
    assert_broken(gm, "live", second)


def test_a_read_of_the_old_copy_after_its_drop() -> None:
    gm = good(chain, mib())
    node = recompute_of(gm, aten.sin.default)
    origin = origin_of(gm, node)
    reader = next(user for user in node.users if user.target is not drop)
    reader.replace_input_with(node, origin)
    assert_broken(gm, "live", reader)


def test_a_drop_moved_before_the_last_reader() -> None:
    gm = good(chain, mib())
    node = of_role(gm, "drop")[0]
    dropped = node.all_input_nodes[0]
    reader = next(user for user in dropped.users if user is not node)
    reader.prepend(node)
    assert_broken(gm, "live", reader)


def test_a_view_of_what_was_dropped() -> None:
    gm = good(lambda x: chain(x) + x.sum(), mib())
    node = of_role(gm, "drop")[0]
    dropped = node.all_input_nodes[0]
    with gm.graph.inserting_before(node):
        view = gm.graph.call_function(aten.view.default, (dropped, [-1]))
        view.meta["val"] = dropped.meta["val"].view(-1)
    verify(gm)
    with gm.graph.inserting_after(node):
        reader = gm.graph.call_function(aten.sum.default, (view,))
    assert_broken(gm, "live", reader)


def test_a_drop_of_what_the_graph_returns() -> None:
    gm = good(lambda x: (chain(x), x.cos()), mib())
    cos = next(node for node in gm.graph.nodes if node.target is aten.cos.default)
    with gm.graph.inserting_before(gm.graph.output_node()):
        node = gm.graph.call_function(drop, (cos,))
    node.meta["dtr"] = {"role": "drop", "origin": cos.name}
    with pytest.raises(VerificationError, match=r"rule 'live' is broken at return .*it reads cos after drop"):
        verify(gm)


# --- same operator, same values -----------------------------------------------------------------------------


def test_a_recompute_that_calls_another_operator() -> None:
    gm = good(chain, mib())
    node = recompute_of(gm, aten.sin.default)
    node.target = aten.cos.default
    assert_broken(gm, "same operator", node)


def test_a_replay_of_another_operator() -> None:
    gm = good(noisy, mib())
    node = recompute_of(gm, aten.rand_like.default)
    node.update_arg(2, aten.randn_like.default)
    assert_broken(gm, "same operator", node)


def test_a_recompute_before_its_origin() -> None:
    gm = good(chain, mib())
    node = recompute_of(gm, aten.sin.default)
    origin_of(gm, node).prepend(node)
    with pytest.raises(VerificationError, match=r"rule '(live|same operator)'"):
        verify(gm)


def test_a_recompute_without_an_origin() -> None:
    gm = good(chain, mib())
    node = recompute_of(gm, aten.sin.default)
    node.meta["dtr"] = {**node.meta["dtr"], "origin": "nothing"}
    assert_broken(gm, "same operator", node)


def test_a_recompute_of_another_value() -> None:
    gm = good(lambda x, y: chain(x) + y.sum(), mib(), mib())
    x, y = gm.graph.find_nodes(op="placeholder")
    node = next(node for node in of_role(gm, "recompute") if x in node.all_input_nodes)
    node.replace_input_with(x, y)
    assert_broken(gm, "same values", node)


def test_a_recompute_with_another_number() -> None:
    gm = good(lambda x: chain(x * 2) + (x * 2).sum(), mib())
    node = recompute_of(gm, aten.mul.Tensor)
    node.update_arg(1, 3)
    assert_broken(gm, "same values", node)


def test_a_recompute_with_another_keyword() -> None:
    gm = good(lambda x: chain(torch.ops.aten.add.Tensor(x, x, alpha=2)), mib())
    node = recompute_of(gm, aten.add.Tensor)
    node.update_kwarg("alpha", 3)
    assert_broken(gm, "same values", node)


def test_a_recompute_that_takes_another_element() -> None:
    gm = good(sorting, mib())
    sort = recompute_of(gm, aten.sort.default)
    selection = next(user for user in sort.users if user.target is not drop)
    selection.update_arg(1, 1 - selection.args[1])
    assert_broken(gm, "same values", selection)


def test_a_kept_copy_of_something_else() -> None:
    gm = good(changing, mib())
    (kept,) = of_role(gm, "keep")
    x, y = kept.all_input_nodes[0], next(node for node in gm.graph.nodes if node.target is aten.sin.default)
    y.append(kept)
    kept.replace_input_with(x, y)
    assert_broken(gm, "same values", kept)


def test_a_kept_copy_that_computes() -> None:
    gm = good(changing, mib())
    (kept,) = of_role(gm, "keep")
    kept.target = aten.neg.default
    assert_broken(gm, "same values", kept)


# --- same randomness ----------------------------------------------------------------------------------------


def replay_in(gm: GraphModule) -> tuple[Node, Node]:
    """A replay and the state that it starts from."""
    node = recompute_of(gm, aten.rand_like.default)
    state = node.args[0]
    assert isinstance(state, Node)
    return node, state


def test_a_recompute_that_draws_anew() -> None:
    gm = good(noisy, mib())
    node, _ = replay_in(gm)
    origin = origin_of(gm, node)
    node.target, node.args, node.kwargs = origin.target, origin.args, origin.kwargs
    assert_broken(gm, "same randomness", node)


def test_a_state_that_another_draw_follows_first() -> None:
    gm = good(noisy, mib())
    node, state = replay_in(gm)
    x = gm.graph.find_nodes(op="placeholder")[0]
    with gm.graph.inserting_after(state):
        between = gm.graph.call_function(aten.rand_like.default, (x,))
        between.meta["val"] = x.meta["val"].clone()
    assert_broken(gm, "same randomness", node)


def test_a_state_that_is_saved_too_late() -> None:
    gm = good(noisy, mib())
    node, state = replay_in(gm)
    origin_of(gm, node).append(state)
    assert_broken(gm, "same randomness", node)


def test_a_state_that_is_gone() -> None:
    gm = good(noisy, mib())
    node, state = replay_in(gm)
    x = gm.graph.find_nodes(op="placeholder")[0]
    state.replace_all_uses_with(x)
    gm.graph.erase_node(state)
    first = next(user for user in x.users if user.target is rng.replay)
    assert_broken(gm, "same randomness", first)
    assert first is node


def test_a_state_of_another_operator() -> None:
    gm = good(noisy, mib())
    node, state = replay_in(gm)
    with gm.graph.inserting_before(state):
        other = gm.graph.call_function(rng.save_state, ("cpu",))
    other.meta = {**state.meta, "dtr": {**state.meta["dtr"], "origin": "rand_like_1"}}
    node.update_arg(0, other)
    assert_broken(gm, "same randomness", node)


def test_a_state_that_is_none() -> None:
    gm = good(noisy, mib())
    _, state = replay_in(gm)
    state.target, state.args = torch.zeros, (5056,)
    assert_broken(gm, "same randomness", state)


def test_a_replay_on_another_device() -> None:
    gm = good(noisy, mib())
    node, _ = replay_in(gm)
    node.update_arg(1, "cuda")
    assert_broken(gm, "same randomness", node)


# --- not twice, not after a write ---------------------------------------------------------------------------


def with_recompute(gm: GraphModule, origin: Node) -> Node:
    """Add a recompute of the node at the end, as if a plan had asked for it."""
    verify(gm)
    with gm.graph.inserting_before(gm.graph.output_node()):
        node = gm.graph.node_copy(origin)
    node.name = f"{origin.name}_recompute"
    node.meta["val"] = torch.utils._pytree.tree_map_only(Tensor, torch.clone, origin.meta["val"])
    node.meta["dtr"] = {"role": "recompute", "origin": origin.name}
    return node


def the(gm: GraphModule, target: Any) -> Node:
    return next(node for node in gm.graph.nodes if node.target is target)


def test_recompute_of_a_write() -> None:
    gm = traced(lambda x: x.sin().add_(1), mib())
    assert_broken(gm, "not twice", with_recompute(gm, the(gm, aten.add_.Tensor)))


def test_recompute_of_a_batch_norm_in_training() -> None:
    def f(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    gm = traced(f, mib(), torch.zeros(512), torch.ones(512))
    assert_broken(gm, "not twice", with_recompute(gm, the(gm, aten.native_batch_norm.default)))


def test_recompute_of_a_batch_norm_in_evaluation_is_fine() -> None:
    def f(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=False)

    gm = traced(f, mib(), torch.zeros(512), torch.ones(512))
    with_recompute(gm, the(gm, aten.native_batch_norm.default))
    verify(gm)


def test_recompute_of_an_assertion() -> None:
    gm = traced(lambda x: x.sin(), mib())
    sin = the(gm, aten.sin.default)
    with gm.graph.inserting_after(sin):
        check = gm.graph.call_function(aten._assert_async.msg, (sin, "no"))
        check.meta["val"] = None
    assert_broken(gm, "not twice", with_recompute(gm, check))


def test_recompute_after_its_input_was_written() -> None:
    gm = traced(lambda x: (x.sin(), x.add_(1))[0], mib())
    assert_broken(gm, "not after a write", with_recompute(gm, the(gm, aten.sin.default)))


def test_recompute_after_its_input_was_written_through_a_view() -> None:
    gm = traced(lambda x: (x.sin(), x.view(-1)[:5].zero_())[0], mib())
    assert_broken(gm, "not after a write", with_recompute(gm, the(gm, aten.sin.default)))


def test_recompute_from_the_input_instead_of_its_kept_copy() -> None:
    gm = good(changing, mib())
    (kept,) = of_role(gm, "keep")
    reader = next(iter(kept.users))
    kept.replace_all_uses_with(kept.all_input_nodes[0])
    assert_broken(gm, "not after a write", reader)


def test_a_copy_that_is_kept_too_late() -> None:
    gm = good(changing, mib())
    (kept,) = of_role(gm, "keep")
    reader = next(iter(kept.users))
    the(gm, aten.add_.Tensor).append(kept)
    assert_broken(gm, "not after a write", reader)


def test_recompute_of_what_was_written_since() -> None:
    """A recompute of sin alone would lack the 1 that was added to its result."""
    gm = traced(lambda x: x.sin().add_(1), mib())
    assert_broken(gm, "not after a write", with_recompute(gm, the(gm, aten.sin.default)))


def test_a_write_to_something_else_is_fine() -> None:
    gm = traced(lambda x, y: (x.sin(), y.add_(1))[0], mib(), mib())
    with_recompute(gm, the(gm, aten.sin.default))
    verify(gm)


def test_a_write_before_the_origin_is_fine() -> None:
    gm = traced(lambda x: x.add_(1).sin(), mib())
    with_recompute(gm, the(gm, aten.sin.default))
    verify(gm)


# --- liveness -----------------------------------------------------------------------------------------------


def timeline(gm: GraphModule, workspace: Mapping[str, int] | None = None) -> list[tuple[float, str]]:
    """The points as (MiB, name)."""
    return [(point.live / MiB, point.name) for point in liveness(gm, workspace or {}, CPU)]


def test_a_chain() -> None:
    def f(x: Tensor) -> Tensor:
        a = x.sin()  # x, a
        b = a.cos()  # x, a, b
        c = a + b  # x, a, b, c
        return c.exp()  # x, c, exp

    assert timeline(traced(f, mib())) == [(2, "sin"), (3, "cos"), (4, "add"), (3, "exp")]


def test_sizes() -> None:
    def f(x: Tensor) -> Tensor:
        a = torch.cat([x, x, x])  # x, 3
        b = a.to(torch.float64)  # x, 3, 6
        return (b[:512] * 2).to(torch.float16)

    assert timeline(traced(f, mib())) == [
        (4, "cat"),
        (10, "_to_copy"),
        (7, "slice_1"),
        (9, "mul"),
        (3.5, "_to_copy_1"),
    ]


def test_views_cost_nothing_and_keep_what_they_view() -> None:
    def f(x: Tensor) -> Tensor:
        a = x.sin()
        flat = a.view(-1)
        b = x.cos()  # a is alive for the sake of flat
        c = flat.sum()
        return b.exp() + c  # a is gone

    scalar = 4 / MiB
    assert timeline(traced(f, mib())) == [
        (2, "sin"),
        (2, "view"),
        (3, "cos"),
        (3 + scalar, "sum_1"),
        (3 + scalar, "exp"),
        (3 + scalar, "add"),
    ]


def test_several_outputs_die_one_by_one() -> None:
    def f(x: Tensor) -> Tensor:
        values, indices = x.sort()  # 1 and 2
        a = indices.to(torch.float32)  # 1
        b = values.exp()  # indices are gone
        return a * b

    assert timeline(traced(f, mib())) == [(4, "sort"), (5, "_to_copy"), (4, "exp"), (4, "mul")]


def test_an_output_that_nothing_reads() -> None:
    def f(x: Tensor) -> Tensor:
        values, _ = x.sort()
        return values.exp()

    assert timeline(traced(f, mib())) == [(4, "sort"), (3, "exp")]


def test_dead_code_lives_while_it_runs() -> None:
    def f(x: Tensor) -> Tensor:
        torch.rand_like(x)
        return x.sin()

    assert timeline(traced(f, mib())) == [(2, "rand_like"), (2, "sin")]


def test_outputs_stay_to_the_end() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = x.sin()
        b = a.cos()
        return a.t(), b.exp(), x

    # b goes; a stays although only its view is returned.
    assert timeline(traced(f, mib())) == [(2, "sin"), (3, "cos"), (3, "t"), (4, "exp")]


def test_an_input_that_is_not_read_does_not_count() -> None:
    gm = traced(lambda x, y: x.sin(), mib(), mib(7))
    assert timeline(gm) == [(2, "sin")]


def test_parameters_count_from_the_start() -> None:
    layer = torch.nn.Linear(512, 512, bias=False)
    gm = traced(lambda x: layer(x.sin()), mib())
    rewritten, _ = dtr_fx.transform(gm, 1.0)
    assert timeline(rewritten) == [(3, "sin"), (3, "t"), (4, "mm")]


def test_parameters_of_modules_count() -> None:
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(512, 512, bias=False), torch.nn.ReLU()))
    rewritten, _ = dtr_fx.transform(gm, 1.0, example_inputs=[mib()])
    assert timeline(rewritten) == [(3, "_0"), (4, "_1")]


def test_writes_cost_nothing() -> None:
    gm = traced(lambda x: x.sin().add_(1).mul_(2), mib())
    assert timeline(gm) == [(2, "sin"), (2, "add_"), (2, "mul_")]


def test_a_workspace_is_there_while_its_operator_runs() -> None:
    gm = traced(lambda x: x.sin().cos().exp(), mib())
    assert timeline(gm, {"cos": 5 * MiB}) == [(2, "sin"), (8, "cos"), (3, "exp")]


def test_another_device_is_not_counted() -> None:
    gm = traced(lambda x: x.sin(), mib())
    assert [point.live for point in liveness(gm, {}, torch.device("cuda"))] == [0]


def test_empty_tensors_cost_nothing() -> None:
    gm = traced(lambda x: x[:0].sin(), mib())
    assert timeline(gm) == [(1, "slice_1"), (1, "sin")]


def test_drops_and_recomputes() -> None:
    def f(x: Tensor) -> Tensor:
        a = x.sin()
        b = a.cos()
        return b.exp() + a

    gm = traced(f, mib())
    assert timeline(gm) == [(2, "sin"), (3, "cos"), (4, "exp"), (4, "add")]
    sin, cos, add = (the(gm, target) for target in (aten.sin.default, aten.cos.default, aten.add.Tensor))
    with gm.graph.inserting_after(cos):
        dropped = gm.graph.call_function(drop, (sin,))
    dropped.meta["dtr"] = {"role": "drop", "origin": "sin"}
    with gm.graph.inserting_before(add):
        again = gm.graph.node_copy(sin)
    again._rename("sin_recompute")
    again.meta = {"val": torch.clone(sin.meta["val"]), "dtr": {"role": "recompute", "origin": "sin"}}
    add.replace_input_with(sin, again)
    verify(gm)
    assert timeline(gm, {"sin": MiB}) == [
        (3, "sin"),
        (3, "cos"),
        (3, "exp"),  # sin is gone
        (4, "sin_recompute"),  # with its origin's workspace; cos is gone
        (4, "add"),
    ]


def test_tangents_come_with_the_backward_pass() -> None:
    def joint(primal: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
        a = primal.sin()
        return a, primal.cos() * tangent

    gm = traced(joint, mib(), mib())
    for node, tag in zip(gm.graph.nodes, ("forward", "backward", "forward", "backward", "backward")):
        node.meta["partitioner_tag"] = f"is_{tag}"
    assert timeline(gm) == [(2, "sin"), (4, "cos"), (5, "mul")]

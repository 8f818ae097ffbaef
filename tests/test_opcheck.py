"""What a rewritten graph calls beside PyTorch's operators, held to what ``torch.library.opcheck`` asks.

``opcheck`` takes registered operators: one for Inductor and those that move tensors; all else are functions.
"""

from __future__ import annotations

import operator
import traceback
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo import config as dynamo
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx.compiler import inductor  # with all that a step can load
from dtr_fx.passes import rng
from dtr_fx.passes.drops import drop
from dtr_fx.passes.lower_slices import LowerSlices
from dtr_fx.tiers import operators

pytestmark = pytest.mark.little_effort

aten = torch.ops.aten


def test_these_operators_are_registered() -> None:
    assert inductor
    names = torch._C._dispatch_get_all_op_names()
    own = {name for name in names if name.partition("::")[0] in ("dtr", "dtr_fx")}
    moves = {"offload", "wait_offload", "reload", "wait_reload"}
    assert own == {f"dtr_fx::{name}" for name in {"sliced", *moves}}


def test_a_region_in_slices_is_what_its_schema_says() -> None:
    gm = make_fx(lambda x: (x.exp() * 2).sum(0), tracing_mode="fake")(torch.randn(64, 1024))
    sliced, _ = dtr_fx.transform(gm, "60%", slices="summed")
    LowerSlices().call(sliced)
    [node] = sliced.graph.find_nodes(op="call_function", target=torch.ops.dtr_fx.sliced.default)
    x = torch.randn(64, 1024)
    torch.library.opcheck(node.target, ([x], node.args[1]))
    [found] = torch.ops.dtr_fx.sliced([x], node.args[1])
    torch.testing.assert_close(found, (x.exp() * 2).sum(0))


def test_moves_are_what_their_schemas_say(tmp_path: Path) -> None:
    tensor = torch.randn(8, 4).t()
    handle = operators.offload(tensor, str(tmp_path))
    layout = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    torch.library.opcheck(operators.wait_offload, (handle, tensor))
    torch.library.opcheck(operators.wait_reload, (torch.empty_like(tensor), handle))
    # Two handles differ, and what is not waited for may have any value.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operators.offload, (tensor, str(tmp_path)), test_utils=checks)
    torch.library.opcheck(operators.reload, (handle, *layout), test_utils=checks)


def test_a_wait_is_no_dead_code(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        handle = operators.offload(x, str(tmp_path))
        operators.wait_offload(handle, x)
        operators.wait_reload(operators.reload(handle, [4], [1], torch.float32, x.device), handle)
        return x

    gm = make_fx(function, tracing_mode="fake")(torch.randn(4))
    gm.graph.eliminate_dead_code()
    called = [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
    names = "offload", "wait_offload", "reload", "wait_reload"
    assert called == [f"dtr_fx.{name}.default" for name in names]


def test_a_rewritten_graph_calls_operators_of_pytorch_and_three_functions() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        layers = [x]
        for _ in range(6):
            layers.append(aten.native_dropout(layers[-1].sin(), 0.5, True)[0])
        total = layers[-1]
        for layer in layers[-2::-1]:
            total = total * layer
        return total.sum()

    gm = make_fx(chain, tracing_mode="fake")(torch.randn(256, 64))
    rewritten, _ = dtr_fx.transform(gm, "70%", planner="online")
    called = {node.target for node in rewritten.graph.nodes if node.op == "call_function"}
    own = {target for target in called if not isinstance(target, torch._ops.OpOverload)}
    assert own == {operator.getitem, drop, rng.save_state, rng.replay}


DRAWS = {
    "rand": (aten.rand.default, ([8, 4],)),
    "bernoulli": (aten.bernoulli.p, (torch.ones(8, 4), 0.5)),
    "native_dropout": (aten.native_dropout.default, (torch.ones(8, 4), 0.5, True)),
    "a function": ("torch.nn.functional:dropout", (torch.ones(8, 4), 0.5)),
    "a method": (".bernoulli", (torch.ones(8, 4), 0.5)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_replay_draws_again_what_was_drawn_and_changes_nothing_else(name: str) -> None:
    target, args = DRAWS[name]
    first_function = {"a function": F.dropout, "a method": torch.Tensor.bernoulli}.get(name, target)
    torch.manual_seed(0)
    state = rng.save_state("cpu")
    first = torch.utils._pytree.tree_leaves(first_function(*args))
    after, given = torch.get_rng_state(), state.clone()
    for _ in range(2):
        torch.rand(3)
        before = torch.get_rng_state()
        again = torch.utils._pytree.tree_leaves(rng.replay(state, "cpu", target, *args))
        assert all(map(torch.equal, again, first))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(state, given)
        pointers = {leaf.data_ptr() for leaf in args if isinstance(leaf, torch.Tensor)}
        assert pointers.isdisjoint(leaf.data_ptr() for leaf in again)
    assert not torch.equal(torch.get_rng_state(), after)


def test_a_saved_state_is_a_tensor_of_its_own() -> None:
    state = rng.save_state("cpu")
    torch.rand(3)
    assert not torch.equal(state, torch.get_rng_state())


def test_the_minifier_is_given_the_fault(tmp_path: Path) -> None:
    """It runs copies of the graph and of what the backend returns."""

    def costs(node: torch.fx.Node) -> float:
        if node.target is aten.sigmoid.default:
            raise ArithmeticError("no cost of a sigmoid")
        return 1.0

    torch._dynamo.reset()
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sigmoid()), torch.randn(4, 8)
    with (
        dynamo.patch(repro_after="dynamo", repro_level=2, debug_dir_root=str(tmp_path)),
        pytest.raises(Exception, match="no cost of a sigmoid"),
    ):
        torch.compile(model, backend="dtr", options={"budget": "90%", "costs": costs})(x)
    [launcher] = tmp_path.rglob("minifier_launcher.py")
    assert "sigmoid" in launcher.read_text()
    assert "backend='dtr'" in launcher.read_text()


@torch.library.custom_op("dtr_tests::drifting", mutates_args=())
def drifting(x: torch.Tensor) -> torch.Tensor:
    """Another value when it is recomputed."""
    is_late = any(frame.name == "backward" for frame in traceback.extract_stack())
    return x.sin() + 0.1 * is_late


drifting.register_fake(torch.empty_like)
drifting.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@pytest.mark.parametrize("budget", ["90%", "100%"])
def test_the_minifier_is_given_results_that_are_off(budget: str, tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = drifting(x * 2)
        for _ in range(6):
            y = y.sin()
        return y.sum()

    torch._dynamo.reset()
    costs = {torch.ops.dtr_tests.drifting.default: 0.0}  # so that a plan recomputes it
    compiled = torch.compile(function, backend="dtr", options={"budget": budget, "costs": costs})
    x = torch.randn(4096, requires_grad=True)
    with dynamo.patch(repro_after="dynamo", repro_level=4, debug_dir_root=str(tmp_path)):
        if budget == "100%":
            compiled(x).backward()
            return
        with pytest.raises(Exception, match="Bad accuracy"):
            compiled(x)
    [launcher] = tmp_path.rglob("minifier_launcher.py")
    assert "drifting" in launcher.read_text()

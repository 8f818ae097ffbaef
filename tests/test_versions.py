"""What one torch has and another has not, and which versions are checked.

What torch 2.15 tells a partitioner is obeyed: inputs that are written after the forward graph, inputs that
stay where they are, waits for several collectives, and marks on operators with effects.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import dtr_fx
from dtr_fx import torch_private

ROOT = Path(__file__).parent.parent
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
since_2_15 = pytest.mark.skipif(VERSION < (2, 15), reason=f"torch {torch.__version__} is older than 2.15")


def inputs_of_both(function: Any, x: Tensor, budget: str) -> tuple[list[Node], list[Node]]:
    """Run a step with ``partition_fn``: the inputs of its forward and of its backward graph."""
    graphs: list[GraphModule] = []

    def compiler(gm: GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return dtr_fx.boxed_compiler(gm, inputs)

    torch._dynamo.reset()
    backend = torch_private.aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=dtr_fx.partition_fn(budget, plan_seconds=0.05),
    )
    torch.compile(function, backend=backend)(x).backward()
    forward, backward = (list(gm.graph.find_nodes(op="placeholder")) for gm in graphs)
    return forward, backward


class WritesItsInput(nn.Module):
    """The backward pass computes from the input as it was before the write."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 32 * 32).view(32, 32))

    def forward(self, x: Tensor) -> Tensor:
        before = x.detach()
        a = (before.sin() @ self.w) * (before.cos() @ self.w) * (before.exp() @ self.w)
        x.mul_(0.5)
        return a.sum() + x.sum()


@since_2_15
def test_an_input_that_is_written_after_the_forward_graph_is_not_saved() -> None:
    leaf, model = torch.randn(128, 32, requires_grad=True), WritesItsInput()
    torch.compile(model, backend="aot_eager")(leaf * 1).backward()
    expected = model.w.grad
    model.w.grad = None
    forward, backward = inputs_of_both(model, leaf * 1, "72%")
    written = {node.name for node in forward if node.meta.get("aot_runtime_epilogue_input_mutation")}
    assert len(written) == 1
    assert written.isdisjoint(node.name for node in backward)
    assert torch.equal(model.w.grad, expected)


@since_2_15
def test_the_backward_graph_knows_which_inputs_stay_where_they_are() -> None:
    scale = nn.Parameter(torch.randn(16))
    _, backward = inputs_of_both(
        lambda x: (x * scale).sin().mul(scale).exp().mul(x).cos().exp().sum(), torch.randn(64, 16), "80%"
    )
    known = {
        tuple(node.meta["val"].shape): node.meta["is_static_input"]
        for node in backward
        if "is_static_input" in node.meta
    }
    assert known == {(64, 16): False, (16,): True}  # the batch, and a parameter


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@since_2_15
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")
@pytest.mark.usefixtures("one_rank")
def test_collectives_and_their_common_wait_run_once() -> None:
    from torch.distributed._functional_collectives import all_reduce_coalesced

    def step(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            a, b = all_reduce_coalesced([(x @ w).sin(), (x @ w).cos()], "sum", dist.group.WORLD)
            x = a * b
        return x.sum()

    def gradient(backend: str, **options: Any) -> Tensor:
        torch._dynamo.reset()
        x, w = torch.linspace(-1, 1, 256 * 32).view(256, 32), torch.linspace(-1, 1, 32 * 32).view(32, 32)
        torch.compile(step, backend=backend, **options)(x, w.requires_grad_()).backward()
        assert w.grad is not None
        return w.grad

    reports: list[dtr_fx.Report] = []
    options = {"budget": "65%", "plan_seconds": 0.05, "on_report": reports.append}
    assert torch.equal(gradient("dtr", options=options), gradient("aot_eager"))
    ran = [event.origin for event in reports[0].events if event.kind in ("compute", "recompute")]
    waits = [name for name in ran if name.startswith("wait_tensors")]
    assert len(waits) == len(set(waits)) >= 3
    assert reports[0].recomputes > 0


@torch.library.custom_op("dtr_versions::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    return x.sin()


noted.register_fake(torch.empty_like)
noted.register_autograd(lambda context, gradient: gradient * 2)


def test_what_has_effects_is_run_once_or_refused() -> None:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    def step(policy: CheckpointPolicy, backend: str, **options: Any) -> Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: policy)
        w = torch.linspace(-1, 1, 64 * 64).view(64, 64).requires_grad_()

        def region(x: Tensor) -> Tensor:
            return noted(x @ w).tanh().exp()

        def function(x: Tensor) -> Tensor:
            return checkpoint(region, x, use_reentrant=False, context_fn=contexts).sin().sum()

        torch._dynamo.reset()
        torch.compile(function, backend=backend, **options)(
            torch.linspace(0, 1, 64 * 64).view(64, 64)
        ).backward()
        assert w.grad is not None
        return w.grad

    effect = _register_effectful_op(torch.ops.dtr_versions.noted.default, _EffectType.ORDERED)
    try:
        reports: list[dtr_fx.Report] = []
        options = {"plan_seconds": 0.05, "on_report": reports.append}
        policy = CheckpointPolicy.PREFER_RECOMPUTE
        torch.testing.assert_close(step(policy, "dtr", options=options), step(policy, "eager"))
        again = [event.origin for event in reports[0].events if event.kind == "recompute"]
        assert again
        assert not any("effects" in name for name in again)
        with pytest.raises(dtr_fx.GraphError, match=r"noted.*runs once.*PREFER_RECOMPUTE"):
            step(CheckpointPolicy.MUST_RECOMPUTE, "dtr", options=options)
    finally:
        if effect is not None:
            effect.destroy()


# --- which versions are checked ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0.0", "2.100.1", "2.99.0a0+git1234"])
def test_a_newer_torch_is_a_warning(version: str, caplog: pytest.LogCaptureFixture) -> None:
    torch_private.warn_if_unchecked(version)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"to {torch_private.CHECKED[-1]}; this is {version}" in record.getMessage()


def test_a_checked_torch_is_none(caplog: pytest.LogCaptureFixture) -> None:
    for version in (torch.__version__, *torch_private.CHECKED, f"{torch_private.CHECKED[-1]}.7+cpu"):
        torch_private.warn_if_unchecked(version)
    assert not caplog.records


def checked_by_ci() -> list[str]:
    lines = (ROOT / ".ci" / "versions").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def test_readme_says_what_is_checked() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, found, rest = text.partition("| torch | Python | passed | skipped |\n")
    assert found
    table = rest.partition("\n\n")[0]
    assert re.findall(r"^\| (\d\S*) \|", table, re.MULTILINE) == checked_by_ci()


def test_every_checked_version_is_one_that_ci_runs() -> None:
    assert [version.rpartition(".")[0] for version in checked_by_ci()] == list(torch_private.CHECKED)
    oldest, newest = torch_private.CHECKED[0], torch_private.CHECKED[-1]
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"torch>={oldest}",' in pyproject
    limits = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"torch {oldest} or newer, checked up to {newest}" in limits
    assert f"'torch>={oldest}' --index-url" in limits


def test_each_part_of_the_quarter_is_there() -> None:
    lines = (ROOT / ".ci" / "quarter").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not line.startswith("#"):
            file, _, name = line.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert not name or f"def {name.partition('[')[0]}(" in text

"""Pipelines: what a pass requires, an earlier one ensures."""

from __future__ import annotations

import pytest
import torch
from torch.fx import symbolic_trace

from dtr_fx.passes.contract import KERNELS, ORDER, PLAN, VALUES, VERIFIED, Pipeline, PipelineError
from dtr_fx.passes.drops import ForgetPlan, LowerDrops
from dtr_fx.passes.kernels import ContractKernels, ExpandKernels
from dtr_fx.passes.propagate import Propagate
from dtr_fx.passes.split import ExecutionOrder, MergeDuplicates
from dtr_fx.passes.verify import Verify


@pytest.mark.parametrize(
    ("passes", "given", "missing"),
    [
        ((Verify(),), (VALUES,), "'verify' requires: Drop and Recompute nodes"),
        ((MergeDuplicates(),), (VALUES,), "'merge duplicates' requires: nodes stand in the order"),
        ((ExecutionOrder(), MergeDuplicates()), (), "'merge duplicates' requires: every node has its fake"),
        ((ForgetPlan(), Verify()), (VALUES, PLAN), "'verify' requires: Drop and Recompute nodes"),
        ((ContractKernels(), ExpandKernels(), ExpandKernels()), (VALUES,), "'expand kernels' requires"),
    ],
)
def test_a_pass_in_the_wrong_place_is_refused_before_anything_runs(passes, given, missing):
    with pytest.raises(PipelineError, match=missing):
        Pipeline(*passes, given=given)


def test_a_pipeline_says_what_it_ensures():
    assert Pipeline(ExecutionOrder(), MergeDuplicates(), given=(VALUES,)).ensures == {VALUES, ORDER}
    assert Pipeline(ContractKernels(), ExpandKernels(), given=(VALUES,)).ensures == {VALUES}
    assert KERNELS in Pipeline(ContractKernels(), given=(VALUES,)).ensures
    assert VERIFIED in Pipeline(Verify(), given=(VALUES, PLAN)).ensures


def test_passes_run_in_order_and_say_if_the_graph_was_modified():
    gm = symbolic_trace(lambda x: x.sin().cos())
    ran: list[str] = []
    result = Pipeline(ForgetPlan(), Propagate([torch.ones(3)]), LowerDrops())(gm, ran.append)
    assert ran == ["forget plan", "propagate", "lower drops"]
    assert result.graph_module is gm
    assert not result.modified
    assert all("val" in node.meta for node in gm.graph.nodes if node.op != "output")

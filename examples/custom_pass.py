"""``dtr_fx.transform`` as one pass in a pipeline of one's own.

    $ python examples/custom_pass.py
    $ python examples/custom_pass.py --budget 70% 40% 6MiB

    trace ──► remove_identities ──► CSEPass ──► dtr_fx.transform ──► run
    make_fx   a pass of one's own   torch's     budget, heuristic

The graph is a whole training step, loss and gradients, traced without Dynamo or AOTAutograd. It is brought
into each budget by three heuristics, one of them a function defined here. Each result is run beside the
traced graph under the same seed, since there is dropout: outputs are compared bit for bit, and peaks are
measured. At the end, the lines of one rewritten graph that tell the life of one tensor: computed, dropped,
recomputed.

Order matters: common subexpressions are merged before ``transform``, never after it, since a Recompute is a
common subexpression by design.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from tabulate import tabulate
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.passes.infra.pass_manager import PassManager
from torch.utils._pytree import tree_leaves

import dtr_fx
from dtr_fx.lab import zoo
from dtr_fx.units import format_bytes, format_percent, format_seconds

Array = npt.NDArray[np.float64]


def large_first(s: Array, m: Array, c: Array) -> Array:
    """A heuristic: whatever scores lowest goes, here a large tensor that is cheap to compute again.

    ``s`` is the staleness in seconds, ``m`` the size in bytes, ``c`` the cost in seconds of recomputing a
    tensor together with the evicted tensors around it.
    """
    return c / m**2


# --- The pipeline ------------------------------------------------------------------------------------------


def trace_step() -> tuple[GraphModule, list[Tensor]]:
    """A training step of a GPT as one graph, and its inputs: parameters, tokens, targets."""
    torch.manual_seed(0)
    model, batch = zoo.gpt(layers=4, width=64, batch=16)
    names, parameters = zip(*model.named_parameters())

    def loss(*inputs: Tensor) -> Tensor:
        *values, tokens, targets = inputs
        return torch.func.functional_call(model, dict(zip(names, values)), (tokens, targets))

    # What is written in place is never recomputed: functionalize leaves nothing of the kind.
    step = torch.func.functionalize(torch.func.grad_and_value(loss, argnums=tuple(range(len(names)))))
    inputs = [*(parameter.detach() for parameter in parameters), *batch]
    return make_fx(step, tracing_mode="fake")(*inputs), inputs


def remove_identities(gm: GraphModule) -> PassResult:
    """Take out views that change nothing: an ``expand`` or ``view`` to the shape that was there."""
    views = (torch.ops.aten.expand.default, torch.ops.aten.view.default)
    identities = [
        node
        for node in gm.graph.nodes
        if node.target in views and node.meta["val"].shape == node.args[0].meta["val"].shape
    ]
    for node in identities:
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    gm.recompile()
    return PassResult(gm, bool(identities))


# --- What it shows -----------------------------------------------------------------------------------------


@torch.no_grad()
def run(gm: GraphModule, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The graph's outputs; without ``no_grad`` autograd would hold on to what the plan lets go."""
    torch.manual_seed(1)
    return tree_leaves(gm(*inputs))


def seconds(gm: GraphModule, inputs: Sequence[Tensor]) -> float:
    def once() -> float:
        started = time.perf_counter()
        run(gm, inputs)
        return time.perf_counter() - started

    return min(once() for _ in range(5))


class Comparison:
    """Rows of a table: each holds one graph against the traced one."""

    def __init__(self, traced: GraphModule, inputs: Sequence[Tensor]) -> None:
        self._inputs = inputs
        self._wanted = run(traced, inputs)
        self._held = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(inputs))
        self.rows: list[dict[str, str]] = []

    def add(self, name: str, gm: GraphModule, report: dtr_fx.Report | None = None) -> None:
        peak = self._held + dtr_fx.measure_peak(run, gm, self._inputs)
        same = all(map(torch.equal, run(gm, self._inputs), self._wanted))
        self.rows.append(
            {
                "graph": name,
                "nodes": str(len(gm.graph.nodes)),
                "budget": format_bytes(report.budget) if report else "",
                "planned": format_bytes(report.planned_peak) if report else "",
                "measured": format_bytes(peak),
                "extra compute": format_percent(report.overhead) if report else "",
                "fastest of 5": format_seconds(seconds(gm, self._inputs)),
                "outputs": "identical" if same else "DIFFERENT",
            }
        )

    def __str__(self) -> str:
        return tabulate(self.rows, headers="keys", disable_numparse=True, colalign=("left", *("right",) * 7))


def life(gm: GraphModule, report: dtr_fx.Report) -> str:
    """The lines of ``print_readable`` about a value that was dropped: the largest that a score chose."""
    drops = [event for event in report.events if event.kind == "drop"]
    if not drops:
        return "  nothing was dropped"
    origin = max(drops, key=lambda event: (event.score is not None, event.nbytes)).origin
    text = gm.print_readable(print_output=False, additional_meta=["dtr"])
    lines = [line.split(";")[0].partition(" # No stacktrace")[0].strip() for line in text.splitlines()]
    shown = [line for line in lines if line.startswith(f"{origin}:")]
    for said, line in pairwise(lines):
        if f"'origin': '{origin}'" in said:
            shown += [said, line]
    return "\n".join(f"  {line}" for line in shown)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", nargs="+", default=["60%", "35%"], help="60%% and 35%% are the default")
    budgets = parser.parse_args(arguments).budget

    traced, inputs = trace_step()
    comparison = Comparison(traced, inputs)
    comparison.add("traced", traced)
    prepared = PassManager([remove_identities, CSEPass(get_CSE_banned_ops())])(traced).graph_module
    comparison.add("own passes", prepared)

    lives: list[str] = []
    heuristics: list[str | Callable[..., Array]] = ["next-use", "dtr-eq", large_first]
    for budget in budgets:
        for heuristic in heuristics:
            try:
                rewritten, report = dtr_fx.transform(prepared, budget, heuristic=heuristic)
            except dtr_fx.DTRError as error:
                sys.exit(f"custom_pass.py: {error}")
            comparison.add(f"{budget} {dtr_fx.runtime.resolve(heuristic).name}", rewritten, report)
            lives.append(life(rewritten, report))

    print("a training step of a 4-layer GPT; bytes include inputs and parameters")
    print(comparison)
    print(f"\nthe largest tensor that was evicted for {comparison.rows[-1]['graph']}:\n{lives[-1]}")


if __name__ == "__main__":
    main()

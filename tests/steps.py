"""Training steps under one backend or another, and all that they leave behind, to the bit.

    check(make) ── run under aot_eager ── run under dtr, budget 1.0 ── run under dtr, the least budget

``make`` makes a job: a model and what it is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from dtr_fx import InfeasibleBudgetError, LivePlan, Report, plans


@dataclass(frozen=True)
class Job:
    """A model and what it is called with: one step for each of ``batches``, or two if there is but one."""

    model: nn.Module
    batches: Sequence[tuple[Any, ...]]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> Sequence[tuple[Any, ...]]:
        return self.batches if len(self.batches) > 1 else [*self.batches, *self.batches]


Make = Callable[[], Job]


def job(model: nn.Module, *args: Any, **kwargs: Any) -> Job:
    """Two steps of ``model(*args, **kwargs)``."""
    return Job(model, [args], kwargs)


class Between(nn.Module):
    """A module between pointwise operators, whose inputs are there to be dropped and recomputed."""

    def __init__(self, module: nn.Module, prepare: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.module = module
        self.prepare = prepare

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(lambda x: self.prepare(chain(x)) if _learns(x) else x, (args, kwargs))
        return pytree.tree_map(lambda y: chain(y) if _learns(y) else y, self.module(*args, **kwargs))


class Function(nn.Module):
    """A function of tensors and of modules, as one module."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, *args: Any) -> Any:
        return self.function(*args, *self.parts)


def chain(x: Tensor) -> Tensor:
    """Operators that each save what they read; the result may be written in place."""
    return (x.sin().cos() * 1.5).sin().cos()


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def between(
    module: nn.Module, *args: Any, prepare: Callable[[Tensor], Tensor] = lambda x: x, **kwargs: Any
) -> Job:
    """Two steps of the module between chains; ``prepare`` brings inputs into the range that it takes."""
    return job(Between(module, prepare), *args, **kwargs)


@dataclass(frozen=True)
class Run:
    """For every step, its results by name; a report for every plan; how many graphs Dynamo made."""

    results: list[dict[str, Any]]
    reports: list[Report]
    graphs: int

    @property
    def gradients(self) -> int:
        """How many gradients the last step left behind."""
        found = self.results[-1].items()
        return sum(name.startswith("gradient of ") and value is not None for name, value in found)

    @property
    def changes(self) -> int:
        return sum(report.recomputes + len(report.slices) for report in self.reports)


def run(make: Make, backend: str, *, dynamic: bool | None = None, budget: float | int | None = None) -> Run:
    """Make the job anew, compile it and take its steps, always from the same seed."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    made = make()
    reports: list[Report] = []
    options = {"budget": budget, "planner": "online", "heuristic": "dtr-eq", "on_report": reports.append}
    given = {"options": options} if backend == "dtr" else {}
    # nn.LSTM and its kin would be left to run uncompiled.
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(made.model, backend=backend, dynamic=dynamic, **given)
        results = [take_step(made, compiled, batch, seed) for seed, batch in enumerate(made.steps)]
    return Run(results, reports, torch._dynamo.utils.counters["stats"]["unique_graphs"])


def run_smallest(make: Make, full: Run, *, dynamic: bool | None = None) -> Run:
    """The job at the lower bound that was reported in full, or else at the smallest budget that errors name.

    A budget is for each graph: where Dynamo makes several, one that is enough for the first may not be for
    the next.
    """
    budget = max((report.lower_bound for report in full.reports), default=1)
    while True:
        try:
            return run(make, "dtr", dynamic=dynamic, budget=budget)
        except InfeasibleBudgetError as error:
            told = error
        assert budget < told.smallest <= told.baseline_peak
        assert told.lower_bound <= told.smallest
        budget = told.smallest


def check(make: Make, *, reference: str = "aot_eager", dynamic: bool | None = None) -> tuple[Run, Run]:
    """Hold ``dtr`` at its two ends against the reference; the runs at 100% and at the smallest budget."""
    expected = run(make, reference, dynamic=dynamic)
    full = run(make, "dtr", dynamic=dynamic, budget=1.0)
    small = run_smallest(make, full, dynamic=dynamic)
    assert expected.gradients > 0
    for ours in (full, small):
        assert differing(ours, expected) == []
        # As many: a plan made for one size of the inputs must not bind the code to it.
        assert ours.graphs == expected.graphs
        assert all(report.planned_peak <= report.budget for report in ours.reports)
    return full, small


def differing(ours: Run, theirs: Run) -> list[str]:
    """The names of results that are not the same, to the bit and the stride, or that one side lacks."""
    names = []
    for step, (mine, other) in enumerate(zip(ours.results, theirs.results, strict=True)):
        names += [f"{name} of step {step}" for name in {**mine, **other} if mine.get(name) != other.get(name)]
    return names


def plans_beside(earlier: Sequence[LivePlan]) -> list[LivePlan]:
    """The plans that are alive and were not before: a module's globals keep some of Dynamo's graphs."""
    return [plan for plan in plans() if not any(plan is other for other in earlier)]


def take_step(made: Job, forward: Callable[..., Any], batch: tuple[Any, ...], seed: int) -> dict[str, Any]:
    """One forward and backward pass; the loss weighs every element of every output differently."""
    inputs = [leaf for leaf in pytree.tree_leaves((batch, made.kwargs)) if isinstance(leaf, Tensor)]
    for tensor in (*made.model.parameters(), *inputs):
        tensor.grad = None
    torch.manual_seed(seed)
    output = forward(*batch, **made.kwargs)
    outputs, structure = pytree.tree_flatten(output)
    results = {"structure": str(structure)}
    results |= {f"output {number}": bits(value) for number, value in enumerate(outputs)}
    losses = [weighed(value) for value in outputs if _learns(value)]
    if losses:
        torch.stack(losses).sum().backward()
    tensors = dict([*made.model.named_parameters(), *made.model.named_buffers()])
    tensors |= {f"input {number}": tensor for number, tensor in enumerate(inputs)}
    results |= {name: bits(tensor) for name, tensor in tensors.items()}
    results |= {
        f"gradient of {name}": bits(tensor.grad) for name, tensor in tensors.items() if tensor.is_leaf
    }
    results["generator"] = bits(torch.get_rng_state())
    return results


def weighed(value: Tensor) -> Tensor:
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    weights = torch.linspace(-1, 1, value.numel()).reshape(value.shape)
    return (value.float() * weights).sum()


def bits(value: Any) -> Any:
    """What tells a value from every other: of a tensor its type, shape, strides and bytes."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    if value.layout is torch.sparse_coo:
        return "sparse", value.shape, bits(value._indices()), bits(value._values())
    raw = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return value.dtype, value.shape, value.stride(), raw.numpy().tobytes()

"""Random models as whole steps: ``train_step`` against eager's own loop, to the bit, at three budgets.

    python tests/random_steps.py --seeds 0:200
    python tests/random_steps.py --seeds 17:18 --show

A seed is a model of ``random_models`` with an optimizer, maybe with clipping or micro-batches.  It is trained
for three steps in eager, then at 100%, at the smallest budget and half way between; where a result differs,
the model compiled by ``aot_eager_default_partitioner`` is the reference.  The peak of a step is held to the
budget.  What one graph cannot do is refused, and counted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "DTR_DEBUG": "1"}

import torch
from against_eager import REFERENCE
from random_models import _NAMES, Source, write_source
from steps import bits
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adagrad, AdamW, RMSprop

import dtr_fx
from dtr_fx import GraphError, InfeasibleBudgetError, OptionError, measure_peak

STEPS = 3
_OPTIMIZERS = (
    AdamW,
    partial(AdamW, amsgrad=True, weight_decay=0.1),
    partial(SGD, lr=0.01),
    partial(SGD, lr=0.01, momentum=0.9, dampening=0.1),
    partial(RMSprop, centered=True),
    Adagrad,
)


def loss_of(model: Callable[..., Any], *batch: Tensor) -> Tensor:
    """A weighted sum of what the model returns and can be differentiated."""
    outputs = model(*batch)
    roots = [one for one in outputs if isinstance(one, Tensor) and one.requires_grad]
    weighted = (one.float() * torch.linspace(-1, 1, one.numel()).reshape(one.shape) for one in roots)
    return sum((one.sum() for one in weighted), torch.zeros(()))


class Subject:
    """A model with its batches and its optimizer, the same each time that it is made."""

    def __init__(self, source: Source, seed: int) -> None:
        scope = {**_NAMES, "backward": None}
        exec(compile(source.text, "<model>", "exec"), scope)
        torch.manual_seed(0)
        self.model: nn.Module = scope["Model"]()
        draw = torch.Generator().manual_seed(1)
        made = [scope["batch"](lambda *shape: torch.randn(shape, generator=draw)) for _ in range(STEPS)]
        self.batches = [[tensor.detach() for tensor in batch] for batch in made]
        choice = random.Random(seed)
        self.optimizer = choice.choice(_OPTIMIZERS)(self.model.parameters())
        self.max_norm = choice.choice([None, None, 1.0])

    def train(self, step: Callable[..., Tensor]) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for number, batch in enumerate(self.batches):
            torch.manual_seed(number)
            results[f"loss {number}"] = bits(step(*batch))
        results |= {name: bits(tensor) for name, tensor in self.model.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            results |= {f"{name} {number}": bits(value) for name, value in state.items() if value is not None}
        return results | {"generator": bits(torch.get_rng_state())}

    def eager(self, compiled: Callable[[nn.Module], Any] = lambda model: model) -> dict[str, Any]:
        forward = compiled(self.model)

        def step(*batch: Tensor) -> Tensor:
            loss = loss_of(forward, *batch)
            loss.backward()
            if self.max_norm is not None:
                clip_grad_norm_(self.model.parameters(), self.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss.detach()

        return self.train(step)


def check(seed: int) -> str:
    """How a seed went."""
    source = write_source(seed)
    make = partial(Subject, source, seed)
    try:
        expected = make().eager()
    except Exception as error:
        return f"refused by eager: {type(error).__name__}"
    try:
        subject = make()
        whole = dtr_fx.train_step(subject.model, loss_of, subject.optimizer, max_norm=subject.max_norm)
        gm = whole.graph(*subject.batches[0])
    except (GraphError, OptionError) as error:
        return f"refused: {str(error)[:90]}"
    smallest = dtr_fx.smallest_budget(gm, options={"plan_seconds": 0.02})
    peak = max(smallest, dtr_fx.transform(gm, "100%")[1].baseline_peak)
    for budget in ("100%", (smallest + peak) // 2, smallest):
        subject = make()
        given = subject.optimizer, budget
        step = dtr_fx.train_step(subject.model, loss_of, *given, max_norm=subject.max_norm, plan_seconds=0.02)
        try:
            found = subject.train(step)
        except GraphError as error:
            return f"refused: {error}"
        except InfeasibleBudgetError as error:
            if budget == smallest:  # of another search
                continue
            return f"FAILED at {budget}: {error}"
        different = [name for name in expected if found.get(name) != expected[name]]
        if different:
            torch._dynamo.reset()
            try:
                compiled = make().eager(partial(torch.compile, backend=REFERENCE))
            except Exception as error:
                return f"refused by PyTorch: {type(error).__name__}"
            different = [name for name in different if found.get(name) != compiled[name]]
        if different:
            return f"FAILED at {budget}: {', '.join(different[:4])} differ"
        [*_, report] = step.reports
        measured = report.constants + measure_peak(step, *subject.batches[0])
        if measured > report.budget:
            return f"FAILED at {budget}: {measured - report.budget} bytes above it"
    return "equal"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--show", action="store_true", help="print the models, too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for seed in range(*map(int, arguments.seeds.split(":"))):
        if arguments.show:
            print(write_source(seed).text)
        try:
            outcome = check(seed)
        except Exception as error:
            outcome = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
        counts[outcome.split()[0].strip(":")] += 1
        print(seed, outcome, flush=True)
    print(dict(counts))
    sys.exit(counts["FAILED"] > 0)


if __name__ == "__main__":
    main()

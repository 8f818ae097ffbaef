"""PyTorch's own lists of operators, modules and higher-order operators, trained under dtr.

Every operator of ``op_db`` that has gradients, in float32 and complex64, at most three samples each; every
module of ``module_db``; ``hop_db``.  Inputs come from operators that can run again, so that a plan has what
to drop.

    python tests/strangers.py --ops --modules --hops --log strangers.jsonl    # goes on where it stopped
    python tests/strangers.py --ops --like 'float32/2$' --log third.jsonl    # third samples
    python tests/strangers.py --only op_db/sin/float32/0
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "DTR_DEBUG": "1"}

import torch
import torch.utils._pytree as pytree
from against_eager import Absent, Case, Run, check, sweep
from steps import bits, weighed
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.hop_db import hop_db

SAMPLES = 3
DTYPES = (torch.float32, torch.complex64)


class Prepared(nn.Module):
    """A function of tensors, each of which is made anew, to the bit, from an input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def made(value: Any) -> Any:
            return value * 2 * 0.5 if isinstance(value, Tensor) and value.requires_grad else value

        args, kwargs = pytree.tree_map(made, (args, kwargs))
        return self.function(*args, **kwargs)


def case_of(make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]) -> Case:
    """A step of the function that ``make`` gives, with its arguments."""

    def run(compiled: Callable[[Any], Any]) -> Run:
        torch.manual_seed(0)
        function, args, kwargs = make()
        model = Prepared(function)
        args, kwargs = pytree.tree_map(_copied, (args, kwargs))
        with torch._dynamo.config.patch(allow_rnn=True):
            outputs = compiled(model)(*args, **kwargs)
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
        results = {f"output {number}": bits(leaf) for number, leaf in enumerate(leaves)}
        losses = [weighed(leaf) for leaf in leaves if leaf.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        tensors |= {f"input {number}": tensor for number, tensor in enumerate(inputs)}
        results |= {name: bits(tensor) for name, tensor in tensors.items()}
        results |= {f"gradient of {name}": bits(t.grad) for name, t in tensors.items() if t.is_leaf}
        return Run(results | {"generator": bits(torch.get_rng_state())})

    return Case(run)


def _copied(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


Cases = Iterator[tuple[str, Callable[[], Case]]]


def operators(infos: Any, suite: str, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Cases:
    """The first sample of all operators, then the second, the third."""
    for number, dtype in itertools.product(range(SAMPLES), dtypes):
        for info in infos:
            allowed = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
            if dtype in allowed:
                full = f"{info.name}.{info.variant_test_name}".rstrip(".")
                name = f"{suite}/{full}/{str(dtype).partition('.')[2]}/{number}"
                yield name, functools.partial(_sample, info, dtype, number)


def _sample(info: Any, dtype: torch.dtype, number: int) -> Case:
    torch.manual_seed(number)
    samples = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=True), number, number + 1)
    sample = next(samples, None)
    if sample is None:
        raise Absent
    return case_of(lambda: (info.op, (sample.input, *sample.args), sample.kwargs))


def modules() -> Cases:
    for info in module_db:
        for number in range(SAMPLES):
            yield f"module_db/{info.name}/{number}", functools.partial(_module, info, number)


def _module(info: Any, number: int) -> Case:
    def make() -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        given = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        if number >= len(given):
            raise Absent
        built, used = given[number].constructor_input, given[number].forward_input
        module = info.module_cls(*built.args, **built.kwargs).train()
        return module, used.args, used.kwargs

    return case_of(make)


SUITES: dict[str, Callable[[], Cases]] = {
    "ops": lambda: operators(op_db, "op_db"),
    "modules": modules,
    "hops": lambda: operators(hop_db, "hop_db", (torch.float32,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for suite in SUITES:
        parser.add_argument(f"--{suite}", action="store_true")
    parser.add_argument("--log", type=Path, default=Path("strangers.jsonl"))
    parser.add_argument("--only")
    parser.add_argument("--like", default="", help="a regular expression in names: float32/2$, third samples")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.only:
        print(check(dict(itertools.chain(*(suite() for suite in SUITES.values())))[arguments.only]()))
        return
    chosen = [suite() for name, suite in SUITES.items() if getattr(arguments, name)]
    cases = itertools.chain(*chosen)
    sweep((case for case in cases if re.search(arguments.like, case[0])), arguments.log)


if __name__ == "__main__":
    main()

"""What a user waits for: the first step of a process, and the first step of each new sequence length.

``python tests/latency.py --first`` takes a GPT of 12 layers, and others, through one step in a process of its
own, under aot_eager, under dtr with an empty folder of plans, and with the folder that this left.
``python tests/latency.py --lengths`` trains a Llama of transformers, which is untrained, on many lengths.

Seconds are CPU time on one thread; of several processes the least counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from dtr_fx.cli.targets import load_target
from dtr_fx.inspect.table import table

MODELS = {"zoo:gpt": "60%", "zoo:resnet50": "70%", "zoo:unet": "95%", "zoo:mlp": "60%"}
LENGTHS = (64, 100, 80, 90, 120, 70, 128, 200, 33, 150)
BUDGETS = (None, "70%", "60MiB")


def first_step(target: str, backend: str) -> float:
    """Seconds of the first step of a model, after one of another: what is imported then does not count."""
    torch.manual_seed(0)
    model, inputs = load_target(target)
    options = {"budget": MODELS[target]} if backend == "dtr" else None
    for each, given in ((torch.nn.Linear(2, 2), (torch.ones(2, 2),)), (model, inputs)):
        each(*given).sum().backward()
        compiled = torch.compile(each, backend=backend, options=options if each is model else None)
        started = time.process_time()
        compiled(*given).sum().backward()
    return time.process_time() - started


def lengths(budget: str | None, backend: str, layers: int) -> list[float]:
    """Seconds of a step at each length."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model: Any = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes, **heads)).train()
    options = {} if budget is None else {"budget": budget}
    compiled = torch.compile(model, backend=backend, options=options if backend == "dtr" else None)
    found = []
    for length in LENGTHS:
        tokens = torch.randint(0, 512, (16, length))
        started = time.process_time()
        compiled(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        found.append(time.process_time() - started)
        model.zero_grad()
    return found


def in_a_process(*arguments: object, folder: str | Path = "off") -> Any:
    environment = {**os.environ, "DTR_CACHE": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", json.dumps(arguments)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def first_steps(runs: int) -> str:
    rows = []
    for target in MODELS:
        plain, cold, warm = [], [], []
        for run in range(runs):
            print(f"{target}, {run + 1} of {runs}", file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                plain.append(in_a_process("first", target, "aot_eager"))
                cold.append(in_a_process("first", target, "dtr", folder=folder))
                warm.append(in_a_process("first", target, "dtr", folder=folder))
        row = {"model": target, "aot_eager": f"{min(plain):.2f} s"}
        for name, found in (("dtr", cold), ("dtr, plans kept", warm)):
            row[name] = f"{min(found):.2f} s, × {min(found) / min(plain):.2f}"
        rows.append(row)
    return table(rows)


def many_lengths(layers: int) -> str:
    rows = []
    for backend, budget in [("aot_eager", None), *(("dtr", budget) for budget in BUDGETS)]:
        print(backend, budget, file=sys.stderr)
        found = in_a_process("lengths", budget, backend, layers)
        cells = {str(length): f"{seconds:.1f}" for length, seconds in zip(LENGTHS, found)}
        rows.append({"": backend, "budget": budget or "", **cells, "all": f"{sum(found):.0f} s"})
        print(*cells.values(), file=sys.stderr)
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--first", action="store_true", help="the first step of a process")
    parser.add_argument("--lengths", action="store_true", help="a step at each of many sequence lengths")
    parser.add_argument("--runs", type=int, default=3, help="processes of each kind")
    parser.add_argument("--layers", type=int, default=8, help="of the Llama")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, *given = arguments.one
        torch.set_num_threads(1)
        print(json.dumps({"first": first_step, "lengths": lengths}[what](*given)))
    if arguments.first:
        print(first_steps(arguments.runs))
    if arguments.lengths:
        print(many_lengths(arguments.layers))


if __name__ == "__main__":
    main()

"""Record the operator log of a model's training step.

TARGET is a model of the paper's evaluation (densenet121, inception, lstm, resnet32, transformer, treelstm,
unet or unrolled_gan), or a function without arguments that returns a model and its example inputs (a tensor,
a tuple of arguments, or a dictionary of keyword arguments), in a module or in a file:

  dtr-fx record resnet32 -o resnet32.log.gz
  dtr-fx record mypackage.models:make_gpt -o gpt.log
  dtr-fx record train.py:make_gpt -o gpt.log --device cuda

The model is run forward, and backward from its output if that is a scalar, else from the sum of its
floating-point outputs. The log has every operator with its time, the median of three steps, and every tensor
with its bytes, from its allocation to its release. It is compressed if FILE ends in .gz.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dtr_fx import lab
from dtr_fx.cli.output import check_output
from dtr_fx.cli.targets import find_factory, load_target, one_line
from dtr_fx.errors import CommandError, did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", metavar="TARGET", help="a model of the paper, or a factory")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="the log")
    add("-f", "--force", action="store_true", help="overwrite FILE")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    check_output(arguments.output, force=arguments.force)
    target = arguments.target
    if target not in lab.PAPER and ":" not in target:
        raise CommandError(
            f"{target!r} is no model of the paper, nor package.module:factory or path/to/file.py:factory"
            f"{did_you_mean(target, lab.PAPER)}"
        )
    if target not in lab.PAPER:
        find_factory(target)

    import torch

    from dtr_fx.lab.record import record_log
    from dtr_fx.lab.zoo import ZOO
    from dtr_fx.torch_private import pytree

    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise CommandError("there is no CUDA device here: record on the CPU, without --device")
    torch.manual_seed(0)
    model, inputs = ZOO[target]() if target in ZOO else load_target(target)
    with one_line(f"{target} cannot be recorded"):
        if isinstance(model, torch.nn.Module):
            model.to(arguments.device)
        placed = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(arguments.device), inputs)
        record_log(model, placed, arguments.output)
    print(f"Wrote {arguments.output}")

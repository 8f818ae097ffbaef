"""Estimate what a model's training step takes on a device that need not be here, and the largest batch.

  dtr-fx estimate examples/llama.py:llama_8b --device h100 --optimizer adamw
  dtr-fx estimate train.py:make --device card.toml --arg batch=8 --html page.html

TARGET is a factory as in dtr-fx diff, or zoo:NAME. It is built without memory and traced; nothing is
executed, so it can have any size. For a card attention and norms are what it would run. If it has an argument
"batch", the largest that fits is looked for.

This prints what the step holds, and its peak and time: as it is; with torch.utils.checkpoint around every
block; as torch.compile splits it by default; and by a plan of dtr_fx in the device's memory, with at most a
third of the step computed again, as much as its forward pass is. Peaks have the optimizer's state in them.
--html writes a page with these tables and the plans, at the batch asked for and at the largest that fits.
Devices are h200, h100, a100-80, a100-40, l40s, l4, v100, t4, rtx4090, rtx3090, mi300x, cpu, or a TOML
file; docs/estimate.md has their figures, and what is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from html import escape
from typing import TYPE_CHECKING, Any

from dtr_fx.cli import plans
from dtr_fx.cli.output import check_output, waiting
from dtr_fx.cli.targets import LOGS, PROGRAM, SAVED
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from dtr_fx.cli.sizing import Run, Sizing, Way

_BELOW = '<p class="dim">The plans below have of the memory what the optimizer leaves.</p>'
_SOFTMAX = "aten._softmax.default", "aten._safe_softmax.default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plans.add_target(parser, "package.module:factory, path/to/file.py:factory or zoo:NAME")
    plans.add_printing(parser)
    plans.add_page(parser)


def run(arguments: argparse.Namespace) -> None:
    for path in (arguments.output, arguments.html):
        check_output(path, force=arguments.force)
    target, name = arguments.target, arguments.device
    if target.endswith((SAVED, PROGRAM, *LOGS)):
        raise CommandError(f"{target} is no model: name a factory")
    plans.check_target(target)
    if name is None:
        raise CommandError("a device is missing: write --device h100, another name, or --device card.toml")
    from dtr_fx.cli.planned import optimizer_of, told_of
    from dtr_fx.cli.sizing import Sizing
    from dtr_fx.costs.devices import named_device
    from dtr_fx.inspect.html import html_table
    from dtr_fx.runtime import collector_paused

    device = named_device(name)
    if arguments.optimizer is not None:
        optimizer_of(arguments.optimizer)
    with collector_paused(), waiting(f"estimating {target}"):
        sizing = Sizing(target, dict(arguments.arg), device, arguments.optimizer)
        held, ways = sizing.bytes(sizing.batch), sizing.ways()
        reports = [] if arguments.html is None else list(sizing.reports(ways))
    notes = list(_notes(sizing, arguments.optimizer))
    memory = int(device.memory)
    verdict = f"{target} on {name}: {_verdict(sizing, ways)}"
    tables: list[list[dict[str, object]]] = [
        [
            {"held": word.replace("_", " "), "bytes": format_bytes(each)}
            for word, each in asdict(held).items()
        ],
        [_row(sizing, way, each) for way, each in ways.items()],
    ]
    said = [
        f"{name}: {format_bytes(memory)}, {device.bandwidth / 1e12:.3g} TB/s, "
        f"{device.flops.get(2, device.flops[4]) / 1e12:.4g} TFLOP/s in 16 bits, "
        f"{device.flops[4] / 1e12:.4g} in 32; {device.source}",
        *notes,
    ]
    data = {
        "target": target,
        "device": {"name": name, **asdict(device)},
        "batch": sizing.batch,
        "optimizer": arguments.optimizer,
        "bytes": asdict(held),
        "ways": {way: asdict(each) for way, each in ways.items()},
        "notes": notes,
    }
    parts = [verdict, *map(table, tables), *said]
    plans.write(arguments, lambda: data, lambda on: "\n\n".join(parts) + "\n")
    if reports:
        lines = "\n".join(f'<p class="dim">{escape(line)}</p>' for line in said)
        above = f"<h2>{escape(verdict)}</h2>\n{''.join(map(html_table, tables))}\n{lines}\n{_BELOW}"
        on_card = [replace(report, model=target, device=told_of(sizing.graph, name)) for report in reports]
        plans.write_page(arguments, on_card, f"<section>{above}</section>")


def _verdict(sizing: Sizing, ways: dict[str, Way]) -> str:
    """Whether the step fits, as it is or by a plan."""
    step = "a step" if sizing.batch is None else f"a step of batch {sizing.batch}"
    if sizing.fits(ways["as it is"].asked):
        return f"{step} fits as it is"
    planned = ways["dtr_fx"].asked
    if planned is None:
        return f"{step} does not fit"
    extra = format_percent(planned.overhead)
    return f"{step} does not fit as it is; by a plan it does, at {extra} extra compute"


def _row(sizing: Sizing, name: str, way: Way) -> dict[str, object]:
    asked, most = way.asked, way.largest
    row: dict[str, object] = {
        "way": name,
        "peak": "-" if asked is None else format_bytes(asked.peak),
        "fits": _fits(sizing, name, asked),
        **_costs(asked, ("step", "extra")),
    }
    if sizing.batch is not None:
        batch = "-" if most is None else most.batch
        row.update({"largest batch": batch, **_costs(most, ("its step", "its extra"))})
    return row


def _fits(sizing: Sizing, name: str, run: Run | None) -> str:
    if run is None and name != "dtr_fx":
        return "-"  # there is no such way
    return "yes" if sizing.fits(run) else "no"


def _costs(run: Run | None, names: tuple[str, str]) -> dict[str, Any]:
    if run is None:
        return dict.fromkeys(names, "-")
    return dict(zip(names, (format_seconds(run.seconds), format_percent(run.overhead))))


def _notes(sizing: Sizing, optimizer: str | None) -> Iterator[str]:
    """What was assumed, and what is left out."""
    from torch import SymInt

    from dtr_fx.compiler.as_on_card import assumed

    yield (
        "Left out: what else lies on the device, fragmentation, kernels' own workspaces on a card, and of "
        "the optimizer's step its temporaries and its time. Times are estimates from the figures above."
    )
    if optimizer is None:
        yield "No optimizer: with --optimizer adamw its state is counted."
    found = assumed(sizing.graph)
    if found:
        yield f"As the card would run it: {found}."
    made = [(str(node.target), node.meta.get("val")) for node in sizing.graph.graph.nodes]
    if any(target in _SOFTMAX and value.dim() > 2 for target, value in made):  # of fewer it is a router's
        yield "Attention that is composed of operators is counted so, with its matrix of all pairs of tokens."
    if any(isinstance(value, SymInt) for _, value in made):
        yield "Sizes that only the data tell are counted at the most that they can be."
    if sizing.batch is None:
        yield 'The factory takes no argument "batch", so no largest batch was looked for.'

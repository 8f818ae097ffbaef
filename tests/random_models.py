"""Random models and training steps, held against eager PyTorch, to the bit.

    seed ── write ──► Source: what __init__, forward, the caller and its hooks do, line by line
         ── check ──► two steps in eager, then under dtr at 100%, at the smallest budget, half way between

Lines are tried in eager as they are written, and those that it refuses are left out.  Where a result differs
from eager's, ``aot_eager_default_partitioner`` is the reference.

    python tests/random_models.py --seeds 0:1000 --log models.jsonl    # goes on where it stopped
    python tests/random_models.py --show 17                            # the source of one model
    python tests/random_models.py --shrink 17                          # as few lines of it as still fail
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import os
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "DTR_DEBUG": "1"}

import model_parts
import torch
import torch.nn.functional as F
from against_eager import Case, Run, check, sweep
from steps import bits
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dtr_fx import measure_peak

ROWS, WIDTH = 256, 16
_LARGEST = 4 * ROWS * WIDTH
_NAMES = {"torch": torch, "F": F, "nn": nn, "checkpoint": checkpoint, **vars(model_parts)}


@dataclass(frozen=True)
class Source:
    """The lines of a model and of what its caller does with it; ``outputs`` are expressions."""

    init: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    call: str = "outputs = forward(x, y, i)"
    before: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    micro_batches: int = 1
    accumulates: bool = False
    planner: str = "search"
    is_whole: bool = True

    @property
    def text(self) -> str:
        returned = f"return {', '.join(self.outputs)},"
        model = ["def __init__(self):", *_indent("super().__init__()", *self.init)]
        model += ["def forward(self, x, y, i):", *_indent(*self.forward, returned)]
        lines = ["class Model(nn.Module):", *_indent(*model)]
        lines += ["def batch(draw):", *_indent(*self.batch, "return x, y, i")]
        lines += ["def setup(model):", *_indent(*self.setup, "return model")]
        step = (*self.before, self.call, *self.between, "backward(outputs)", "return outputs")
        lines += ["def step(model, forward, x, y, i):", *_indent(*step)]
        return "\n".join(lines) + "\n"

    @property
    def is_plain(self) -> bool:
        """True if a step allocates nothing but what the graph does, and the tangents."""
        return (
            not (self.before or self.between or self.setup)
            and self.call.count("forward(") == 1
            and "hooks" not in self.call
        )


def _indent(*lines: str) -> list[str]:
    return textwrap.indent("\n".join(lines), "    ").split("\n")


# --- writing -----------------------------------------------------------------------------------------------


class Refused(Exception):
    """A line that eager does not run, or that nothing written so far fits."""


class Writer:
    """A model that is being written: each line is run, so that later ones know what is there."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.scope: dict[str, Any] = {**_NAMES, "self": nn.Module()}
        self.init: list[str] = []
        self.lines: list[str] = []
        self.values = ["x", "y"]
        self.members: dict[str, list[str]] = {"parameter": [], "buffer": [], "module": [], "generator": []}

    def one_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def value(self, fits: Callable[[Tensor], bool] = lambda t: True) -> str:
        """The name of a real value that fits, more often a late one."""
        try:
            names = [name for name in self.values if fits(self.scope[name])]
        except RuntimeError as error:  # a view of what was written meanwhile
            raise Refused from error
        if not names:
            raise Refused
        return names[-1 - min(int(self.random.expovariate(0.4)), len(names) - 1)]

    def matrix(self) -> str:
        return self.value(lambda t: t.dim() == 2 and t.shape[1] == WIDTH)

    def partner(self, name: str) -> str:
        """A value that broadcasts into the shape of another."""
        shape = self.scope[name].shape

        def fits(t: Tensor) -> bool:
            return t.dim() <= len(shape) and all(a in (1, b) for a, b in zip(t.shape[::-1], shape[::-1]))

        return self.value(fits)

    def member(self, kind: str, made: str, share: float = 0.5) -> str:
        """A parameter, buffer, module or generator of the model, new or one that is there already."""
        same = [name for name in self.members[kind] if f"self.{name} = {made}" in self.init]
        if same and self.chance(share):
            return f"self.{self.one_of(*same)}"
        name = f"{kind[0]}{len(self.members[kind])}"
        line = f"self.{name} = {made}"
        exec(line, self.scope)
        self.init.append(line)
        self.members[kind].append(name)
        return f"self.{name}"

    def parameter(self, *shape: int) -> str:
        return self.member("parameter", f"nn.Parameter(torch.randn{shape} / 4)")

    def buffer(self, *shape: int) -> str:
        return self.member("buffer", f"nn.Buffer(torch.ones{shape})")

    def module(self, made: str) -> str:
        return self.member("module", made, 0.3)

    def write(self, line: str, *names: str) -> None:
        """Run the line; what it calls ``names`` are values from then on."""
        try:
            exec(line, self.scope)
        except Exception as error:
            raise Refused from error
        for name in names:
            value = self.scope[name]
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() > _LARGEST:
                raise Refused
            if not value.isfinite().all() or value.abs().max() > 100:
                raise Refused
        self.lines.append(line)
        self.values += names

    def define(self, expression: str, count: int = 1, within: str = "") -> None:
        start = len(self.lines)
        names = [f"v{start}" if count == 1 else f"v{start}_{number}" for number in range(count)]
        line = f"{', '.join(names)} = {expression}"
        self.write(f"with {within}: {line}" if within else line, *names)

    def form(self, forms: str, **names: str) -> str:
        """One of the lines, with names put in."""
        return str(self.one_of(*forms.strip().splitlines())).strip().format(**names)


def unary(w: Writer) -> None:
    forms = """
        {a}.sin()
        {a}.tanh()
        {a}.sigmoid()
        F.gelu({a})
        F.silu({a})
        {a} * 1.5
        F.softplus({a})
        {a}.square().neg().exp()
    """
    w.define(w.form(forms, a=w.value()))


def binary(w: Writer) -> None:
    forms = """
        {a} + {b}
        {a} * {b}
        {a} - {b}
        torch.maximum({a}, {b})
        {a} / ({a}.abs() + 1)
        {a}.lerp({b}, 0.3)
    """
    a = w.value()
    w.define(w.form(forms, a=a, b=w.partner(a)))


def select(w: Writer) -> None:
    a = w.value()
    w.define(f"torch.where({a} > {w.one_of('0', w.partner(a))}, {a}, {w.partner(a)})")


def linear(w: Writer) -> None:
    forms = """
        {a} @ {p}
        F.linear({a}, {p})
        {a} @ {p}.t()
        {a} @ {p}.detach()
        torch.addmm({a}, {a}, {p})
    """
    w.define(w.form(forms, a=w.matrix(), p=w.parameter(WIDTH, WIDTH)))


def layer(w: Writer) -> None:
    made = """
        nn.Linear(16, 16)
        nn.LayerNorm(16)
        nn.BatchNorm1d(16)
        nn.BatchNorm1d(16, momentum=None)
        nn.Dropout(0.3)
        nn.Dropout(0.3, inplace=True)
        nn.ReLU(inplace=True)
        nn.RReLU()
        nn.PReLU()
        nn.AlphaDropout(0.2)
        nn.GRUCell(16, 16)
        nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
    """
    a = w.matrix()
    w.define(f"{w.module(w.form(made))}({a})")


def spatial(w: Writer) -> None:
    made = """
        nn.Conv2d(4, 4, 3, padding=1)
        nn.BatchNorm2d(4)
        nn.Dropout2d(0.3)
        nn.InstanceNorm2d(4, track_running_stats=True)
        nn.MaxPool2d(3, 1, 1)
    """
    a = w.value(lambda t: t.numel() == ROWS * WIDTH)
    w.define(f"{w.module(w.form(made))}({a}.reshape(16, 4, 8, 8)).reshape(256, 16)")


def attention(w: Writer) -> None:
    a, b, c = (w.value(lambda t: t.numel() == ROWS * WIDTH) + ".reshape(8, 2, 16, 16)" for _ in range(3))
    options = w.one_of("", ", dropout_p=0.2", ", is_causal=True")
    w.define(f"F.scaled_dot_product_attention({a}, {b}, {c}{options}).reshape(256, 16)")


def embedding(w: Writer) -> None:
    made = w.one_of("", ", max_norm=1.0", ", padding_idx=3")
    w.define(f"{w.module(f'nn.Embedding(32, 16{made})')}({w.one_of('i', 'i.flip(0)')})")


def reduction(w: Writer) -> None:
    forms = """
        {a}.mean(0)
        {a} + {a}.mean(0, keepdim=True)
        {a}.softmax(1)
        {a} - {a}.logsumexp(1, keepdim=True)
        {a}.sum(1, keepdim=True) * 0.1
        {a}.cumsum(1) * 0.1
        {a}.amax(1, keepdim=True)
        F.normalize({a})
    """
    w.define(w.form(forms, a=w.matrix()))


def several(w: Writer) -> None:
    forms = """
        {a}.chunk(2, 1)
        {a}.split(8, 1)
        torch.var_mean({a}, 1, keepdim=True)
        torch.sort({a}, 1)[0], {a}.topk(4, 1)[0]
        {a}[:, ::8].unbind(1)
        torch.frexp({a})[0], {a}.aminmax().max
        {a}, {a}.view_as({a})
        {a}.detach(), {a}.t()
    """
    w.define(w.form(forms, a=w.matrix()), 2)


def view(w: Writer) -> None:
    forms = """
        {a}.t()
        {a}[::2]
        {a}[1:]
        {a}.view(-1, 8)
        {a}[:, :8]
        {a}.unsqueeze(0)[0]
        {a}.view(4, -1, 16)[1]
        {a}[:1].expand_as({a})
        {a}.diagonal()
        {a}.as_strided((64, 16), (16, 1), 32)
        {a}.unfold(0, 64, 64)[1].t()
        {a}.detach()
        {a}.select(0, 1)
        {a}.reshape(-1, 16)
        {a}.flatten()
        {a}.movedim(0, 1)
        {a}[:]
        {a}[None].squeeze(0)
        {a}.narrow(0, 0, 1)
        {a}.view(torch.int32).view(torch.float32)
    """
    w.define(w.form(forms, a=w.value(lambda t: t.dim() >= 1 and len(t) > 1)))


def joined(w: Writer) -> None:
    forms = """
        torch.cat([{a}, {b}])[-256:]
        torch.cat([{b}, {a}], 1)
        torch.stack([{a}, {a}.sin()]).sum(0)
        F.pad({a}, (1, 0))[:, 1:]
        {a}.repeat(2, 1)[::2]
        {a}.index_select(0, i[:64])
        {a}.gather(1, {a}.argsort(1))
        {a}.roll(1, 0)
    """
    a = w.value(lambda t: t.dim() == 2)
    columns = w.scope[a].shape[1]
    w.define(w.form(forms, a=a, b=w.value(lambda t: t.dim() == 2 and t.shape[1] == columns)))


def converted(w: Writer) -> None:
    forms = """
        {a}.double().sin().float()
        {a}.to(torch.bfloat16).exp().float()
        torch.fft.rfft({a}).abs()
        torch.view_as_real(torch.view_as_complex({a}.reshape(-1, 8, 2)).conj()).flatten(1)
        {a} + ({a}.round() - {a}).detach()
        torch.einsum('ij,kj->ik', {a}[:16], {a}).t()
        ({a} > 0).float() * {a}
        torch.complex({a}, {a}.sin()).angle()
    """
    w.define(w.form(forms, a=w.matrix()))


def drawn(w: Writer) -> None:
    forms = """
        F.dropout({a}, 0.4)
        {a} * torch.rand_like({a})
        {a} + torch.randn({a}.shape) * 0.1
        torch.bernoulli({a}.sigmoid())
        {a} * torch.bernoulli({a}.detach().sigmoid())
        {a} * torch.empty_like({a}).normal_()
        {a} * torch.empty_like({a}).uniform_(0.5, 1)
        {a}[torch.randperm(len({a}))]
        F.gumbel_softmax({a}, dim=-1)
        {a} * torch.randint(0, 2, {a}.shape)
        F.rrelu({a}, training=True)
        {a} + torch.empty_like({a}).exponential_().clamp(max=3)
        {a} * torch.full_like({a}, 0.5).bernoulli_()
        torch.normal({a}, 0.1)
        {a}.clone().bernoulli_(0.5)
    """
    w.define(w.form(forms, a=w.value()))


def generator(w: Writer) -> None:
    forms = """
        {a} * torch.rand({a}.shape, generator={g})
        torch.bernoulli({a}.sigmoid(), generator={g})
        {a} + torch.empty_like({a}).normal_(generator={g})
    """
    w.define(w.form(forms, a=w.value(), g=w.member("generator", "torch.Generator().manual_seed(7)", 1.0)))


def write(w: Writer) -> None:
    a = w.value()
    places = """
        {a}
        {a}
        {a}
        {a}[::2]
        {a}.t()
        {a}[:, :8]
        {a}.view(-1)
        {a}.detach()
        {a}[1:][:, 1]
    """
    forms = """
        {t}.mul_(0.5)
        {t}.add_(0.1)
        {t}.sin_()
        {t}.tanh_()
        {t}.add_({b})
        {t}.copy_({b})
        {t}.zero_()
        {t}.masked_fill_({t} > 0.5, 0.1)
        {t}[0] = 0.5
        {t}[{t} > 1] = 0.2
        F.relu({t}, inplace=True)
        {t}.clamp_(-1, 1)
        {t}.lerp_({b}, 0.5)
        {t}.uniform_()
        {t}.normal_()
        {t}.bernoulli_(0.5)
        F.dropout({t}, 0.3, inplace=True)
        {t}.mul_({b}).add_({b})
        {t}.index_fill_(0, i[:3], 0.3)
        {t}.index_add_(0, i, {b})
        {t} *= {b}
    """
    line = w.form(forms, t=w.form(places, a=a), b=w.partner(a))
    w.write(f"with torch.no_grad(): {line}" if w.chance(0.15) else line)


def write_parameter(w: Writer) -> None:
    forms = """
        with torch.no_grad(): {p}.mul_(0.9)
        {p}.detach().mul_(0.9)
        {p}.data.add_(0.01)
        with torch.no_grad(): {p}.copy_({p} / {p}.norm(dim=0))
        with torch.no_grad(): {p}[0].zero_()
        {p}.data.clamp_(-0.5, 0.5)
    """
    w.write(w.form(forms, p=w.parameter(WIDTH, WIDTH)))


def write_buffer(w: Writer) -> None:
    forms = """
        {b}.mul_(0.9).add_({a}.detach().mean(0), alpha=0.1)
        {b} = {b} * 0.9 + {a}.detach().mean(0)
        {b}.add_(0.1)
        {b}[:4] = {a}.detach()[0, :4]
        {b}.copy_({a}.detach().amax(0))
        {b}.normal_()
        with torch.no_grad(): {b}.lerp_({a}.mean(0), 0.1)
        {b} += 0.5
        {b}.data.mul_(0.7)
    """
    w.write(w.form(forms, a=w.matrix(), b=w.buffer(WIDTH)))


def read_buffer(w: Writer) -> None:
    forms = """
        {a} * {b}
        {a} + {b}.sin()
        {b}.expand(256, 16)
        F.batch_norm({a}, {b}, {c}, training=True)
    """
    w.define(w.form(forms, a=w.matrix(), b=w.buffer(WIDTH), c=w.buffer(WIDTH)))


def cached(w: Writer) -> None:
    writes = """
        {b}.copy_({a}.detach())
        {b}[:64] = {a}.detach()[:64]
        {b}.mul_(0.5)
    """
    a, b = w.value(lambda t: t.shape == (ROWS, WIDTH)), w.buffer(ROWS, WIDTH)
    w.define(w.one_of(f"{b} * {a}", f"{b}.cos() + {a}"))
    w.write(w.form(writes, a=a, b=b))


def custom(w: Writer) -> None:
    forms = """
        Scale.apply({a})
        Dirty.apply({a})
        Dirty.apply({a} * 1.1)
        Dirty.apply({a}[1:])
        Dirty.apply({a}.clone())
        Parted.apply({a})[0]
        Noise.apply({a})
        AsItIs.apply({a})
    """
    w.define(w.form(forms, a=w.value()))


def hooked(w: Writer) -> None:
    a = w.value(lambda t: t.requires_grad and not t.is_leaf)
    w.write(f"{a}.register_hook({w.one_of('double', 'copied')})")


def marked(w: Writer) -> None:
    forms = """
        checkpoint(lambda t: (t @ {p}).sin().tanh() * t, {a}, use_reentrant=False)
        checkpoint(lambda t: F.dropout(t.sin(), 0.3) @ {p}, {a}, use_reentrant=False)
        checkpoint(lambda t: F.gelu(t @ {p}).square(), {a}, use_reentrant=False, preserve_rng_state=False)
    """
    w.define(w.form(forms, a=w.matrix(), p=w.parameter(WIDTH, WIDTH)))


def cast(w: Writer) -> None:
    forms = """
        ({a} @ {p}).tanh().float()
        F.linear({a}, {p}).float()
        F.layer_norm({a} @ {p}, (16,)).float()
    """
    w.define(w.form(forms, a=w.matrix(), p=w.parameter(WIDTH, WIDTH)), within="torch.autocast('cpu')")


def without_gradients(w: Writer) -> None:
    w.define(f"({w.value()} * 0.5).sin()", within="torch.no_grad()")


def broken(w: Writer) -> None:
    w.write("torch._dynamo.graph_break()")


WEIGHTS: dict[Callable[[Writer], None], float] = {
    unary: 5, binary: 4, select: 1, linear: 4, layer: 3, spatial: 0.7, attention: 0.7, embedding: 0.7,
    reduction: 2, several: 1.5, view: 3, joined: 1.5, converted: 1, drawn: 2, generator: 0.15, write: 4,
    write_parameter: 0.7, write_buffer: 1, read_buffer: 1, cached: 0.5, custom: 1.5, hooked: 0.6, marked: 0.5,
    cast: 0.7, without_gradients: 0.3, broken: 0.12,
}  # fmt: skip


def write_source(seed: int) -> Source:
    """The model of the seed."""
    torch.manual_seed(0)
    w = Writer(seed)
    batch = _batch(w)
    exec("\n".join(batch), w.scope)
    before = []
    if w.chance(0.5) and w.scope["x"].is_leaf and w.scope["x"].requires_grad:
        before.append("x = x * 1")
        exec(before[0], w.scope)
    for _ in range(w.random.randint(3, 14)):
        with contextlib.suppress(Refused):
            w.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0](w)
    init = [*w.init, *_frozen_and_tied(w)]
    source = Source(
        init=tuple(init),
        forward=tuple(w.lines),
        outputs=tuple(_outputs(w)),
        batch=tuple(batch),
        before=tuple(before),
        setup=tuple(_setup(w)),
        between=tuple(_between(w)),
        call=_call(w),
        micro_batches=w.one_of(1, 1, 1, 2),
        accumulates=w.chance(0.2),
        planner=w.one_of("search", "online", "online"),
        is_whole=w.chance(0.3),
    )
    return _that_eager_runs(source)


def _batch(w: Writer) -> list[str]:
    grad = w.one_of("", ".requires_grad_()")
    y = w.one_of(
        "draw(256, 16)",
        "draw(256, 16)",
        "draw(16)",
        "x",
        "x.detach()[:128]",
        "x.detach().t()",
        "draw(256, 16).requires_grad_()",
    )
    w.scope["draw"] = torch.randn
    return [f"x = draw(256, 16){grad}", f"y = {y}", "i = torch.arange(256) * 7 % 32"]


def _frozen_and_tied(w: Writer) -> Iterator[str]:
    parameters = w.members["parameter"]
    if len(parameters) > 1 and w.chance(0.3):
        yield f"self.{parameters[0]} = self.{parameters[1]}"
    if parameters and w.chance(0.3):
        yield f"self.{w.one_of(*parameters)}.requires_grad_(False)"
    if w.members["module"] and w.chance(0.1):
        yield f"self.{w.one_of(*w.members['module'])}.requires_grad_(False)"


def _outputs(w: Writer) -> Iterator[str]:
    last = w.values[-4:]
    if w.chance(0.8):
        yield " + ".join(f"({name} * {name}.sin()).mean()" for name in last)
    forms = """
        {a}
        {a}
        {a}[:1]
        {a}.detach()
        {a}.view_as({a})
        {a}.sum()
    """
    for _ in range(w.one_of(0, 0, 1, 2, 3)):
        yield w.form(forms, a=w.value())
    if w.chance(0.1):
        yield w.one_of("x", "y", "x[1:]", *(f"self.{name}" for name in w.members["parameter"]))
    yield f"{last[-1]}.sum()"


def _setup(w: Writer) -> Iterator[str]:
    for name in w.members["parameter"]:
        if w.chance(0.1):
            hook = w.one_of("register_hook(double)", "register_post_accumulate_grad_hook(after_accumulation)")
            yield f"model.{name}.{hook}"
    for name in w.members["module"]:
        if w.chance(0.12):
            kind = w.one_of(
                "forward_hook(after_forward)",
                "forward_pre_hook(before_forward)",
                "full_backward_hook(after_backward)",
            )
            yield f"model.{name}.register_{kind}"


def _call(w: Writer) -> str:
    call = w.one_of(
        *["outputs = forward(x, y, i)"] * 8,
        "outputs = forward(x, y, i) + forward(x, y, i)",
        "outputs = forward(x, y, i) + forward(x.detach().sin(), y, i)",
    )
    around = w.one_of(
        *[""] * 10,
        "torch.autocast('cpu', torch.bfloat16)",
        "torch.autograd.graph.saved_tensors_hooks(copied, copied)",
    )
    return f"with {around}:\n    {call}" if around else call


def _between(w: Writer) -> Iterator[str]:
    """What the caller does after the forward pass."""
    state = [f"model.{name}" for name in w.members["parameter"] + w.members["buffer"]]
    forms = """
        {t}.mul_(0.5)
        {t}.add_(1)
        {t}.detach().zero_()
        {u}.detach().numpy().fill(0.5)
        with torch.no_grad(): {t}.mul_(0.5)
        with torch.no_grad(): {t}.add_(1)
        {t}.register_hook(double)
    """
    for _ in range(w.one_of(0, 0, 0, 0, 0, 1, 2)):
        given = w.one_of("outputs[0]", "outputs[-1]", "outputs[1]", "x", "y")
        yield w.form(forms, t=w.one_of(given, *state), u=given)


def _that_eager_runs(source: Source) -> Source:
    """The source without what eager refuses, a line at a time, writes first.

    A write past PyTorch's versions is for eager to refuse as one that they see.
    """
    for _ in range(60):
        try:
            between = tuple(line.replace("numpy().fill(0.5)", "fill_(0.5)") for line in source.between)
            take_steps(replace(source, between=between), lambda model: model)
        except Exception as error:
            source = _without_cause(source, error)
        else:
            return source
    raise AssertionError(f"eager refuses all of\n{source.text}")


_DEFINES = r"v\d+(_\d)? = "
_WRITES = r"_\(|inplace|\] =|[+*]=|register_hook"


def _without_cause(source: Source, error: Exception) -> Source:
    if source.between:
        return replace(source, between=source.between[:-1])
    if source.setup:
        return replace(source, setup=source.setup[:-1])
    if source.call.count("forward(") > 1:
        return replace(source, call=Source.call)
    for place in range(len(source.forward) - 1, -1, -1):
        line = source.forward[place]
        if re.search(_WRITES, line) and not re.search(_DEFINES, line):
            return replace(source, forward=(*source.forward[:place], *source.forward[place + 1 :]))
    if len(source.outputs) > 1:
        return replace(source, outputs=source.outputs[1:])
    return replace(source, forward=(), outputs=("x.sin() + y.sum()",))


# --- running -----------------------------------------------------------------------------------------------


def backward(outputs: tuple[Any, ...]) -> None:
    """From every output that has a gradient, each element weighed differently."""
    roots = list(
        {id(value): value for value in outputs if isinstance(value, Tensor) and value.requires_grad}.values()
    )
    weights = [torch.linspace(-1, 1, t.numel()).reshape(t.shape).to(t.dtype) for t in roots]
    torch.autograd.backward(roots, weights)


def take_steps(source: Source, compiled: Callable[[nn.Module], Any]) -> Run:
    """Make the model anew and take its steps; then, where nothing else allocates, one that is measured."""
    scope = {**_NAMES, "backward": backward}
    exec(compile(source.text, "<model>", "exec"), scope)
    torch.manual_seed(0)
    model = scope["setup"](scope["Model"]())
    draw = torch.Generator().manual_seed(1)
    batches = [scope["batch"](lambda *shape: torch.randn(shape, generator=draw)) for _ in range(2)]
    forward = compiled(model)
    results: dict[str, Any] = {}
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        for _ in range(source.micro_batches):
            outputs = scope["step"](model, forward, *batch)
        results |= {f"{name} of step {number}": value for name, value in _state(model, batch, outputs)}
        # Autograd copies a gradient that is a view of fewer numbers.
        gradients = [tensor.grad for tensor in (*batch, *model.parameters()) if tensor.is_leaf]
        repeats = any(_repeats(gradient) for gradient in gradients if gradient is not None)
        del gradients
        _update(model, source.accumulates)
    run = Run(results)
    # Autograd itself adds up the gradients of an input that is also an output, and of outputs that share one.
    given = {tensor.untyped_storage().data_ptr() for tensor in (*batch, *model.parameters())}
    made = {value.untyped_storage().data_ptr() for value in outputs}
    # A tangent that is laid out unlike its output PyTorch copies, and the caller has it as well.
    is_laid_out = all(value.is_contiguous() for value in outputs)
    is_apart = given.isdisjoint(made) and len(made) == len(outputs) and is_laid_out and not repeats
    del outputs
    if is_apart and source.is_plain and forward is not model:
        _update(model, False)
        for value in batches[0]:
            value.grad = None
        run.measured = measure_peak(lambda: scope["step"](model, forward, *batches[0]))
    return run


def _repeats(tensor: Tensor) -> bool:
    """True if a tensor is the same all along one of its dimensions."""
    sizes = enumerate(tensor.shape)
    return any(size > 1 and bool((tensor == tensor.narrow(at, 0, 1)).all()) for at, size in sizes)


def _state(model: nn.Module, batch: Any, outputs: Any) -> Iterator[tuple[str, Any]]:
    tensors = {f"input {number}": value for number, value in enumerate(batch)}
    tensors |= {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        yield name, bits(tensor)
        if tensor.is_leaf:
            yield f"gradient of {name}", bits(tensor.grad)
    for number, value in enumerate(outputs):
        yield f"output {number}", bits(value)
        tensors[f"output {number}"] = value
    places: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        places.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    yield "aliases", sorted(map(tuple, places.values()))
    yield "generator", bits(torch.get_rng_state())


def _update(model: nn.Module, accumulates: bool) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            with torch.no_grad():
                parameter.sub_(parameter.grad.clamp(-1, 1), alpha=0.01)
            if not accumulates:
                parameter.grad = None


def case_of(source: Source, dynamic: bool | None = None) -> Case:
    budgets = ("middle", "100%") if source.is_whole else ("middle",)
    return Case(functools.partial(take_steps, source), budgets, source.planner, dynamic)


def shrink(source: Source) -> Source:
    """As few lines as still fail in the same way, at the same kind of budget."""
    fails = check(case_of(source))
    kind = fails.detail.partition(":")[2][:24]

    def still_fails(smaller: Source) -> bool:
        try:
            found = check(case_of(smaller))
        except Exception:
            return False
        return found.verdict == "failed" and found.detail.partition(":")[2][:10] == kind[:10]

    size = -1
    while size != len(source.text):
        size = len(source.text)
        for part in ("between", "setup", "before", "forward", "outputs", "init"):
            for place in range(len(getattr(source, part)) - 1, -1, -1):
                lines = getattr(source, part)
                smaller = replace(source, **{part: (*lines[:place], *lines[place + 1 :])})
                if still_fails(smaller):
                    source = smaller
        for plain in ({"call": Source.call}, {"micro_batches": 1}, {"accumulates": False}):
            smaller = replace(source, **plain)
            if smaller != source and still_fails(smaller):
                source = smaller
    return source


# --- the long run ------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:1000")
    parser.add_argument("--log", type=Path, default=Path("random_models.jsonl"))
    parser.add_argument("--dynamic", action="store_true", default=None, help="with symbols for sizes")
    parser.add_argument("--show", type=int)
    parser.add_argument("--shrink", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # what is imported need not be looked through at each measurement
    if arguments.show is not None:
        print(write_source(arguments.show).text)
        print(check(case_of(write_source(arguments.show), arguments.dynamic)))
    elif arguments.shrink is not None:
        source = shrink(write_source(arguments.shrink))
        print(source.text, source.micro_batches, source.accumulates, check(case_of(source)))
    else:
        seeds = range(*map(int, arguments.seeds.split(":")))
        sweep(
            ((str(seed), functools.partial(_case, seed, arguments.dynamic)) for seed in seeds), arguments.log
        )


def _case(seed: int, dynamic: bool | None) -> Case:
    return case_of(write_source(seed), dynamic)


if __name__ == "__main__":
    main()

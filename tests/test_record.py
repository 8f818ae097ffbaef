"""Operator logs of real training steps: what is in them, and that recording leaves no trace."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.cli import main
from dtr_fx.cli import record as command
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.lab.log import (
    AliasLine,
    AnnotateLine,
    CallLine,
    ConstantLine,
    CopyFromLine,
    Line,
    MemoryLine,
    MutateLine,
    ReleaseLine,
    parse_line,
    read_log,
)
from dtr_fx.lab.record import RecordError, record_log
from dtr_fx.lab.replay import replay
from dtr_fx.runtime.program import Keep, Program

KiB = 2**10


class Views(nn.Module):
    """Views of views, and writes through them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).view(4, 8, 16).transpose(1, 2)
        left, right = y.chunk(2, 2)
        z = torch.zeros(4, 16, 4)
        z[:, :8] = left[:, :8]
        z.transpose(1, 2).mul_(2)
        return (z * right).sin()


class Several(nn.Module):
    """Operators with several results, an integer output and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        values, order = (x * self.scale).topk(4)
        mean, deviation = torch.var_mean(values, 0)
        return {"values": values, "order": order, "spread": deviation / mean, "nothing": x[:0] * self.scale}


class Reused(nn.Module):
    """One matrix, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.linear(self.linear(x).tanh()).tanh()).sum()


class Tied(nn.Module):
    """An embedding whose matrix is the head's, too, and a buffer written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.head = nn.Linear(16, 32)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros(32))

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen[tokens] += 1
        return F.cross_entropy(self.head(self.embedding(tokens)), tokens)


class Branching(nn.Module):
    """Operators that return no tensor: a number for Python, an assertion, a marked region."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        assert x.isfinite().all()
        with torch.profiler.record_function("layer"):
            y = self.linear(x)
        return y * 2 if y.max().item() > 0 else y


def mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())))


def convolutions() -> nn.Module:
    def block(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]

    return nn.Sequential(*block(3), *block(8), nn.Flatten(), nn.Linear(8 * 64, 4))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.LayerNorm(64), nn.Softmax(-1))


Case = tuple[nn.Module, Any]

CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: (mlp(), (torch.randn(256, 64),)),
    "convolutions": lambda: (convolutions(), (torch.randn(4, 3, 8, 8),)),
    "views": lambda: (Views(), (torch.randn(32, 16),)),
    "several": lambda: (Several(), {"x": torch.rand(8, 32)}),
    "dropout": lambda: (dropout(), (torch.randn(256, 64),)),
    "reused": lambda: (Reused(), (torch.randn(256, 64),)),
    "tied": lambda: (Tied(), (torch.randint(32, (64,)),)),
    "branching": lambda: (Branching(), (torch.randn(32, 16),)),
    "input": lambda: (nn.Tanh(), (torch.randn(64, requires_grad=True),)),
}

# What kernels allocate for themselves, which no log shows: a convolution unfolds the patches of an image, a
# layer norm has two numbers for each column, a Python number becomes a tensor.
WORKSPACES = {"convolutions": 8 * 9 * 64 * 4, "dropout": 2 * 64 * 4}
SCALARS = 16

every_case = pytest.mark.parametrize("name", CASES)


def make(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


def read_lines(path: Path) -> list[Line]:
    return [parse_line(text) for text in path.read_text().splitlines()]


def recorded(model: Any, inputs: Any, folder: Path) -> tuple[list[Line], Program]:
    path = folder / "recorded.log"
    record_log(model, inputs, path)
    return read_lines(path), read_log(path)


def state_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    given = inputs.values() if isinstance(inputs, dict) else inputs
    return [*model.parameters(), *model.buffers(), *given]


def run(model: nn.Module, inputs: Any) -> list[Tensor]:
    """The same step by hand; its outputs."""
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    outputs = list(output.values()) if isinstance(output, dict) else [output]
    losses = [tensor.sum() if tensor.dim() else tensor for tensor in outputs if tensor.requires_grad]
    torch.stack(losses).sum().backward() if len(losses) > 1 else losses[0].backward()
    return outputs


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Of the storages, each counted once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def check_form(lines: list[Line]) -> None:
    """What any reader of the format may rely on: each line in its place, each name made before it is used."""
    seen: set[str] = set()
    live: set[str] = set()
    rest = iter(lines)
    assert next(rest) == AnnotateLine("START")
    for line in rest:
        if isinstance(line, ConstantLine):
            memory = next(rest)
            assert isinstance(memory, MemoryLine)
            new = (line.name,)
            assert memory.name == line.name
        elif isinstance(line, CallLine):
            assert live.issuperset(line.args)
            assert line.result  # without one, the original reader fails
            new = line.result
            for name in new:
                memory, alias = next(rest), next(rest)
                assert isinstance(memory, MemoryLine)
                assert isinstance(alias, AliasLine)
                assert memory.name == alias.name == name
                assert -1 <= alias.alias < len(line.args)
                assert alias.alias == -1 or memory.memory == 0
        elif isinstance(line, MutateLine):
            assert live.issuperset(line.args)
            assert line.mutate
            assert max(line.mutate) < len(line.args)
            new = ()
        elif isinstance(line, CopyFromLine):
            assert {line.dst, line.src} <= live
            new = ()
        elif isinstance(line, ReleaseLine):
            live.remove(line.name)
            new = ()
        else:
            assert line == AnnotateLine("BACKWARD")
            new = ()
        assert seen.isdisjoint(new)
        seen.update(new)
        live.update(new)


@every_case
def test_form(name, tmp_path):
    lines, _ = recorded(*make(name), tmp_path)
    check_form(lines)
    assert lines.count(AnnotateLine("BACKWARD")) == 1


@every_case
def test_everything_is_known_before_it_is_read(name, tmp_path):
    """What autograd saves comes back as other tensors; none of them may be taken for a new one."""
    model, inputs = make(name)
    lines, _ = recorded(model, inputs, tmp_path)
    constants = [number for number, line in enumerate(lines) if isinstance(line, ConstantLine)]
    assert constants == list(range(1, 1 + 2 * len(state_of(model, inputs)), 2))


@every_case
def test_what_is_there_before_and_after(name, tmp_path):
    model, inputs = make(name)
    _, program = recorded(model, inputs, tmp_path)
    state = state_of(model, inputs)
    assert program.constants == nbytes(state)
    outputs = run(model, inputs)
    results = [*state, *(tensor.grad for tensor in state if tensor.grad is not None), *outputs]
    kept = {program.storages[step.tensor] for step in program.instructions if isinstance(step, Keep)}
    sizes = {step.tensor: step.size for step in program.instructions if hasattr(step, "size")}
    sizes |= {output.tensor: output.size for call in program.calls() for output in call.outputs}
    assert sum(sizes[storage] for storage in kept) == nbytes(results)


@every_case
def test_peak_is_that_of_the_allocator(name, tmp_path):
    model, inputs = make(name)
    lines, program = recorded(model, inputs, tmp_path)
    outputs: list[Tensor] = []
    measured = measure_peak(lambda: outputs.extend(run(model, inputs)), device="cpu")
    # A write in place is a copy in the log (C.6), there beside the old contents for a moment.
    sizes = {line.name: line.memory for line in lines if isinstance(line, MemoryLine)}
    written = [line.args[number] for line in lines if isinstance(line, MutateLine) for number in line.mutate]
    copies = max((sizes[name] for name in written), default=0)
    planned = program.peak - program.constants
    assert measured - WORKSPACES.get(name, SCALARS) <= planned <= measured + copies


@every_case
def test_cost_is_the_sum_of_the_times(name, tmp_path):
    lines, program = recorded(*make(name), tmp_path)
    times = [line.time for line in lines if isinstance(line, (CallLine, MutateLine))]
    assert program.cost == sum(times) > 0


@every_case
def test_replays(name, tmp_path):
    model, inputs = make(name)
    record_log(model, inputs, tmp_path / "x.log")
    for simrd in (False, True):
        program = read_log(tmp_path / "x.log", simrd=simrd)
        # The original counts constants that are overwritten as gone, and yet keeps them.
        result = replay(program, replay(program).peak if simrd else program.peak)
        assert result.outcome == "ok"
        assert result.slowdown == 1


def test_replays_under_a_budget(tmp_path):
    _, program = recorded(*make("mlp"), tmp_path)
    result = replay(program, 0.9 * program.peak, "dtr")
    assert result.outcome == "ok"
    assert result.slowdown > 1


@every_case
def test_leaves_everything_as_it_was(name, tmp_path):
    model, inputs = make(name)
    run(model, inputs)  # so that there are gradients
    state = state_of(model, inputs)
    gradients = [tensor.grad for tensor in state]
    contents = [None if tensor is None else tensor.detach().clone() for tensor in (*state, *gradients)]
    generator = torch.get_rng_state()
    record_log(model, inputs, tmp_path / "x.log")
    assert all(tensor.grad is gradient for tensor, gradient in zip(state, gradients))
    for tensor, content in zip((*state, *gradients), contents):
        assert content is None or torch.equal(tensor, content)
    assert torch.equal(torch.get_rng_state(), generator)


def test_leaves_a_functions_own_tensors_as_they_were(tmp_path):
    """A function has no parameters to ask for: its tensors are those that its operators read."""
    used = nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    used(x).square().sum().backward()
    gradient, content, mean = used.weight.grad, used.weight.grad.clone(), used.running_mean.clone()
    fresh = nn.Linear(4, 4)
    first, _ = recorded(lambda x: used(fresh(x)).square().sum(), (x,), tmp_path)
    assert used.weight.grad is gradient
    assert torch.equal(gradient, content)
    assert torch.equal(used.running_mean, mean)
    assert fresh.weight.grad is None
    second, _ = recorded(lambda x: used(fresh(x)).square().sum(), (x,), tmp_path)
    assert without_times(first) == without_times(second)


def without_times(lines: list[Line]) -> list[Line]:
    return [replace(line, time=0) if isinstance(line, (CallLine, MutateLine)) else line for line in lines]


@every_case
def test_same_twice(name, tmp_path):
    model, inputs = make(name)
    first, _ = recorded(model, inputs, tmp_path)
    second, _ = recorded(model, inputs, tmp_path)
    assert without_times(first) == without_times(second)


# Line by line


class Function(nn.Module):
    """A module around a function of its input, whose result is there twice: with a gradient, and without."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            result = self.function(x)
        return result, self.weight * 2


def shown(function: Callable[[Tensor], Any], folder: Path) -> list[str]:
    """The lines of the operators on one KiB ``x1``, up to the product that ``Function`` adds."""
    lines, _ = recorded(Function(function), (torch.ones(256),), folder)
    end = next(n for n, line in enumerate(lines) if isinstance(line, CallLine) and line.args == ("x0",))
    return list(_shown(lines[5:end]))


def _shown(lines: Iterable[Line]) -> Iterator[str]:
    for line in lines:
        match line:
            case CallLine(args, name, result):
                yield f"{' '.join(result)} = {name}({' '.join(args)})"
            case MutateLine(args, mutate, name):
                yield f"{name}({' '.join(args)}) writes {' '.join(args[number] for number in mutate)}"
            case MemoryLine(size, name) if size != KiB:
                yield f"{name} has {size}"
            case AliasLine(alias, name) if alias != -1:
                yield f"{name} views {alias}"
            case ConstantLine(name) | ReleaseLine(name):
                yield f"{type(line).__name__.removesuffix('Line').lower()} {name}"
            case CopyFromLine(dst, src):
                yield f"{dst} is now {src}"


def test_released_where_the_last_reference_goes(tmp_path):
    def function(x):
        a = x + 1
        b = a + a
        del a
        c = b + 1
        return b + c

    assert shown(function, tmp_path) == [
        "x2 = add(x1)",
        "x3 = add(x2 x2)",
        "release x2",
        "x4 = add(x3)",
        "x5 = add(x3 x4)",
        "release x3",
        "release x4",
    ]


def test_a_view_holds_its_storage(tmp_path):
    assert shown(lambda x: (x + 1)[:128].reshape(2, 64) + 1, tmp_path) == [
        "x2 = add(x1)",
        "x3 = slice(x2)",
        "x3 has 0",
        "x3 views 0",
        "x4 = view(x3)",
        "x4 has 0",
        "x4 views 0",
        "x5 = add(x4)",
        "x5 has 512",
        "release x2",
        "release x3",
        "release x4",
    ]


def test_the_same_view_again_takes_over(tmp_path):
    def function(x):
        y = x + 1
        return y.view(2, 128) + y.view(2, 128)

    assert shown(function, tmp_path)[3:7] == ["x3 views 0", "x4 = view(x2)", "x4 has 0", "x4 views 0"]
    assert shown(function, tmp_path)[7:9] == ["release x3", "x5 = add(x4 x4)"]


def test_write_in_place(tmp_path):
    assert shown(lambda x: (x + 1).relu_().mul_(x), tmp_path) == [
        "x2 = add(x1)",
        "relu_(x2) writes x2",
        "mul_(x2 x1) writes x2",
    ]


def test_write_through_a_view(tmp_path):
    """The view stays; the base, as it is now, is a view of what was written."""

    def function(x):
        y = x + 1
        y[:128].zero_()
        return y + 1

    assert shown(function, tmp_path) == [
        "x2 = add(x1)",
        "x3 = slice(x2)",
        "x3 has 0",
        "x3 views 0",
        "zero_(x3) writes x3",
        "release x2",
        "x4 = alias(x3)",
        "x4 has 0",
        "x4 views 0",
        "x5 = add(x4)",
        "release x3",
        "release x4",
    ]


def test_out_argument(tmp_path):
    def function(x):
        y = torch.empty(256)
        return torch.exp(x, out=y)

    assert shown(function, tmp_path) == ["x2 = empty()", "exp(x1 x2) writes x2"]


def test_out_argument_that_grows(tmp_path):
    def function(x):
        y = torch.empty(0)
        return torch.exp(x, out=y)

    assert shown(function, tmp_path) == [
        "x2 = empty()",
        "x2 has 0",
        "x3 = exp(x1 x2)",
        "x2 is now x3",
        "release x3",
    ]


def test_list_of_arguments_some_written(tmp_path):
    def function(x):
        y, z = x + 1, x + 2
        torch._foreach_add_([y, z], [x, x])
        return torch.cat([y, x, z])[:1]

    assert shown(function, tmp_path)[2:5] == [
        "_foreach_add_(x2 x3 x1 x1) writes x2 x3",
        "x4 = cat(x2 x1 x3)",
        "x4 has 3072",
    ]


def test_constant_in_the_middle(tmp_path):
    weights = torch.ones(256)
    assert shown(lambda x: x * weights, tmp_path) == ["constant x2", "x3 = mul(x1 x2)"]


def test_constant_that_does_not_stay(tmp_path):
    def function(x):
        return (x * torch.frombuffer(bytearray(4 * 256), dtype=torch.float32)).sin()

    assert shown(function, tmp_path) == [
        "constant x2",
        "x3 = mul(x1 x2)",
        "release x2",
        "x4 = sin(x3)",
        "release x3",
    ]


def test_a_parameter_that_is_an_input_too(tmp_path):
    model = nn.Linear(4, 4)
    model.weight.grad = gradient = torch.ones(4, 4)
    record_log(model, (model.weight,), tmp_path / "x.log")
    assert model.weight.grad is gradient


def test_several_results_one_of_them_discarded(tmp_path):
    def function(x):
        return x.sort()[0] + 1

    assert shown(function, tmp_path) == [
        "x2 x3 = sort(x1)",
        "x3 has 2048",
        "release x3",
        "x4 = add(x2)",
        "release x2",
    ]


def test_detach_is_no_operator(tmp_path):
    assert shown(lambda x: x.detach() + 1, tmp_path) == ["x2 = add(x1)"]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_its_statistics(training, tmp_path):
    """Its schema does not say so."""
    model = nn.BatchNorm2d(3, momentum=0.5).train(training)
    lines, _ = recorded(model, (torch.randn(4, 3, 2, 2),), tmp_path)
    constants = [line.name for line in lines if isinstance(line, ConstantLine)]
    mean, variance = constants[2:4]
    renewed = [line.dst for line in lines if isinstance(line, CopyFromLine)]
    assert renewed == ([mean, variance] if training else [])


def test_operators_of_a_step(tmp_path):
    lines, _ = recorded(nn.Linear(4, 2), (torch.ones(3, 4),), tmp_path)
    names = [getattr(line, "name", "|") for line in lines if isinstance(line, (CallLine, AnnotateLine))]
    assert names[1:] == "t addmm sum | ones_like expand t mm t sum view t".split()


def test_a_function_with_its_inputs_gradient(tmp_path):
    x = torch.ones(256, requires_grad=True)
    _, program = recorded(lambda x: x.sin().sum(), [x], tmp_path)
    assert (
        program.peak == 3 * KiB + 2 * 4
    )  # x, cos x and their product, the gradient; the loss and its gradient, 1
    assert x.grad is None


# Files and errors


def test_compressed(tmp_path):
    model, inputs = make("mlp")
    record_log(model, inputs, tmp_path / "a.log")
    record_log(model, inputs, tmp_path / "a.log.gz")
    with gzip.open(tmp_path / "a.log.gz", "rt") as file:
        compressed = [parse_line(text) for text in file]
    assert without_times(compressed) == without_times(read_lines(tmp_path / "a.log"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.gz"]


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4, sparse=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (nn.ReLU(), (torch.ones(2),), "no output of the model requires a gradient"),
        (lambda x: x.argmax(), (torch.ones(2, requires_grad=True),), "no output of the model requires"),
        (lambda x: None, (torch.ones(2),), "no output of the model requires a gradient"),
        (nn.Linear(2, 2), torch.ones(2, 2), "expected the inputs as a tuple .* not Tensor"),
        (lambda x: x.sum(), (torch.ones(2, dtype=torch.cfloat, requires_grad=True),), "the loss is complex"),
        (nn.Linear(2, 2, device="meta"), (torch.ones(2, 2),), "on the meta device"),
        (Sparse(), (torch.arange(8),), r"a torch.sparse_coo tensor of shape \(8, 4\) has no storage"),
    ],
)
def test_cannot_be_recorded(model, inputs, message, tmp_path):
    with pytest.raises(RecordError, match=message):
        record_log(model, inputs, tmp_path / "x.log")
    assert not list(tmp_path.iterdir())


def test_cannot_be_written(tmp_path):
    def never(x: Tensor) -> Tensor:
        raise AssertionError("it runs though there is nowhere to write to")

    with pytest.raises(RecordError, match="there is no folder"):
        record_log(never, (), tmp_path / "missing" / "x.log")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecordError, match=r"cannot write .*folder: Is a directory"):
        record_log(*make("mlp"), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        torch.rand_like(self.norm(x))
        raise ZeroDivisionError


def test_a_failing_model_is_left_as_it_was(tmp_path):
    model = Fails()
    generator = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        record_log(model, (torch.randn(2, 4, generator=torch.Generator()),), tmp_path / "x.log")
    assert torch.equal(model.norm.running_mean, torch.zeros(4))
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), generator)
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_case
def test_on_cuda(name, tmp_path):
    model, inputs = make(name)
    inputs = torch.utils._pytree.tree_map(lambda tensor: tensor.detach().cuda(), inputs)
    if not list(model.parameters()):
        inputs[0].requires_grad_()
    before = torch.cuda.get_rng_state()
    lines, program = recorded(model.cuda(), inputs, tmp_path)
    check_form(lines)
    assert program.cost > 0
    assert replay(program).outcome == "ok"
    assert torch.equal(torch.cuda.get_rng_state(), before)


# The command

FACTORY = """
import torch

def linear():
    return torch.nn.Linear(2, 2), torch.ones(3, 2)
"""


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (
            "torch.nn.Linear(2, 2), torch.ones(3, 3)",
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ),
        ("torch.nn.ReLU(), torch.ones(3)", "no output of the model requires a gradient"),
        ("torch.nn.Linear(2, 2, device='meta'), torch.ones(3, 2)", "meta"),
    ],
)
def test_command_on_a_model_that_fails(factory, expected, tmp_path, capsys):
    (tmp_path / "models.py").write_text(f"import torch\n\ndef bad():\n    return {factory}\n")
    assert main(["record", f"{tmp_path / 'models.py'}:bad", "-o", str(tmp_path / "x.log")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtr-fx: error: ")
    assert error.count("\n") == 1
    assert expected in error


def dtr_fx_record(*arguments: object) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_command(tmp_path, capsys):
    (tmp_path / "models.py").write_text(FACTORY)
    target, output = f"{tmp_path / 'models.py'}:linear", tmp_path / "linear.log"
    dtr_fx_record(target, "-o", output)
    assert capsys.readouterr().out == f"Wrote {output}\n"
    assert len(list(read_log(output).calls())) > 3
    with pytest.raises(CommandError, match="exists: overwrite it with -f"):
        dtr_fx_record(target, "-o", output)
    output.write_text("")
    dtr_fx_record(target, "-o", output, "-f")
    assert output.read_text()


def test_command_knows_the_zoo(tmp_path):
    with pytest.raises(CommandError, match="did you mean 'resnet32'"):
        dtr_fx_record("resnet23", "-o", tmp_path / "x.log")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_command_without_cuda(tmp_path):
    with pytest.raises(CommandError, match="no CUDA device"):
        dtr_fx_record("lstm", "-o", tmp_path / "x.log", "--device", "cuda")

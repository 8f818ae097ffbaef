import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dtr_fx.cli import main
from dtr_fx.cli.output import screen
from dtr_fx.cli.targets import load_target
from dtr_fx.errors import CommandError, InfeasibleBudgetError
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options
from dtr_fx.report import Event, Point, StorageStats

pytestmark = pytest.mark.little_effort

MODEL = """
import torch
from torch import nn

def factory():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(256, 64)

def no_model():
    return 3, torch.ones(1)

def no_pair():
    return nn.Linear(1, 1)

def no_inputs():
    return nn.Linear(1, 1), "x"

def needs_an_argument(size):
    return nn.Linear(size, size), torch.ones(size)

def fails():
    raise RuntimeError("there is no\\ndata")

not_a_function = 3
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "random.py"  # a name that the standard library has too
    path.write_text(MODEL)
    return path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Targets


def test_a_factory_in_a_file(model_file: Path) -> None:
    model, inputs = load_target(f"{model_file}:factory")
    assert isinstance(model, torch.nn.Sequential)
    assert isinstance(inputs, tuple)
    assert [x.shape for x in inputs] == [(256, 64)]  # a lone tensor becomes the one argument


def test_a_factory_in_a_module_of_the_working_directory(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = model_file.parent / "some_package"
    package.mkdir()
    write(package, "models.py", MODEL)
    monkeypatch.chdir(model_file.parent)
    model, _ = load_target("some_package.models:factory")
    assert isinstance(model, torch.nn.Sequential)


def test_a_file_may_import_its_neighbours_and_the_path_is_left_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, "neighbour_of_target.py", "def double(x):\n    return 2 * x\n")
    path = write(
        tmp_path,
        "target.py",
        "def factory():\n    from neighbour_of_target import double\n    return double, (1.0,)\n",
    )
    before = list(sys.path)
    model, inputs = load_target(f"{path}:factory")
    assert model(*inputs) == 2.0
    assert sys.path == before


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [("(1, 2)", (1, 2)), ("[1, 2]", (1, 2)), ("{'x': 1}", {"x": 1}), ("()", ())],
)
def test_forms_of_inputs(tmp_path: Path, inputs: str, expected: object) -> None:
    path = write(tmp_path, "target.py", f"def factory():\n    return print, {inputs}\n")
    assert load_target(f"{path}:factory")[1] == expected


@pytest.mark.parametrize(
    ("target", "facts"),
    [
        ("{file}", ["package.module:factory", "path/to/file.py:factory"]),
        (":factory", ["names no factory"]),
        ("{folder}/absent.py:factory", ["there is no file", "absent.py"]),
        ("absent_module.of_mine:factory", ["absent_module", "cannot be imported"]),
        ("{file}:factry", ["has no 'factry'", "did you mean 'factory'", "it has: factory, no_model"]),
        ("zoo:gtp", ["the zoo has no 'gtp'; did you mean 'gpt'?", "gpt, resnet50, shufflenet"]),
        ("resnet5", ["names no factory", "did you mean 'zoo:resnet50'?"]),
        ("{file}:not_a_function", ["no function", "int"]),
        ("{file}:no_model", ["the model must be", "int"]),
        ("{file}:no_pair", ["a pair (model, inputs)", "Linear"]),
        ("{file}:no_inputs", ["the inputs must be", "str"]),
        ("{file}:needs_an_argument", ["TypeError", "'size'"]),
    ],
)
def test_every_wrong_target_is_one_line(
    model_file: Path, target: str, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = target.format(file=model_file, folder=model_file.parent)
    assert main(["diff", target, "--budget", "60%"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dtr-fx: error: ")
    assert captured.err.count("\n") == 1
    for fact in facts:
        assert fact in captured.err


FAILING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(4, 4), how

    def forward(self, x):
        x = self.layer(x)
        if self.how == "key":
            return x * {}["missing"]
        if self.how == "broken":
            torch._dynamo.graph_break()
            raise ValueError("there is\\nno data")
        return Wrong.apply(x) if self.how == "backward" else x

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no gradient")

def make(how, width=4):
    return Net(how), torch.randn(3, width)
"""


def test_a_factory_that_fails_is_one_line_with_its_own_place(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", f"{model_file}:fails", "--budget", "60%"]) == 2
    told = f"dtr-fx: error: {model_file}:fails failed: RuntimeError: there is no data ({model_file}:23)\n"
    assert capsys.readouterr().err == told


DIFF, SMALLEST, SWEEP = ["diff", "--budget", "60%"], ["smallest"], ["sweep", "--no-rivals"]


@pytest.mark.parametrize(
    ("verb", "arguments", "fact"),
    [
        *((verb, ["how=ok", "width=5"], "[3, 5] X [4, 4]. ({file}:11)") for verb in (DIFF, SMALLEST, SWEEP)),
        *((verb, ["how=key"], "({file}:13)") for verb in (DIFF, SWEEP)),
        (DIFF, ["how=broken"], "ValueError: there is no data ({file}:16)"),
        (DIFF, ["how=backward"], "RuntimeError: no gradient ({file}:26)"),
    ],
)
def test_a_model_that_fails_is_one_line_with_its_own_place(
    verb: list[str], arguments: list[str], fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "net.py", FAILING)
    given = [word for argument in arguments for word in ("--arg", argument)]
    assert main([*verb[:1], f"{path}:make", *verb[1:], *given]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"dtr-fx: error: {path}:make: the model fails on its example inputs: ")
    assert err.endswith(fact.format(file=path) + "\n")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("def factory(:\n", ["SyntaxError", "line 1"]),
        (
            "import sys\nsys.exit('usage: train.py DATA')\n",
            ["SystemExit: usage: train.py DATA", "target.py:2"],
        ),
        ("import module_that_nobody_has\n", ["No module named 'module_that_nobody_has'", "target.py:1"]),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, text: str, facts: list[str]) -> None:
    with pytest.raises(CommandError) as error:
        load_target(f"{write(tmp_path, 'target.py', text)}:factory")
    for fact in facts:
        assert fact in str(error.value)


def test_an_error_inside_a_library_is_told_from_the_users_line(tmp_path: Path) -> None:
    path = write(tmp_path, "target.py", "import torch\ndef factory():\n    return torch.nn.Linear(2, 'x')\n")
    with pytest.raises(CommandError, match=r"target\.py:3\)$"):
        load_target(f"{path}:factory")


# The command, with plans made by hand


def plan(name: str) -> Report:
    events = (
        Event("compute", name, name, "forward", 100, 1e-3, 1000),
        Event("drop", f"drop_{name}", name, "forward", 100, 0.0, 900, "budget", 0.1),
    )
    points = (Point(1000, name),)
    return Report(
        900, 1000, 900, 500, 100, 1.0, 1.0, "dtr-eq", "cpu", events, points, points, (), {"verify": 0.1}
    )


Planner = Callable[..., Sequence[Report]]


@pytest.fixture
def planned_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Planner], None]:
    def use(planner: Planner) -> None:
        backend: Any = ModuleType("dtr_fx.compiler.explain")
        backend.plan_step = planner
        monkeypatch.setitem(sys.modules, "dtr_fx.compiler.explain", backend)

    return use


def test_the_options_and_the_model_reach_the_planner(
    model_file: Path, planned_by: Callable[[Planner], None], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def planner(model: object, inputs: object, options: Options) -> list[Report]:
        seen.append((type(model), len(inputs), options))  # type: ignore[arg-type]
        return [plan("gelu_1")]

    planned_by(planner)
    assert main(["diff", f"{model_file}:factory", "--budget", "0.6", "--heuristic", "lru"]) == 0
    assert seen == [(torch.nn.Sequential, 1, Options(budget="0.6", heuristic="lru"))]
    out = capsys.readouterr().out
    assert "- drop       gelu_1" in out
    assert "\033" not in out  # this is no terminal


def test_several_graphs_are_numbered(
    model_file: Path, planned_by: Callable[[Planner], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planned_by(lambda *_: [plan("a"), plan("b")])
    assert main(["diff", f"{model_file}:factory", "--budget", "60%"]) == 0
    out = capsys.readouterr().out
    assert out.index("graph 1 of 2") < out.index("- drop       a ") < out.index("graph 2 of 2")


def test_json_is_the_reports(
    model_file: Path, planned_by: Callable[[Planner], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planned_by(lambda *_: [plan("a"), plan("b")])
    assert main(["diff", f"{model_file}:factory", "--budget", "60%", "--json"]) == 0
    reports = [Report.from_json(json.dumps(entry)) for entry in json.loads(capsys.readouterr().out)]
    assert reports == [replace(plan(name), model=f"{model_file}:factory") for name in "ab"]


def test_an_output_file_is_overwritten_only_when_forced(
    model_file: Path,
    planned_by: Callable[[Planner], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned_by(lambda *_: [plan("a")])
    output = tmp_path / "plan.txt"
    command = ["diff", f"{model_file}:factory", "--budget", "60%", "-o", str(output)]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Wrote {output}"
    assert "- drop" in output.read_text(encoding="utf-8")

    output.write_text("precious")
    assert main(command) == 2
    assert "-f" in capsys.readouterr().err
    assert output.read_text() == "precious"

    assert main([*command, "-f"]) == 0
    assert "- drop" in output.read_text(encoding="utf-8")


def test_a_file_that_cannot_be_written(
    model_file: Path, planned_by: Callable[[Planner], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planned_by(lambda *_: [plan("a")])
    output = model_file.parent / "absent" / "plan.txt"
    assert main(["diff", f"{model_file}:factory", "--budget", "60%", "-o", str(output)]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(("no_color", "colored"), [(None, True), ("", True), ("1", False)])
def test_colour_on_a_terminal_unless_no_color(
    no_color: str | None, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert screen().color is colored
    assert not screen(to_file=True).color


@pytest.mark.parametrize(
    ("is_terminal", "columns", "width"),
    [(True, "87", 87), (False, "87", 87), (False, "0", 120), (False, "wide", 120), (False, None, 120)],
)
def test_the_screen_is_as_wide_as_it_is_told(
    is_terminal: bool, columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert screen().width == width
    assert screen(to_file=True).width == 120


def test_a_budget_that_no_plan_fits_is_explained_without_a_traceback(
    model_file: Path, planned_by: Callable[[Planner], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def planner(*_: object) -> list[Report]:
        raise InfeasibleBudgetError(100, 200, 150, 400, "mm_3", "", {"parameter": 90})

    planned_by(planner)
    assert main(["diff", f"{model_file}:factory", "--budget", "100B"]) == 2
    err = capsys.readouterr().err
    assert "smallest budget that works: 200 bytes" in err
    assert "mm_3" in err
    assert "Traceback" not in err


def test_a_model_without_graphs(
    model_file: Path, planned_by: Callable[[Planner], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planned_by(lambda *_: [])
    assert main(["diff", f"{model_file}:factory", "--budget", "60%"]) == 2
    assert "no graph was traced" in capsys.readouterr().err


def test_a_wrong_budget_is_told_before_the_target_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "nowhere:nothing", "--budget", "8 gigs"]) == 2
    assert "'8GiB'" in capsys.readouterr().err


def test_an_unknown_heuristic_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["diff", "nowhere:nothing", "--budget", "60%", "--heuristic", "best"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert "dtr-eq" in err
    assert err.count("\n") == 1


def test_help_explains_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["diff", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for fact in ("train.py:make_gpt", "--budget", "60%", "dtr-eq", "--json", "returns a model"):
        assert fact in out


# The whole path


def test_diff_of_a_model(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    assert main(["diff", f"{model_file}:factory", "--budget", "80%"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fits: ")
    assert "- drop" in out
    assert "+ recompute" in out
    assert out.index("forward:") < out.index("backward:")


VERBS = "diff show timeline why smallest sweep record simulate figures completion".split()


@pytest.mark.parametrize(
    ("given", "status", "fact"),
    [
        (["--help"], 0, "sweep"),
        (["--version"], 0, torch.__version__),
        *((([verb, "--help"], 0, f"dtr-fx {verb}")) for verb in VERBS),
        (["bench", "--help"], 0, "BENCHMARK"),
        (["dif", "zoo:gpt"], 2, "unknown command 'dif'; did you mean 'diff'?"),
        (["diff"], 2, "required: TARGET"),
        (["diff", "zoo:gpt", "--budgte", "60%"], 2, "unknown option --budgte; did you mean '--budget'?"),
        (["sweep", "zoo:gpt", "--jsn"], 2, "did you mean '--json'?"),
        (["diff", "zoo:gpt", "--heuristic", "lruu"], 2, "'lruu'; did you mean 'lru'?"),
        (["diff", "zoo:gpt", "--budget", "8 gigs"], 2, "'8GiB'"),
        (["diff", "zoo:gtp", "--budget", "60%"], 2, "did you mean 'gpt'?"),
        (["smallest", "zoo:gtp"], 2, "did you mean 'gpt'?"),
        (["sweep", "zoo:gtp"], 2, "did you mean 'gpt'?"),
        (["show", "gone.py:make", "--budget", "60%"], 2, "there is no file gone.py"),
        (["record", "resnet", "-o", "x.log"], 2, "did you mean 'resnet32'?"),
        (["diff", "{plan}"], 0, "fits: "),
        (["diff", "{plan}", "{plan}"], 0, "the same drops and recomputes"),
        (["show", "{plan}"], 0, "by operator"),
        (["timeline", "{plan}", "--html", "{folder}/page.html"], 0, "Wrote"),
        (["why", "{plan}", "gelu"], 0, "dropped"),
        (["why", "{plan}", "gelo"], 2, "did you mean 'gelu'?"),
    ],
)
def test_what_plans_no_model_does_not_wait_for_torch(
    given: list[str], status: int, fact: str, tmp_path: Path
) -> None:
    storages = (StorageStats("gelu", "activation", 100, 1, 0, 0.0),)
    events = tuple(replace(event, target="gelu", storages=(0,)) for event in plan("gelu").events)
    saved = replace(plan("gelu"), events=events, storages=storages)
    path = write(tmp_path, "plan.json", saved.to_json())
    code = (
        "import sys, dtr_fx.cli\n"
        "try:\n status = dtr_fx.cli.main(sys.argv[1:])\n"
        "except SystemExit as stop:\n status = stop.code\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(status)"
    )
    words = [word.format(plan=path, folder=tmp_path) for word in given]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert (done.returncode, fact in said) == (status, True), said
    if status:
        assert said.count("\n") == 1
    else:
        assert done.stdout or fact == "Wrote"

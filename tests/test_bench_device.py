"""The benchmark for small cards: what trains under a cap, and a run that goes on where another ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from dtr_fx.cli import main
from dtr_fx.cli.bench import card
from dtr_fx.lab import methods, snapshots
from dtr_fx.lab.zoo.sized import Subject

pytestmark = pytest.mark.little_effort

CPU, CAP = torch.device("cpu"), 1 << 19


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


CHAIN = Subject("chain", "batch", 16, lambda batch: (Chain(), (torch.randn(batch, 32),)))


@pytest.fixture(scope="module")
def trials():
    names = (methods.EAGER, methods.CHECKPOINT, methods.DTR)
    return {name: methods.largest(methods.METHODS[name], CHAIN, CPU, CAP) for name in names}


def test_the_largest_batch_uses_most_of_the_cap(trials):
    assert all(0.85 * CAP < trial.peak <= CAP for trial in trials.values())
    assert (
        methods.attempt(
            methods.METHODS[methods.EAGER], CHAIN, int(1.2 * trials[methods.EAGER].size), CPU, CAP
        )
        is None
    )


def test_checkpointing_and_dtr_train_larger_batches(trials):
    assert trials[methods.EAGER].size < trials[methods.CHECKPOINT].size < trials[methods.DTR].size


LITTLE_TESTS = """
import pytest

@pytest.mark.gpu
def test_passes(): pass

@pytest.mark.gpu
def test_is_skipped(): pytest.skip("no device")

def test_of_no_device(): raise AssertionError
"""


def test_all_of_it_in_small(tmp_path, capsys, monkeypatch):
    """Each part, whole, on the CPU; a second run finds all of it done."""
    (tmp_path / "test_little.py").write_text(LITTLE_TESTS)
    monkeypatch.setattr(card, "TESTS", tmp_path)
    monkeypatch.setattr(card, "_SETTINGS", ("expandable_segments:True",))
    monkeypatch.setattr(card, "_BUDGETS", ("100%", "70%"))
    monkeypatch.setattr(card, "_PLANNERS", {"online, dtr": card._PLANNERS["online, dtr"]})
    monkeypatch.setattr(methods, "METHODS", {methods.EAGER: methods.METHODS[methods.EAGER]})
    monkeypatch.setattr("dtr_fx.lab.zoo.sized.SMALL", (replace(CHAIN, start=256),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "device.json"
    command = ["bench", "device", "--all", "--cap", "4MiB", "-o", str(path)]
    assert main(command) == 0
    text = capsys.readouterr().out
    saved = json.loads(path.read_text())
    assert saved["device"] == "CPU"
    assert not [cell["failure"] for cell in saved["cells"] if cell["failure"]]
    rows = {(cell["part"], *cell["case"]): cell["rows"] for cell in saved["cells"]}
    parts = ["tests", "allocator", "peaks", "steps", "costs", "quality", "largest"]
    assert list(dict.fromkeys(part for part, *_ in rows)) == parts
    assert rows["tests", "gpu"] == [{"passed": 1, "failed": 0, "skipped": 1, "which": ""}]
    [trace] = rows["allocator", "expandable_segments:True", "random"]
    assert (trace["misplaced"], trace["differing"]) == (0, 0)
    assert trace["blocks"] > 50
    assert trace["reserved"][0] == trace["reserved"][1]
    for asked in ("100%", "70%"):
        [peak] = rows["peaks", "chain", asked, "allocated"]
        assert peak["measured"][0] == pytest.approx(peak["planned"][0], rel=0.01)
    [step, *_] = rows["steps", "chain"]
    assert (step["asked"], step["identical"]) == ("70%", True)
    assert rows["quality", "chain", "online, dtr"][0]["time_ratio"] > 0
    assert rows["costs", "chain"][0]["graph"] > 0
    for part in parts[:-1]:
        assert f"\n{part}\ncase " in text
    assert main([*command, "--minutes", "0"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("damage", ["address", "size", "state"])
def test_a_block_that_differs_is_seen(damage):
    snapshot = snapshots.imitated(snapshots.random_requests(1, 200))
    block = snapshot["segments"][0]["blocks"][0]
    block[damage] = {"address": 512, "size": 1, "state": "inactive"}[damage]
    found = snapshots.compare(snapshot)
    assert (found.misplaced, found.differing) == (0, 1)


def test_segments_lie_where_the_driver_put_them():
    """Each below the one before it: of two blocks that fit as well, the one of the lower address is taken."""
    requests = [20 * 2**20] * 2 + [-1, -2, 2**20 * 15]
    snapshot = snapshots.imitated(requests)
    first, second, third = (
        event["addr"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"
    )
    assert third == second < first
    assert snapshots.compare(snapshot) == snapshots.Agreement(3, 0, 3, 0, (40 * 2**20, 40 * 2**20))


@pytest.mark.slow
def test_a_second_run_goes_on_where_the_first_ended(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        methods, "METHODS", {name: methods.METHODS[name] for name in (methods.EAGER, methods.DTR)}
    )
    monkeypatch.setattr("dtr_fx.lab.zoo.sized.SMALL", (CHAIN,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "device.json"
    command = ["bench", "device", "--cap", "512KiB", "-o", str(path)]
    assert main([*command, "--minutes", "0"]) == 0
    assert "0 of 4 cells" in capsys.readouterr().out
    assert main(command) == 0
    table = capsys.readouterr().out
    assert "chain, size = batch" in table
    assert "not yet" not in table
    cells = json.loads(path.read_text())["cells"]
    assert [cell["case"] for cell in cells] == [
        ["chain", "largest", "eager"],
        ["chain", "largest", "dtr"],
        ["chain", "alike", "eager"],
        ["chain", "alike", "dtr"],
    ]
    assert main([*command, "--minutes", "0"]) == 0
    assert capsys.readouterr().out == table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet51"], "did you mean 'resnet50'"),
        (["--cap", "8Gb"], "--cap 8Gb"),
        (["-o", "{file}"], "go on from"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text("{}")
    assert main(["bench", "device", *(argument.format(file=file) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_network_that_fails_does_not_end_the_others(capsys, monkeypatch):
    broken = Subject("broken", "batch", 1, lambda batch: (nn.Linear(2, 2), (torch.ones(batch, 3),)))
    monkeypatch.setattr(methods, "METHODS", {methods.EAGER: methods.METHODS[methods.EAGER]})
    monkeypatch.setattr("dtr_fx.lab.zoo.sized.SMALL", (broken, CHAIN))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "device", "--cap", "512KiB"]) == 0
    assert "RuntimeError" in capsys.readouterr().out

"""Operator logs: reading, writing, the mutation layer, and what is said of a malformed line."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtr_fx.lab.log import (
    AliasLine,
    AnnotateLine,
    CallLine,
    ConstantLine,
    CopyFromLine,
    CopyLine,
    Line,
    LogError,
    MemoryLine,
    MutateLine,
    ReleaseLine,
    format_line,
    parse_line,
    read_log,
    write_log,
)
from dtr_fx.lab.replay import replay
from dtr_fx.runtime import Runtime
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.program import Call, Constant, Keep, Output, Release

LOGS = Path(__file__).resolve().parents[2] / "shared" / "dtr_logs"

names = st.text(min_size=1)
lists = st.lists(names).map(tuple)
sizes = st.integers(0, 2**62)
lines = st.one_of(
    st.builds(AnnotateLine, names),
    st.builds(CallLine, lists, names, lists, sizes),
    st.builds(MutateLine, lists, st.lists(st.integers(0, 9)).map(tuple), names, sizes),
    st.builds(ConstantLine, names),
    st.builds(MemoryLine, sizes, names),
    st.builds(AliasLine, st.integers(-1, 9), names),
    st.builds(CopyLine, names, names),
    st.builds(CopyFromLine, names, names),
    st.builds(ReleaseLine, names),
)


def call(name: str, args: str, results: dict[str, int], *, views: dict[str, int] | None = None) -> list[Line]:
    """A call of 10 ns; ``results`` has the bytes of fresh ones, ``views`` the argument that each views."""
    views = views or {}
    found: list[Line] = [CallLine(tuple(args.split()), name, (*results, *views), 10)]
    for result, size in results.items():
        found += [MemoryLine(size, result), AliasLine(-1, result)]
    for result, argument in views.items():
        found += [MemoryLine(0, result), AliasLine(argument, result)]
    return found


def constant(name: str, size: int) -> list[Line]:
    return [ConstantLine(name), MemoryLine(size, name)]


@pytest.fixture
def log(tmp_path):
    """Write lines, read the program."""

    def read(*parts: list[Line] | Line, simrd: bool = False):
        path = tmp_path / "tiny.log"
        write_log(path, [line for part in parts for line in (part if isinstance(part, list) else [part])])
        return read_log(path, simrd=simrd)

    return read


@given(lines)
def test_lines_come_back_as_they_were_written(line):
    assert parse_line(format_line(line)) == line


def test_the_wire_format_is_the_original_one():
    line = CallLine(("x1", "x2"), "add", ("x3",), 1200)
    text = '{"ARGS":["x1","x2"],"INSTRUCTION":"CALL","NAME":"add","RESULT":["x3"],"TIME":"1200"}'
    assert format_line(line) == text
    assert parse_line('{"INSTRUCTION":"COPY_FROM","DST":"a","SRC":"b"}') == CopyFromLine("a", "b")
    assert parse_line('{"INSTRUCTION":"COPYFROM","DST":"a","SRC":"b"}') == CopyFromLine("a", "b")
    assert json.loads(format_line(CopyFromLine("a", "b")))["INSTRUCTION"] == "COPY_FROM"
    assert json.loads(format_line(MemoryLine(4096, "x")))["MEMORY"] == "4096"


def test_a_schedule_has_the_steps_of_the_log(log):
    program = log(
        constant("w", 8),
        call("mul", "w w", {"a": 4, "b": 2}),
        call("t", "a", {}, views={"c": 0}),
        CopyLine("d", "a"),
        ReleaseLine("a"),
        call("mul_backward", "c b", {"e": 1}),
        ReleaseLine("b"),
    )
    assert program.name == "tiny"
    assert program.instructions == (
        Constant(0, 8),
        Call("mul", (0, 0), (Output(1, 4), Output(2, 2)), 10),
        Call("t", (1,), (Output(3, 0, 1),), 10),
        Call("mul_backward", (3, 2), (Output(4, 1),), 10),
        Release(2),
        Keep(0),
        Keep(3),
        Keep(1),
        Keep(4),
    )
    assert program.backward == 2
    assert program.cost == 30
    assert program.constants == 8
    assert program.peak == 15


def test_what_comes_before_the_start_does_not_count(log):
    program = log(
        call("warm_up", "", {"old": 100}),
        AnnotateLine("START"),
        call("f", "", {"a": 1}),
        ReleaseLine("old"),
        AnnotateLine("BACKWARD"),
        call("g", "a", {"b": 1}),
    )
    assert [step.name for step in program.calls()] == ["f", "g"]
    assert program.peak == 2
    assert program.backward == 1


def test_copy_from_binds_a_name_anew(log):
    program = log(
        call("f", "", {"a": 1}),
        call("g", "", {"b": 2}),
        CopyFromLine("a", "b"),
        call("h", "a", {"c": 1}),
    )
    assert program.instructions[2:4] == (Release(0), Call("h", (1,), (Output(2, 1),), 10))


def test_a_tensor_is_released_with_its_last_name(log):
    program = log(
        call("f", "", {"a": 1}),
        CopyLine("b", "a"),
        ReleaseLine("a"),
        call("g", "b", {"c": 1}),
        ReleaseLine("b"),
    )
    assert [type(step) for step in program.instructions] == [Call, Call, Release, Keep]


def test_results_are_kept_in_the_order_of_their_first_names(log):
    """In the original of all names that a tensor has had, here of those that it has."""
    parts = (call("f", "", {"a": 1}), call("g", "", {"b": 2}), CopyLine("c", "a"), ReleaseLine("a"))
    assert log(*parts).instructions[2:] == (Keep(1), Keep(0))
    assert log(*parts, simrd=True).instructions[2:] == (Keep(0), Keep(1))


def test_a_mutated_storage_is_seen_through_all_of_its_names(log):
    parts = (
        call("f", "", {"x": 8}),
        call("view", "x", {}, views={"v": 0}),
        CopyLine("y", "x"),
        MutateLine(("v", "y"), (0,), "add_", 5),
        call("read", "x y v", {"z": 1}),
    )
    program = log(*parts)
    storages = program.storages
    *_, add, view, read = program.calls()
    [mutated] = add.outputs
    assert mutated.size == 8
    assert view.cost == 0
    assert {storages[tensor] for tensor in read.inputs} == {mutated.tensor}
    assert program.peak == 8 + 8  # while it is copied; then the old one goes
    *_, read = log(*parts, simrd=True).calls()
    assert [storages[tensor] for tensor in read.inputs] == [0, 0, mutated.tensor]


def test_nothing_is_held_twice_after_a_mutation(log):
    parts = (call("f", "", {"x": 8}), CopyLine("y", "x"), MutateLine(("x",), (0,), "add_", 5))
    runtime = Runtime(math.inf)
    drive(runtime, log(*parts))
    assert runtime.used == 8
    runtime = Runtime(math.inf)
    drive(runtime, log(*parts, simrd=True))
    assert runtime.used == 16


def test_gzip_and_plain_are_read_alike(tmp_path):
    found = [*constant("w", 8), *call("f", "w", {"a": 4})]
    write_log(tmp_path / "one.log", found)
    write_log(tmp_path / "one.log.gz", found)
    assert gzip.decompress((tmp_path / "one.log.gz").read_bytes()) == (tmp_path / "one.log").read_bytes()
    assert read_log(tmp_path / "one.log") == read_log(tmp_path / "one.log.gz")


def test_a_log_that_cannot_be_written_to_its_end_is_not_there(tmp_path):
    def half():
        yield ConstantLine("w")
        raise RuntimeError("power cut")

    write_log(tmp_path / "one.log", constant("w", 8))
    with pytest.raises(RuntimeError, match="power cut"):
        write_log(tmp_path / "one.log", half())
    assert [path.name for path in tmp_path.iterdir()] == ["one.log"]
    assert (tmp_path / "one.log").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("number", "text", "expected"),
    [
        (2, "{", "expected a JSON object, found '{'"),
        (2, "[]", 'expected an object with "INSTRUCTION"'),
        (2, '{"INSTRUCTION":"JUMP"}', "expected an instruction among ANNOTATE, CALL"),
        (2, '{"INSTRUCTION":["CALL"]}', "expected an instruction among ANNOTATE, CALL"),
        (2, '{"INSTRUCTION":"RELEASE"}', 'RELEASE: expected a key "NAME"'),
        (2, '{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":8}', 'in a string as "MEMORY", found 8'),
        (2, '{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"-8"}', "a number that is not negative"),
        (2, '{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"many"}', "a whole number in a string"),
        *(
            (2, f'{{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"{text}"}}', "a whole number in a string")
            for text in ("1_0", "\N{FULLWIDTH DIGIT EIGHT}", " 8 ", "+8", "")
        ),
        (2, '{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"9223372036854775808"}', "a number below 2**63"),
        (2, f'{{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"{"1" * 5000}"}}', "a number below 2**63"),
        (2, "1" * 5000, "expected a JSON object, found '1111"),
        (2, "[" * 100_000, "expected a JSON object, found '[[[["),
        (2, '{"INSTRUCTION":"RELEASE","NAME":"w"}', "expected MEMORY of w, found"),
        (2, '{"INSTRUCTION":"MEMORY","NAME":"v","MEMORY":"8"}', "expected MEMORY of w, found"),
        (1, "", "expected MEMORY of w, found the end of the log"),
        (3, "\n" + format_line(CopyLine("v", "w")), "expected MEMORY of w"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, number, text, expected):
    path = tmp_path / "broken.log"
    path.write_text(format_line(ConstantLine("w")) + "\n" + text)
    with pytest.raises(LogError) as caught:
        read_log(path)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (CopyLine("v", "ghost"), "expected the name of a tensor, found 'ghost'"),
        (CopyLine("w", "w"), "expected a new name, found 'w'"),
        (CopyFromLine("ghost", "w"), "expected the name of a tensor, found 'ghost'"),
        (MutateLine(("w",), (1,), "add_", 1), r"expected argument numbers below 1, found \[1\]"),
        (MemoryLine(8, "w"), "only after the line that makes it"),
        (call("f", "w", {}, views={"v": 1}), "expected -1 or the number of an argument below 1, found 1"),
        (call("f", "w", {"w": 4}), "expected a new name, found 'w'"),
        (ReleaseLine("ghost"), "expected the name of a tensor, found 'ghost'"),
        ([ReleaseLine("w"), ReleaseLine("w")], "expected the name of a tensor, found 'w'"),
    ],
)
def test_a_line_out_of_place_is_named(log, line, expected):
    with pytest.raises(LogError, match=expected):
        log(constant("w", 8), line)


def test_what_is_wrong_before_the_start_does_not_count(tmp_path):
    path = tmp_path / "x.log"
    start = format_line(AnnotateLine("START"))
    rest = [format_line(line) for line in [*call("f", "", {"a": 1}), ReleaseLine("late")]]
    late = [format_line(line) for line in call("warm_up", "", {"late": 1})]
    # START may even come where another line is waited for.
    for before in (["nonsense", *late], [*late, format_line(ReleaseLine("ghost"))], [*late, late[0]]):
        path.write_text("\n".join([*before, start, *rest]))
        assert [step.name for step in read_log(path).calls()] == ["f"]
        path.write_text("\n".join([*before, *rest]))
        with pytest.raises(LogError, match=r":(1|3|4|5): expected"):
            read_log(path)
    path.write_text("\n".join([*late, start, *rest, rest[-1]]))
    with pytest.raises(LogError, match=":9: expected the name of a tensor, found 'late'"):
        read_log(path)


def test_a_pipe_will_do(tmp_path):
    write_log(tmp_path / "one.log.gz", [AnnotateLine("START"), *call("f", "", {"a": 4})])
    compressed = (tmp_path / "one.log.gz").read_bytes()
    for content in (compressed, gzip.decompress(compressed)):
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)
        assert read_log(f"/dev/fd/{reading}").instructions == read_log(tmp_path / "one.log.gz").instructions
        os.close(reading)


def test_a_file_that_is_no_log(tmp_path):
    (tmp_path / "empty.log").write_text("")
    with pytest.raises(LogError, match="expected operators, found none"):
        read_log(tmp_path / "empty.log")
    write_log(tmp_path / "nothing.log", call("f", "", {"a": 0}))
    with pytest.raises(LogError, match="expected tensors of some bytes"):
        read_log(tmp_path / "nothing.log")
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "none.log")


def test_a_damaged_file(tmp_path):
    """It says after which line, as far as the file could be decoded."""
    path = tmp_path / "x.log"
    plain = "".join(format_line(line) + "\n" for n in range(9999) for line in constant(f"w{n}", n)).encode()
    whole = gzip.compress(plain)
    middle = len(whole) // 2
    for damaged in (
        whole[:middle],
        whole[:middle] + bytes(64) + whole[middle + 64 :],
        plain[: len(plain) // 2] + b"\xff\xfe" + plain[len(plain) // 2 :],
    ):
        path.write_bytes(damaged)
        with pytest.raises(LogError, match=r"expected a log, plain or gzip: damaged after line [1-9]\d+: "):
            read_log(path)


def test_a_log_without_times_is_not_slowed_down(log):
    lines = [
        replace(line, time=0) if isinstance(line, CallLine) else line for line in call("f", "", {"a": 1})
    ]
    assert replay(log(lines), max_slowdown=2.0).slowdown == 1


@pytest.mark.skipif(not LOGS.is_dir(), reason=f"the original artifact's logs are not at {LOGS}")
@pytest.mark.parametrize("name", ["resnet32", "unet", "transformer"])
def test_the_original_logs_are_read_and_written_as_they_are(name):
    with gzip.open(LOGS / f"{name}.log.gz", "rt") as file:
        texts = [text.strip() for text in file]
    assert [format_line(parse_line(text)) for text in texts] == texts
    kinds = Counter(json.loads(text)["INSTRUCTION"] for text in texts)
    program = read_log(LOGS / f"{name}.log.gz", simrd=True)
    assert len(list(program.calls())) == kinds["CALL"] + kinds["MUTATE"]
    assert sum(isinstance(step, Constant) for step in program.instructions) == kinds["CONSTANT"]

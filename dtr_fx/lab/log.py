"""Operator logs: the JSON lines of Appendix C.6, as the original artifact writes and reads them.

{"INSTRUCTION":"CALL","NAME":"relu","ARGS":["x1"],"RESULT":["x2"],"TIME":"1200"}, with bytes and nanoseconds.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from dtr_fx.errors import DTRError
from dtr_fx.inspect.text import clip
from dtr_fx.runtime.program import Call, Constant, Instruction, Keep, Output, Program, Release
from dtr_fx.tiers.tier import Bandwidth, Tier


class LogError(DTRError, ValueError):
    """A log that cannot be read: the file, the line, and what was expected there."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log."""


@dataclass(frozen=True, slots=True)
class AnnotateLine(Line):
    """``START``: the program begins here, what came before does not count. ``BACKWARD``: its second half."""

    annotation: str


@dataclass(frozen=True, slots=True)
class CallLine(Line):
    """An operator; a ``MemoryLine`` and an ``AliasLine`` follow for each result."""

    args: tuple[str, ...]
    name: str
    result: tuple[str, ...]
    time: int


@dataclass(frozen=True, slots=True)
class MutateLine(Line):
    """An operator that writes into the arguments of the numbers ``mutate``."""

    args: tuple[str, ...]
    mutate: tuple[int, ...]
    name: str
    time: int


@dataclass(frozen=True, slots=True)
class ConstantLine(Line):
    """A tensor from before the program; its ``MemoryLine`` follows."""

    name: str


@dataclass(frozen=True, slots=True)
class MemoryLine(Line):
    """The bytes of a tensor."""

    memory: int
    name: str


@dataclass(frozen=True, slots=True)
class AliasLine(Line):
    """Of which argument of its operator a tensor is a view; -1: of none."""

    alias: int
    name: str


@dataclass(frozen=True, slots=True)
class CopyLine(Line):
    """``dst`` is a new name for the tensor ``src``."""

    dst: str
    src: str


@dataclass(frozen=True, slots=True)
class CopyFromLine(Line):
    """The name ``dst`` stands for the tensor ``src`` from now on."""

    dst: str
    src: str


@dataclass(frozen=True, slots=True)
class ReleaseLine(Line):
    """The name is gone."""

    name: str


START = "START"
BACKWARD = "BACKWARD"

_WHOLE = re.compile(r"-?[0-9]+")
_DIGITS = 20  # more than sizes and times have; int() takes no more than thousands


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        raise ValueError("a whole number in a string")
    if len(value) > _DIGITS or int(value) >= 2**63:
        raise ValueError("a number below 2**63")
    return int(value)


def _amount(value: Any) -> int:
    number = _number(value)
    if number < 0:
        raise ValueError("a number that is not negative")
    return number


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("a list of names")
    return tuple(value)


def _positions(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int and number >= 0 for number in value):
        raise ValueError("a list of argument numbers")
    return tuple(value)


# The keys of each instruction, in the order of the class's fields.
_FORMS: dict[str, tuple[type[Line], dict[str, Callable[[Any], Any]]]] = {
    "ANNOTATE": (AnnotateLine, {"ANNOTATION": _text}),
    "CALL": (CallLine, {"ARGS": _names, "NAME": _text, "RESULT": _names, "TIME": _amount}),
    "MUTATE": (MutateLine, {"ARGS": _names, "MUTATE": _positions, "NAME": _text, "TIME": _amount}),
    "CONSTANT": (ConstantLine, {"NAME": _text}),
    "MEMORY": (MemoryLine, {"MEMORY": _amount, "NAME": _text}),
    "ALIAS": (AliasLine, {"ALIAS": _number, "NAME": _text}),
    "COPY": (CopyLine, {"DST": _text, "SRC": _text}),
    "COPY_FROM": (CopyFromLine, {"DST": _text, "SRC": _text}),
    "COPYFROM": (CopyFromLine, {"DST": _text, "SRC": _text}),  # the paper's spelling
    "RELEASE": (ReleaseLine, {"NAME": _text}),
}
# COPY_FROM comes before COPYFROM above, so it is the one that is written.
_KINDS = {cls: kind for kind, (cls, _) in reversed(_FORMS.items())}
_AS_TEXT = {"TIME", "MEMORY", "ALIAS"}


def parse_line(text: str) -> Line:
    """One line of a log; if it is none, ``LogError`` says what was expected."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets, have no message
        reason = f" ({error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        raise LogError(f"expected a JSON object, found {_shown(text)}{reason}") from None
    if not isinstance(fields, dict) or "INSTRUCTION" not in fields:
        raise LogError(f'expected an object with "INSTRUCTION", found {_shown(text)}')
    kind = fields["INSTRUCTION"]
    if not isinstance(kind, str) or kind not in _FORMS:
        raise LogError(f"expected an instruction among {', '.join(_FORMS)}, found {_shown(kind)}")
    cls, keys = _FORMS[kind]
    values = []
    for key, decode in keys.items():
        if key not in fields:
            raise LogError(f'{kind}: expected a key "{key}", found {_shown(text)}')
        try:
            values.append(decode(fields[key]))
        except ValueError as error:
            raise LogError(f'{kind}: expected {error} as "{key}", found {_shown(fields[key])}') from None
    return cls(*values)


def format_line(line: Line) -> str:
    """The line as text, keys in alphabetical order and no spaces, as the original artifact writes it."""
    kind = _KINDS[type(line)]
    fields: dict[str, Any] = {"INSTRUCTION": kind}
    for key, value in zip(_FORMS[kind][1], astuple(line)):
        fields[key] = str(value) if key in _AS_TEXT else value
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def write_log(path: str | Path, lines: Iterable[Line]) -> None:
    """Write a log, compressed if the name ends in ``.gz``; a file half-written does not stay."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(partial, "wt", encoding="utf-8") as file:
            for line in lines:
                file.write(format_line(line) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_log(path: str | Path, *, simrd: bool = False) -> Program:
    """The program of an operator log, plain or gzip; a pipe will do.

    Mutation becomes a pure operator that returns a new storage of the same size (C.6).  Every name of the old
    storage then means the new one; with ``simrd`` only the name that was mutated does, as in the original
    simulator, by whose rules such a program is also replayed.  The tensors that still have a name at the end
    are the results: they are rematerialized and stay.

    Raises ``LogError`` with the line that has no place there, its number, and what was expected; ``OSError``
    if the file cannot be opened.
    """
    path = Path(path)
    lines = _lines(path)
    start = next((number for number, (_, line) in enumerate(lines, 1) if line == AnnotateLine(START)), 0)
    before = {name for _, line in lines[:start] for name in _made_by(line)}
    reader = _Reader(lines[start:], before, simrd=simrd)
    try:
        reader.read()
    except LogError as error:
        raise LogError(f"{path}:{reader.number}: {error}") from None
    if not reader.calls:
        raise LogError(f"{path}: expected operators, found none")
    program = reader.program(path.name.removesuffix(".gz").removesuffix(".log"))
    if not program.peak:
        raise LogError(f"{path}: expected tensors of some bytes, found 0 bytes in each")
    return program


def with_offload(program: Program, out: float, back: float, latency: float = 1e-5) -> Program:
    """A log's program whose every storage may be moved to host memory: bytes per second, seconds per copy."""
    speed = Bandwidth(out * 1e-9, back * 1e-9, latency * 1e9, source="given")  # of nanoseconds
    moving = program.with_calls(lambda _, call: call._replace(movable=True))
    return replace(moving, tier=Tier("host", speed=speed))


_Numbered: TypeAlias = tuple[int, Line | LogError]


def _lines(path: Path) -> list[_Numbered]:
    """The lines of a file with their numbers; of a malformed one, which may come before START, the error."""
    lines: list[_Numbered] = []
    number = 0
    try:
        with _open(path) as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    try:
                        lines.append((number, parse_line(text)))
                    except LogError as error:
                        lines.append((number, error))
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        damage = f"damaged after line {number}: {error}"
        raise LogError(f"{path}: expected a log, plain or gzip: {damage}") from None
    return lines


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with open(path, "rb") as file:
        compressed = file.peek(2)[:2] == b"\x1f\x8b"
        source: Any = gzip.GzipFile(fileobj=file) if compressed else file
        with io.TextIOWrapper(source, encoding="utf-8") as text:
            yield text


def _made_by(line: Line | LogError) -> Iterable[str]:
    """The names that a line makes."""
    match line:
        case CallLine(result=names):
            return names
        case ConstantLine(name) | CopyLine(dst=name):
            return [name]
    return ()


class _Reader:
    """Binds names to tensors, line by line; names from ``before`` START may still be released."""

    def __init__(self, lines: Iterable[_Numbered], before: set[str], *, simrd: bool) -> None:
        self._lines = iter(lines)
        self.number = 0
        self.instructions: list[Instruction] = []
        self._simrd, self._before = simrd, before
        self._tensors: dict[str, int] = {}  # the tensor that a name stands for
        self._last: dict[str, int] = {}  # the last tensor of each name, also of those that are gone
        self._storages: list[int] = []  # of each tensor, its storage: the number of the first tensor there
        self._sizes: list[int] = []  # of each tensor, but views
        self._named: dict[int, dict[str, None]] = {}  # the names of a storage's tensors
        self._backward: int | None = None

    def program(self, name: str) -> Program:
        live = set(self._tensors.values())
        names = self._last if self._simrd else self._tensors
        kept = dict.fromkeys(tensor for tensor in names.values() if tensor in live)
        backward = self._backward
        if backward is None:  # the log does not say where its backward pass begins
            backward = next((at for at, call in enumerate(self.calls) if "backward" in call.name), None)
        steps = (*self.instructions, *(Keep(tensor) for tensor in kept))
        return Program(name, steps, backward, simrd=self._simrd)

    @property
    def calls(self) -> list[Call]:
        return [step for step in self.instructions if isinstance(step, Call)]

    def read(self) -> None:
        while (line := self._next()) is not None:
            match line:
                case AnnotateLine(annotation):
                    if annotation == BACKWARD:
                        self._backward = len(self.calls)
                case ConstantLine(name):
                    size = self._expect(MemoryLine, name).memory
                    self.instructions.append(Constant(self._claim(name, self._new(size)), size))
                case CallLine():
                    self._call(line)
                case MutateLine():
                    self._mutate(line)
                case CopyLine(dst, src):
                    self._claim(dst, self._tensor(src))
                case CopyFromLine(dst, src):
                    tensor = self._tensor(src)
                    self._tensor(dst)
                    self._rename(dst, tensor)
                case ReleaseLine(name) if name not in self._tensors and name in self._before:
                    self._before.remove(name)
                case ReleaseLine(name):
                    tensor = self._tensor(name)
                    del self._tensors[name]
                    self._unbind(name, tensor)
                case MemoryLine(name=name) | AliasLine(name=name):
                    raise LogError(
                        f"expected {_KINDS[type(line)]} of {name} only after the line that makes it"
                    )

    def _next(self) -> Line | None:
        self.number, line = next(self._lines, (self.number, None))
        if isinstance(line, LogError):
            raise line
        return line

    def _expect(self, kind: type[Any], name: str) -> Any:
        """The next line, which has to be of this kind and name."""
        expected = f"{_KINDS[kind]} of {name}"
        line = self._next()
        if line is None:
            raise LogError(f"expected {expected}, found the end of the log")
        if type(line) is not kind or getattr(line, "name", None) != name:
            raise LogError(f"expected {expected}, found {format_line(line)}")
        return line

    def _call(self, line: CallLine) -> None:
        inputs = tuple(self._tensor(name) for name in line.args)
        outputs = []
        for name in line.result:
            size = self._expect(MemoryLine, name).memory
            alias = self._expect(AliasLine, name).alias
            if not -1 <= alias < len(inputs):
                raise LogError(f"expected -1 or the number of an argument below {len(inputs)}, found {alias}")
            base = None if alias == -1 else inputs[alias]
            tensor = self._claim(name, self._new(size, base))
            outputs.append(Output(tensor, size if base is None else 0, base))
        self.instructions.append(Call(line.name, inputs, tuple(outputs), line.time))

    def _mutate(self, line: MutateLine) -> None:
        """Copy on write (C.6): the operator returns the mutated storages as fresh ones."""
        inputs = tuple(self._tensor(name) for name in line.args)
        if any(number >= len(inputs) for number in line.mutate):
            raise LogError(f"expected argument numbers below {len(inputs)}, found {list(line.mutate)}")
        written = [line.args[number] for number in line.mutate]
        stale = {name: [name] if self._simrd else self._others(name) for name in written}
        sizes = [self._sizes[self._storages[self._tensor(name)]] for name in written]
        outputs = [Output(self._new(size), size) for size in sizes]
        self.instructions.append(Call(line.name, inputs, tuple(outputs), line.time))
        for name, output in zip(written, outputs):
            self._rebind(name, stale[name], output.tensor)

    def _others(self, name: str) -> list[str]:
        """All names of the storage, the given one first."""
        names = self._named[self._storages[self._tensor(name)]]
        return [name, *(other for other in names if other != name)]

    def _rebind(self, mutated: str, names: list[str], tensor: int) -> None:
        """Let the names, views among them, stand for the new storage instead of the old one."""
        views = {self._tensors[mutated]: tensor}
        for name in names:
            old = self._tensors[name]
            if old not in views:
                views[old] = self._new(0, tensor)
                self.instructions.append(Call("view", (tensor,), (Output(views[old], 0, tensor),), 0))
            self._rename(name, views[old])

    # Names and tensors

    def _tensor(self, name: str) -> int:
        if name not in self._tensors:
            raise LogError(f"expected the name of a tensor, found {name!r}, which no line before has made")
        return self._tensors[name]

    def _new(self, size: int, base: int | None = None) -> int:
        """The number of one more tensor, with a storage of its own or that of ``base``."""
        tensor = len(self._storages)
        self._storages.append(tensor if base is None else self._storages[base])
        self._sizes.append(size)
        return tensor

    def _claim(self, name: str, tensor: int) -> int:
        """The tensor, under a name that stands for none yet."""
        if name in self._tensors:
            raise LogError(f"expected a new name, found {name!r}, which already stands for a tensor")
        self._bind(name, tensor)
        return tensor

    def _bind(self, name: str, tensor: int) -> None:
        self._tensors[name] = self._last[name] = tensor
        self._named.setdefault(self._storages[tensor], {})[name] = None

    def _rename(self, name: str, tensor: int) -> None:
        before = self._tensors[name]
        self._bind(name, tensor)
        self._unbind(name, before)

    def _unbind(self, name: str, tensor: int) -> None:
        names = self._named[self._storages[tensor]]
        now = self._tensors.get(name)
        if now is None or self._storages[now] != self._storages[tensor]:
            del names[name]
        if all(self._tensors[other] != tensor for other in names):
            self.instructions.append(Release(tensor))


def _shown(value: Any) -> str:
    """The value for a message, not too long."""
    return repr(clip(value.strip(), 60)) if isinstance(value, str) else clip(repr(value), 60)

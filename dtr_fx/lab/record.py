"""Operator logs of real models (Appendix C.6 of Kirisame et al., ICLR 2021).

One eager training step, forward, loss and backward, runs under a ``TorchDispatchMode``, which sees every
operator that autograd and the model call.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from dtr_fx.errors import DTRError
from dtr_fx.lab import log
from dtr_fx.passes.tensors import tensors_of
from dtr_fx.planning.step import Inputs, call, loss_of
from dtr_fx.torch_private import TorchDispatchMode, schema_of, storage_key

__all__ = ["RecordError", "record_log"]

_TIMED_STEPS = 3  # after one to warm up

# Arguments that an operator writes into though its schema does not say so, while it is training (argument 5).
_BATCH_NORMS = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
_TRAINING = 5


class RecordError(DTRError, ValueError):
    """A model whose training step cannot be recorded, or a file that cannot be written."""


def record_log(model: Callable[..., Any], inputs: Inputs, path: str | Path) -> None:
    """Run a training step and write its operator log.

    The step runs once to warm up and then three times, each from the same start; an operator's time is the
    median of its three, in nanoseconds, with the few microseconds of calling it from Python.  Parameters,
    buffers, inputs, other tensors that operators read, the gradients of all these, and random generators are
    left as they were.  What a kernel allocates and frees while it runs is not seen.

    The step is ``model(*inputs)``, or ``model(**inputs)`` of a mapping.  The loss is its output if that is a
    scalar, else the sum of its floating-point outputs.  The file ``path`` is overwritten, and compressed if
    its name ends in ``.gz``.  At its end the parameters, buffers, inputs, gradients and outputs are live.

    Raises ``RecordError`` if nothing that the model returns requires a gradient, its loss is complex, an
    operator has to do with a tensor that has no storage (a sparse one) or nothing in it (on the meta device),
    the inputs are neither, or the file cannot be written.
    """
    path = Path(path)
    if not isinstance(inputs, (tuple, list, Mapping)):
        kinds = "a tuple of arguments or a mapping of keyword arguments"
        raise RecordError(f"expected the inputs as {kinds}, not {type(inputs).__name__}")
    if not path.parent.is_dir():
        raise RecordError(f"cannot write {path}: there is no folder {path.parent}")
    recordings = [_record_step(model, inputs) for _ in range(1 + _TIMED_STEPS)]
    lines, _ = recordings[-1]
    # A model that draws from Python's random module may do something else in each step.
    columns = zip(*(times for other, times in recordings[1:] if other == lines))
    medians = (int(statistics.median(column)) for column in columns)
    timed = (
        replace(line, time=next(medians)) if isinstance(line, (log.CallLine, log.MutateLine)) else line
        for line in lines
    )
    try:
        log.write_log(path, timed)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from None


def _record_step(model: Callable[..., Any], inputs: Inputs) -> tuple[list[log.Line], list[int]]:
    """The lines of a step, and the times that belong into its operators' lines."""
    own = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
    state = [*own, *tensors_of(inputs)]
    device = next((tensor.device for tensor in state if tensor.is_cuda), None)
    with _as_before(state) as save, torch.enable_grad(), _Recorder(device, save) as recorder:
        recorder.start(state)
        output = call(model, inputs)
        loss = loss_of(output)
        if loss is None:
            raise RecordError(
                "no output of the model requires a gradient, so it has no backward pass: "
                "return a floating-point tensor that depends on a parameter"
            )
        if loss.is_complex():
            raise RecordError("the loss is complex, and has no gradient: return its absolute value")
        recorder.lines.append(log.AnnotateLine(log.BACKWARD))
        loss.backward()
        del loss
        gradients = [tensor.grad for tensor in state if tensor.grad is not None]
        recorder.end([*state, *gradients, *tensors_of(output)])
        return list(recorder.lines), recorder.times()


@contextmanager
def _as_before(state: Sequence[Tensor]) -> Iterator[Callable[[Tensor], None]]:
    """Put tensors, gradients and generators back in the end; yields what saves a tensor met on the way."""
    saved: list[tuple[weakref.ref[Tensor], Tensor, Tensor | None]] = []

    def save(tensor: Tensor) -> None:
        if tensor.is_meta:
            raise RecordError(
                "a tensor is on the meta device, where nothing runs: move the model and its inputs"
            )
        gradient = tensor.grad if tensor.is_leaf else None
        saved.append((weakref.ref(tensor), tensor.detach().clone(), gradient))
        if gradient is not None:
            tensor.grad = None

    try:
        for tensor in state:
            save(tensor)
        with torch.random.fork_rng(devices={tensor.get_device() for tensor in state if tensor.is_cuda}):
            yield save
    finally:
        for reference, content, gradient in reversed(saved):
            living = reference()
            if living is None:
                continue
            if living.is_leaf:
                living.grad = gradient
            if not torch.equal(living, content):
                with torch.no_grad():
                    living.copy_(content)


_Geometry: TypeAlias = "tuple[Any, ...]"  # the type, place and shape of one of a storage's tensors
_Result: TypeAlias = tuple[str, int, int]  # name, bytes, and the number of the argument that it is a view of


@dataclass
class _Storage:
    """A live storage: its bytes, and its tensors' names.  ``watch`` calls back when it dies."""

    size: int
    watch: weakref.ref[Any]
    names: dict[_Geometry, str] = field(default_factory=dict)


class _Argument(NamedTuple):
    """A tensor that an operator takes, with its name and storage before the operator runs."""

    name: str
    tensor: Tensor
    storage: int


def _geometry(tensor: Tensor) -> _Geometry:
    where = (tensor.shape, tensor.stride(), tensor.storage_offset())
    return (tensor.dtype, *where, tensor.is_conj(), tensor.is_neg())


def _storage_of(tensor: Tensor) -> torch.UntypedStorage:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        what = f"a {tensor.layout} tensor of shape {tuple(tensor.shape)}"
        raise RecordError(f"{what} has no storage: only strided tensors can be recorded") from None


def _key(tensor: Tensor) -> int:
    return storage_key(_storage_of(tensor))


def _nbytes(tensor: Tensor) -> int:
    return _storage_of(tensor).nbytes()


def _written(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that the operator writes into, one of each storage."""
    declared = schema_of(function).arguments
    given = {argument.name: value for argument, value in zip(declared, args)} | dict(kwargs)
    names = [argument.name for argument in declared if argument.alias_info and argument.alias_info.is_write]
    undeclared = _BATCH_NORMS.get(function.overloadpacket.__name__, ())
    if undeclared and given[declared[_TRAINING].name]:
        names += [declared[position].name for position in undeclared]
    written = tensors_of([given.get(name) for name in names])
    return list({_key(tensor): tensor for tensor in reversed(written)}.values())[::-1]


class _Recorder(TorchDispatchMode):
    """Writes down the operators that run under it, and the ends of their tensors' storages.

    A name lives as long as its *storage*, as what autograd saves comes back as other objects on it.  A later
    view with the same shape, strides and type takes the place of a name.  A write leaves the name that was
    written; whoever uses another view afterwards uses one that is made anew, by a call ``alias`` of no cost.

    Under a dispatch mode autograd adds gradients up out of place, and calls ``aten.detach``, which is left
    out, for what it saves.  An operator that returns no tensor and writes none (``item``) has a result of 0
    bytes.
    """

    def __init__(self, device: torch.device | None, save: Callable[[Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device  # a CUDA device times by events on its stream, so that nothing has to wait
        self._save = save
        self._spans: list[tuple[Any, Any] | None] = []
        self.lines: list[log.Line] = []
        self._storages: dict[int, _Storage] = {}
        self._count = 0

    def start(self, state: Iterable[Tensor]) -> None:
        self.lines.append(log.AnnotateLine(log.START))
        for tensor in state:
            self._name(tensor)

    def end(self, results: Iterable[Tensor]) -> None:
        """Give up every name but those of the results; a storage that lives on elsewhere keeps one."""
        kept = {self._name(tensor) for tensor in results}
        for storage in self._storages.values():
            names = list(storage.names.values())
            keeps = kept.intersection(names) or names[:1]
            self._release(name for name in names if name not in keeps)

    def times(self) -> list[int]:
        """Nanoseconds of each operator."""
        if self._device is None:
            return [span[1] - span[0] if span else 0 for span in self._spans]
        torch.cuda.synchronize(self._device)
        return [round(1e6 * span[0].elapsed_time(span[1])) if span else 0 for span in self._spans]

    def _now(self) -> Any:
        if self._device is None:
            return time.perf_counter_ns()
        return torch.cuda.current_stream(self._device).record_event(torch.cuda.Event(enable_timing=True))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach.default or func.namespace == "profiler":
            return func(*args, **kwargs)
        given = tensors_of((args, kwargs))
        for tensor in given:
            if _key(tensor) not in self._storages:
                self._save(tensor)
        inputs = list(map(self._argument, given))
        writes = list(map(self._argument, _written(func, args, kwargs)))
        start = self._now()
        result = func(*args, **kwargs)
        self._spans.append((start, self._now()))
        self._log(func.overloadpacket.__name__, inputs, writes, tensors_of(result))
        return result

    def _argument(self, tensor: Tensor) -> _Argument:
        return _Argument(self._name(tensor), tensor, _key(tensor))

    def _log(
        self, operator: str, inputs: list[_Argument], writes: list[_Argument], results: list[Tensor]
    ) -> None:
        """The lines of an operator that ran.

        One that writes into arguments and also returns something new, or enlarges what it writes into,
        becomes one that returns what it wrote as new storages, which the names then stand for.
        """
        writes = [write for write in writes if write.storage == _key(write.tensor)]  # all but those of set_
        names = tuple(argument.name for argument in inputs)
        made, replaced = self._results(results, inputs, writes)
        if not made and not writes:
            replaced.append(self._new_name())
            made.append((replaced[-1], 0, -1))
        grown = any(self._storages[write.storage].size != _nbytes(write.tensor) for write in writes)
        if made or not writes or grown:
            copies = {self._new_name(): write for write in writes}
            made += [(name, _nbytes(write.tensor), -1) for name, write in copies.items()]
            self._call(operator, names, made)
            for copy, write in copies.items():
                self.lines += (log.CopyFromLine(write.name, copy), log.ReleaseLine(copy))
        else:
            positions = tuple(names.index(write.name) for write in writes)
            self.lines.append(log.MutateLine(names, positions, operator, 0))
        self._release(replaced)
        for write in writes:
            self._leave_only(write)

    def _results(
        self, results: Sequence[Tensor], inputs: Sequence[_Argument], writes: Sequence[_Argument]
    ) -> tuple[list[_Result], list[str]]:
        """Names for what the operator made, and the names that these take the place of.

        An argument that was written in place and returned has its name.  A second view of a storage that the
        operator allocated has no argument to be a view of; it is named when somebody reads it.
        """
        made: list[_Result] = []
        replaced: list[str] = []
        homes = [argument.storage for argument in inputs]
        written = {write.storage for write in writes}
        for tensor in results:
            key = _key(tensor)
            if key in written or (key in self._storages and key not in homes):
                continue
            name = self._new_name()
            alias = homes.index(key) if key in homes else -1
            made.append((name, _nbytes(tensor) if alias == -1 else 0, alias))
            replaced += self._bind(name, tensor)
        return made, replaced

    def _call(self, operator: str, names: tuple[str, ...], made: Sequence[_Result]) -> None:
        self.lines.append(log.CallLine(names, operator, tuple(name for name, _, _ in made), 0))
        for name, size, alias in made:
            self.lines += (log.MemoryLine(size, name), log.AliasLine(alias, name))

    def _name(self, tensor: Tensor) -> str:
        """The name of a tensor; one that no operator made is a constant, or a view made anew."""
        storage = self._storages.get(_key(tensor))
        if storage is not None and _geometry(tensor) in storage.names:
            return storage.names[_geometry(tensor)]
        name = self._new_name()
        if storage is None:
            self.lines += (log.ConstantLine(name), log.MemoryLine(_nbytes(tensor), name))
        else:
            self._call("alias", (next(iter(storage.names.values())),), [(name, 0, 0)])
            self._spans.append(None)
        self._bind(name, tensor)
        return name

    def _new_name(self) -> str:
        self._count += 1
        return f"x{self._count - 1}"

    def _bind(self, name: str, tensor: Tensor) -> list[str]:
        """Let the name stand for the tensor; the name that did so before, if any."""
        key = _key(tensor)
        if key not in self._storages:
            # PyTorch keeps this object as long as the storage lives, whoever holds on to that.
            watch = weakref.ref(_storage_of(tensor), partial(self._died, key))
            self._storages[key] = _Storage(_nbytes(tensor), watch)
        names = self._storages[key].names
        before = names.get(_geometry(tensor))
        names[_geometry(tensor)] = name
        return [] if before is None else [before]

    def _leave_only(self, write: _Argument) -> None:
        """Leave what was written as the only name of its storage; its shape may have changed, too."""
        storage = self._storages[write.storage]
        self._release(name for name in storage.names.values() if name != write.name)
        storage.names = {_geometry(write.tensor): write.name}
        storage.size = _nbytes(write.tensor)

    def _died(self, key: int, _: object) -> None:
        self._release(self._storages.pop(key).names.values())

    def _release(self, names: Iterable[str]) -> None:
        self.lines += (log.ReleaseLine(name) for name in names)

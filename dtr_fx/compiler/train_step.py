"""``dtr_fx.train_step``: a whole training step under one budget, as one graph with one plan."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

from dtr_fx.compiler.backend import boxed_compiler
from dtr_fx.compiler.capture import PLAIN, Captured, StepModel, batch_size, capture, numbers_of
from dtr_fx.compiler.memoryless import has_no_memory
from dtr_fx.compiler.publish import publish
from dtr_fx.errors import GraphError, InfeasibleBudgetError, OptionError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.contract import VALUES, Pipeline
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.updates import EarlyUpdates
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.planning.planning import copy_of
from dtr_fx.planning.rewrite import rewrite
from dtr_fx.torch_private import OptimizedModule, pytree, read
from dtr_fx.units import format_bytes

log = logging.getLogger(__name__)

_MOST_PARTS = 64


def train_step(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    budget: float | int | str | None = None,
    *,
    max_norm: float | None = None,
    accumulate: int | Literal["auto"] = 1,
    **options: Any,
) -> TrainStep:
    """A function that takes a batch, trains on it inside a budget, and returns the loss.

    The budget is the whole step's: parameters, gradients, the optimizer's state, the batch and all that is
    temporary.  Each gradient is freed when its parameter is updated, which is in place and as early as
    nothing reads the old value any more.

    Parameters
    ----------
    model, optimizer:
        As for a loop of one's own.  What the optimizer holds stays in it, so saving, loading and schedulers
        work as before.  Parameters have no ``.grad`` between steps.
    loss:
        ``loss(model, *batch)`` returns the loss, a scalar tensor, or a tuple whose first it is.
    budget:
        See ``parse_budget``; a share is of the peak that the step has when nothing is computed again.
    max_norm:
        Gradients are clipped to this norm, as by ``torch.nn.utils.clip_grad_norm_``.
    accumulate:
        In how many parts a batch is computed, one after the other, along the first dimension; ``"auto"``:
        in as few as fit.  The loss is the mean of theirs.
    options:
        As for the backend, see ``Options``.

    Raises
    ------
    OptionError, GraphError, InfeasibleBudgetError
        GraphError for a step that PyTorch cannot trace into one graph.  The latter two when it is called.

    >>> import torch, dtr_fx
    >>> model = torch.nn.Linear(8, 1)
    >>> def loss(model, x, y):
    ...     return torch.nn.functional.mse_loss(model(x), y)
    >>> step = dtr_fx.train_step(model, loss, torch.optim.AdamW(model.parameters()), "100%")
    >>> bool(step(torch.ones(4, 8), torch.ones(4, 1)) > 0)
    True
    """
    return TrainStep(model, loss, optimizer, budget, max_norm, accumulate, options)


class TrainStep:
    """See ``train_step``; ``reports`` are of the plans that were made, one for each layout of a batch."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        budget: float | int | str | None,
        max_norm: float | None,
        accumulate: int | Literal["auto"],
        options: dict[str, Any],
    ) -> None:
        given = options if budget is None else {"budget": budget, **options}
        self._options = Options.of_backend(given)
        if self._options.executor == "inductor":
            raise OptionError("executor='inductor': a whole step runs operator by operator; leave it out")
        if self._options.policy:
            raise OptionError(
                "policy: a whole step knows no paths; say dtr_fx.keep or dtr_fx.drop in the code"
            )
        if not isinstance(model, nn.Module):
            raise OptionError(f"model is {type(model).__name__}: give a module")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OptionError(f"optimizer is {type(optimizer).__name__}: give one of torch.optim")
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            name = type(optimizer).__name__
            raise OptionError(
                f"{name} evaluates the loss several times in a step: take another, such as AdamW"
            )
        if accumulate != "auto" and not (type(accumulate) is int and accumulate > 0):
            raise OptionError(f"accumulate={accumulate!r}: give a number of parts, or 'auto'")
        if max_norm is not None and not (type(max_norm) in (int, float) and max_norm > 0):
            raise OptionError(f"max_norm={max_norm!r}: give a norm above 0, or None")
        self._model = StepModel(model, loss)
        self._optimizer = optimizer
        self._max_norm = max_norm
        self._accumulate = accumulate
        self._steps: dict[Hashable, list[_Step]] = {}
        self.reports: list[Report] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One step on a batch: what ``loss(model, *args, **kwargs)`` returns, detached."""
        self._check()
        leaves, nesting = _flatten(args, kwargs)
        numbers = [number.value for number in numbers_of(self._optimizer)]
        known = self._steps.get(self._key(leaves, nesting), [])
        step = next((step for step in known if step.holds(numbers)), None)
        if step is None:
            if any(map(has_no_memory, self._model.parameters())):
                raise OptionError(
                    "the model has no memory: plan its step by graph(...), or move it to a device"
                )
            with self._state_as_before(if_failed=True):
                step = self._made(leaves, nesting)
        results = step(self._model, self._optimizer, numbers, leaves)
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # what schedulers look at
        return results

    def _check(self) -> None:
        """Refuse what the step would pass over."""
        for module in self._model.modules():
            if isinstance(module, (OptimizedModule, DistributedDataParallel, FullyShardedDataParallel)):
                name = type(module).__name__
                raise OptionError(
                    f"{name} does more than compute, which one graph has not: give what is in it"
                )
        parameters = list(self._model.parameters())
        for parameter in parameters:
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise OptionError("parameters have hooks on their gradients, which are not run: remove them")
        if torch.is_inference_mode_enabled():
            raise OptionError("a step trains, which torch.inference_mode() rules out: leave it")
        if any(parameter.grad is not None for parameter in parameters):
            raise OptionError(
                "parameters hold gradients, which the step would pass over: zero_grad(set_to_none=True) first"
            )
        hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        if any(read(self._optimizer, name) for name in hooks):
            raise OptionError("the optimizer has hooks around its step, which are not run: remove them")

    def _key(self, leaves: Sequence[Any], nesting: Any) -> Hashable:
        """All that decides which operators a step has, and of what sizes."""
        loss = self._model.loss
        own = vars(getattr(loss, "__self__", loss)).items() if hasattr(loss, "__dict__") else ()
        of_loss = tuple((name, _identity(value)) for name, value in own)
        # Empty are most of a module's attributes: hooks of all kinds.
        modules = tuple(
            (type(module), *[(name, _identity(value)) for name, value in vars(module).items() if value != {}])
            for module in self._model.modules()
        )
        tensors = (*self._model.parameters(), *self._model.buffers())
        layouts = tuple((*_layout(one), one.requires_grad) for one in tensors)
        given = tuple(_layout(leaf) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves)
        return given, nesting, self._optimizer_key(), of_loss, modules, layouts, _autocast(leaves)

    def _optimizer_key(self) -> Hashable:
        """The optimizer's numbers by name, its other settings, and what it keeps of each parameter."""
        optimizer, parameters = self._optimizer, list(self._model.parameters())
        number_of = {id(parameter): at for at, parameter in enumerate(parameters)}

        def setting(name: str, value: Any) -> Hashable:
            if name == "params":
                return tuple(number_of.get(id(parameter)) for parameter in value)
            several = value if isinstance(value, tuple) else (value,)
            return name, tuple(None if isinstance(one, (float, Tensor)) else repr(one) for one in several)

        groups = optimizer.param_groups
        settings = tuple(setting(name, value) for group in groups for name, value in group.items())
        numbers = {(number.group, number.name, number.position) for number in numbers_of(optimizer)}
        state = tuple(tuple(optimizer.state.get(one, ())) for one in parameters)
        return frozenset(numbers), settings, state

    def graph(self, *args: Any, **kwargs: Any) -> GraphModule:
        """The step on such a batch as one graph, without a plan: for ``transform``, ``sweep`` and their kin.

        Its updates stand as early as they can.  The optimizer is left as it is; with ``accumulate="auto"``
        the batch is computed at once.
        """
        self._check()
        leaves, nesting = _flatten(args, kwargs)
        with self._state_as_before():
            parts = 1 if self._accumulate == "auto" else self._accumulate
            captured = self._captured(leaves, nesting, parts)
            if captured.new_state:
                self._add_state(captured.new_state)
                captured = self._captured(leaves, nesting, parts)
        gm = captured.gm
        Pipeline(EarlyUpdates(), given=(VALUES,))(gm)
        return gm

    @contextlib.contextmanager
    def _state_as_before(self, *, if_failed: bool = False) -> Iterator[None]:
        """Take back what is added to the optimizer's state."""
        states = self._optimizer.state
        before = {parameter: dict(state) for parameter, state in states.items()}
        done = False
        try:
            yield
            done = True
        finally:
            if not (done and if_failed):
                states.clear()
                states.update(before)

    def _add_state(self, new: Mapping[tuple[int, str], Tensor]) -> None:
        """Entries of the optimizer's state as the first step makes them, without values."""
        parameters = list(self._model.parameters())
        for (number, name), fake in new.items():
            like = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            self._optimizer.state[parameters[number]][name] = like

    def _captured(self, leaves: Sequence[Any], nesting: Any, parts: int) -> Captured:
        return capture(
            self._model, self._optimizer, leaves, nesting, micro_batches=parts, max_norm=self._max_norm
        )

    def _made(self, leaves: Sequence[Any], nesting: Any) -> _Step:
        """The step for a layout, and the one after it if this one makes state for the optimizer."""
        step = self._fitting(leaves, nesting)
        found = {self._key(leaves, nesting): step}
        if step.new_state:
            with self._state_as_before():
                self._add_state(step.new_state)
                found[self._key(leaves, nesting)] = self._fitting(leaves, nesting)
        for key, each in found.items():
            self._steps.setdefault(key, []).append(each)
        while len(self._steps) > self._options.plans_kept + 1:
            del self._steps[next(iter(self._steps))]
        return step

    def _fitting(self, leaves: Sequence[Any], nesting: Any) -> _Step:
        """A step in as few parts as fit, if that is left open."""
        failure: InfeasibleBudgetError | None = None
        for parts in self._parts(batch_size(leaves)):
            captured = self._captured(leaves, nesting, parts)
            try:
                step, report = _planned(captured, self._options)
            except InfeasibleBudgetError as error:
                if failure is None or error.smallest < failure.smallest:
                    failure = error.with_traceback(None)
                continue
            report = replace(report, trigger=self._circumstances(captured, parts))
            self.reports.append(report)
            publish(report, self._options)
            if parts > 1 and self._accumulate == "auto":
                log.warning("a batch is computed in %d parts; batch normalization sees one at a time", parts)
            return step
        assert failure is not None
        raise failure

    def _circumstances(self, captured: Captured, parts: int) -> str:
        """Words on how the step is traced, for the report."""
        found = ["whole step"]
        if parts > 1:
            found.append(f"in {parts} parts")
        if self._max_norm is not None:
            nbytes = format_bytes(captured.gradient_bytes)
            found.append(f"clipping holds {nbytes} of gradients until their norm is known")
        return ", ".join(found)

    def _parts(self, size: int) -> Iterator[int]:
        """Into how many parts a batch may be split: each number at least twice the one before."""
        if self._accumulate != "auto":
            if size % self._accumulate:
                raise OptionError(
                    f"accumulate={self._accumulate}: a batch of {size} is not split into equal parts; give a "
                    "divisor, or 'auto'"
                )
            yield self._accumulate
            return
        parts = 1
        while parts <= min(size, _MOST_PARTS):
            yield parts
            parts = next((more for more in range(2 * parts, size + 1) if size % more == 0), size + 1)


class _Step:
    """A planned step, as it runs."""

    def __init__(self, captured: Captured, run: Callable[[list[Any]], Any]) -> None:
        self._tensors = captured.tensors
        self._results = captured.results
        self._writes_batch = captured.writes_batch
        self.holds = captured.holds
        self.new_state = captured.new_state
        self._run = run

    def __call__(
        self,
        model: StepModel,
        optimizer: torch.optim.Optimizer,
        numbers: Sequence[float],
        leaves: Sequence[Any],
    ) -> Any:
        batch = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._writes_batch and len({tensor.untyped_storage().data_ptr() for tensor in batch}) < len(batch):
            raise GraphError("the model writes into its batch, of which two tensors share memory: clone one")
        with torch.no_grad():
            found = self._run([*self._tensors.values(model, optimizer), *numbers, *batch])
        parameters = list(model.parameters())
        results = found[: len(found) - len(self.new_state)]
        for (at, name), value in zip(self.new_state, found[len(results) :]):
            optimizer.state[parameters[at]][name] = value
        return self._results.of(results)


def _layout(tensor: Tensor) -> tuple[Hashable, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _autocast(leaves: Sequence[Any]) -> Hashable:
    """The types that autocast has on the devices of a batch."""
    devices = sorted({leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)})
    available = filter(torch.amp.is_autocast_available, devices)
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in available
        if torch.is_autocast_enabled(device)
    )


def _identity(value: Any) -> Hashable:
    """Equal for what does the same in a forward pass: plain values as they are, objects by which they are."""
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, (tuple, list)):
        return tuple(map(_identity, value))
    if isinstance(value, FunctionType):
        cells = (cell.cell_contents for cell in value.__closure__ or () if cell != CellType())
        inside = (one.__code__ if isinstance(one, FunctionType) else _identity(one) for one in cells)
        return value.__code__, tuple(inside), _identity(value.__defaults__ or ())
    if isinstance(value, dict):
        return (*value, *map(id, value.values()))
    return id(value)


def _flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The leaves of a batch, and how they are nested; OptionError for one that a graph cannot take."""
    leaves, nesting = pytree.tree_flatten((args, kwargs))
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN, torch.dtype, torch.device)):
            raise OptionError(
                f"the batch has a {type(leaf).__name__}: give tensors, numbers, strings and None, in tuples, "
                "lists and dictionaries"
            )
    return leaves, nesting


def _planned(captured: Captured, options: Options) -> tuple[_Step, Report]:
    """Plan a traced step; updates come early, or where they stood if only that fits."""
    gm = captured.gm
    as_traced = copy_of(gm)
    Pipeline(EarlyUpdates(), given=(VALUES,))(gm)
    try:
        report = rewrite(gm, options)
    except InfeasibleBudgetError as error:
        gm = as_traced
        try:
            report = rewrite(gm, replace(options, budget=parse_budget(error.asked)))
        except InfeasibleBudgetError as other:
            raise min(error, other, key=lambda one: one.smallest).with_traceback(None) from None
    LowerDrops().call(gm)
    return _Step(captured, boxed_compiler(gm, ())), report

"""Dynamo's graphs, whose sizes may be symbols: why each was traced, and tracing it again at any time."""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.planning.planning import copy_of
from dtr_fx.torch_private import (
    CompileContext,
    FakeTensor,
    FakeTensorMode,
    OptimizedModule,
    TracingContext,
    call_module,
    compilation_facts,
    compile_context,
    compile_lock,
    copy_sources,
    disable_current_modes,
    donate_nothing,
    dynamo_config,
    dynamo_source,
    enter_module,
    functorch_config,
    get_metrics_context,
    read,
    rnn_decompositions,
    setting_of,
    source_loader,
    tracing,
)

# The backward graph is compiled with the forward one, not by whoever comes to it first.  Each such patch that
# is made leaves something in its thread (a ``ContextVar``, torch 2.13), so this one is made once.
_BACKWARD_TOO = functorch_config.patch(force_non_lazy_backward_lowering=True)
# A few MB; a graph of a thousand operators has some hundred.
_MOST_RESULTS = 4096


def copy_of_dynamos(gm: GraphModule) -> GraphModule:
    """A copy, with what tells AOTAutograd which inputs are parameters."""
    copied = copy_of(gm)
    copied.meta = dict(gm.meta)
    copy_sources(gm, copied)
    return copied


def bound(gm: GraphModule, arguments: Sequence[Any], floats: Collection[int] = ()) -> GraphModule:
    """A copy for these arguments: where the graph takes a whole number, it now has the number.

    So it has for those ``floats``, given by position, that it takes as tensors and reads with ``item()``.
    Symbols that Dynamo made for what only the data tell are forgotten; a new trace makes its own.
    """
    copied = copy_of_dynamos(gm)
    inputs = copied.graph.find_nodes(op="placeholder")
    numbers = {node: argument for node, argument in zip(inputs, arguments) if isinstance(argument, int)}
    for position in floats:
        readers = (user for user in inputs[position].users if user.target == "item")
        numbers.update(dict.fromkeys(readers, arguments[position].item()))
    for node in copied.graph.nodes:
        node.meta.pop("unbacked_bindings", None)
        if not numbers.keys().isdisjoint(node.all_input_nodes):
            node.args, node.kwargs = map_arg((node.args, node.kwargs), lambda used: numbers.get(used, used))
    for node in reversed(numbers):
        copied.graph.erase_node(node)
    if numbers:
        copied.recompile()
    return copied


def sized_inputs(gm: GraphModule) -> dict[int, str]:
    """The inputs, by position, whose sizes are symbols to the graph or that are numbers; with their names."""
    return _named_inputs(gm, _has_symbols)


def float_inputs(gm: GraphModule) -> dict[int, str]:
    """The inputs, by position, that are floats to the user, and to the graph tensors; with their names."""
    return _named_inputs(gm, _is_float)


def _named_inputs(gm: GraphModule, test: Callable[[Any], bool]) -> dict[int, str]:
    inputs = enumerate(gm.graph.find_nodes(op="placeholder"))
    return {at: _source_of(node) for at, node in inputs if test(node.meta.get("example_value"))}


def input_names(gm: GraphModule, arguments: Sequence[Any], *, with_numbers: bool = False) -> list[str]:
    """The user's names of the inputs that a graph takes, or a bound graph."""
    named = zip(gm.graph.find_nodes(op="placeholder"), arguments)
    return [_source_of(node) for node, argument in named if with_numbers or not isinstance(argument, int)]


def _is_float(value: Any) -> bool:
    return isinstance(value, FakeTensor) and isinstance(value.item_memo, SymFloat)


def _source_of(node: Node) -> str:
    """The user's name of an input, as ``L['x'].size()[1]``."""
    source = dynamo_source(node)
    return node.name if source is None else str(source.name)


def _has_symbols(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(size, SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (int, SymInt)) and not isinstance(value, bool)


def compile_id() -> str:
    """Dynamo's number of the compilation at hand, as ``1/0``: frame and how often it was compiled before."""
    return str(CompileContext.current_compile_id() or "")


def recompile_reason() -> str:
    """The guard that failed, if this is a recompilation; else nothing."""
    facts = compilation_facts(get_metrics_context())
    first_line = str(facts.get("recompile_reason") or "").partition("\n")[0]
    if "BACKEND_MATCH" in first_line:  # the same graph, compiled by another backend or with other options
        return ""
    return first_line.partition(" # ")[0].strip()


def is_called_by_module() -> bool:
    """True if the module whose graph runs is called by another, which is not compiled with it."""
    running = _running_modules()
    # The innermost is the module itself, or what torch.compile wrapped it in.
    return any(module is not running[0] and not isinstance(module, OptimizedModule) for module in running)


def module_names() -> dict[str, str]:
    """The names that the outermost module that runs has for its parts, by id; ``""`` is the innermost's."""
    running = [getattr(module, "_orig_mod", module) for module in _running_modules()]
    names = {str(id(inner)): name for module in running[-1:] for name, inner in module.named_modules()}
    return {**names, "": names.get(str(id(running[0])), "") if running else ""}


def _running_modules() -> list[torch.nn.Module]:
    """The innermost first."""
    return _on_the_stack(call_module.__code__)


def modules_entered() -> list[torch.nn.Module]:
    """The same, with those that are compiled in place."""
    entered = _on_the_stack(enter_module.__code__)
    return [getattr(module, "_orig_mod", module) for module in entered]


def _on_the_stack(code: CodeType) -> list[torch.nn.Module]:
    """The modules whose method of this code runs, the innermost first."""
    running = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            running.append(frame.f_locals["self"])
        frame = frame.f_back
    return running


def without_numbers(arguments: Sequence[Any]) -> list[Any]:
    """The arguments that a bound graph takes."""
    return [argument for argument in arguments if not isinstance(argument, int)]


@contextlib.contextmanager
def tracing_again(context: CompileContext | None, mode: FakeTensorMode) -> Iterator[None]:
    """As in a compilation by Dynamo, at any time; one at a time, and not while Dynamo itself compiles."""
    with (
        compile_lock,
        disable_current_modes(),
        compile_context(context or CompileContext(None)),
        tracing(TracingContext(mode)),
        _BACKWARD_TOO,
        _compiled_functions_callable(),
        recurrence_as_in_eager(),
    ):
        yield


def keep_what_is_saved() -> None:
    """Let the step that is being traced go backward twice: AOTAutograd is to donate nothing that is saved."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        donate_nothing(context.fw_metadata)


@contextlib.contextmanager
def _compiled_functions_callable() -> Iterator[None]:
    """Let other threads call compiled functions while this one traces.

    Dynamo refuses such calls as long as FX traces anywhere in the process, unless a setting says otherwise.
    What is set is a thread's own (since torch 2.12), but its default is the process's.
    """
    setting = setting_of(dynamo_config, "force_compile_during_fx_trace")
    before, setting.default = setting.default, True
    try:
        yield
    finally:
        setting.default = before


@contextlib.contextmanager
def recurrence_as_in_eager() -> Iterator[None]:
    """Trace recurrent modules so that they can be differentiated, and with their dropout.

    PyTorch (2.11 to 2.15) traces an LSTM on a CPU as one operator without a derivative, here it goes step by
    step; and it leaves out the dropout between the layers of every recurrent module.
    """
    select = read(rnn_decompositions, "select_one_layer_lstm_function")
    layers = read(rnn_decompositions, "_rnn_helper")
    in_steps = read(rnn_decompositions, "one_layer_lstm")
    rnn_decompositions.select_one_layer_lstm_function = lambda *_: in_steps
    rnn_decompositions._rnn_helper = functools.partial(_with_dropout, layers)
    try:
        yield
    finally:
        rnn_decompositions.select_one_layer_lstm_function = select
        rnn_decompositions._rnn_helper = layers


def _with_dropout(
    run_layers: Callable[..., Any],
    input: Tensor,
    hidden: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: Any,
) -> tuple[Tensor, list[Any]]:
    """The layers of a recurrent module, one by one, with dropout between them."""
    input = input.transpose(0, 1) if batch_first else input
    final: list[Any] = []
    for layer in range(num_layers):
        own = slice(layer * (1 + bidirectional), (layer + 1) * (1 + bidirectional))
        settings = has_biases, 1, 0.0, train, bidirectional, False, layer_fn
        input, found = run_layers(input, hidden[own], params[own], *settings)
        final += found
        if dropout and train and layer < num_layers - 1:
            input = torch.dropout(input, dropout, train=True)
    return input.transpose(0, 1) if batch_first else input, final


@contextlib.contextmanager
def stores_watched() -> Iterator[set[str]]:
    """Of what torch keeps for ever of each graph: the names of the source texts that FX keeps meanwhile.

    Operators' results by shape, which are asked for again while the same graph is traced, are never many.
    """
    if len(FakeTensorMode.cache) > _MOST_RESULTS:
        FakeTensorMode.cache_clear()
    before = set(source_loader.eval_cache)
    made: set[str] = set()
    try:
        yield made
    except BaseException:
        _forget(source_loader.eval_cache.keys() - before)
        raise
    made.update(source_loader.eval_cache.keys() - before)


def forget_with(owner: object, sources: Iterable[str]) -> None:
    """Have FX forget source texts, which tracebacks show, when an object is gone."""
    weakref.finalize(owner, _forget, sources).atexit = False


def _forget(sources: Iterable[str]) -> None:
    for name in sources:
        source_loader.eval_cache.pop(name, None)
        linecache.cache.pop(name, None)

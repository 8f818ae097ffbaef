"""The joint graph of a model's step, as the backend ``dtr`` plans it; nothing is executed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch.fx import GraphModule

from dtr_fx.compiler.backend import boxed_compiler, make_ready
from dtr_fx.compiler.dispatch import Dispatcher
from dtr_fx.compiler.dynamo import module_names
from dtr_fx.compiler.memoryless import traceable
from dtr_fx.compiler.retrace import Compiled, Retracer
from dtr_fx.errors import GraphError
from dtr_fx.passes.marking import mark_hints
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import copy_of
from dtr_fx.planning.step import Inputs, call
from dtr_fx.torch_private import TorchDynamoException, aot_autograd, dynamo_config

log = logging.getLogger(__name__)


class Joint(NamedTuple):
    """A joint ``graph``, a partitioner's ``inputs`` and ``facts``, and the graph as it is ``planned``."""

    graph: GraphModule
    inputs: Any
    facts: Mapping[str, Any]
    planned: GraphModule


# Before torch 2.13 it had another name, which is an alias since then.
_IGNORED = next(
    name for name in ("ignore_logging_functions", "ignore_logger_methods") if hasattr(dynamo_config, name)
)


class _Traced(Exception):
    """Ends a compilation that has come as far as it is wanted."""

    def __init__(self, joint: Joint) -> None:
        super().__init__("traced")
        self.joint = joint


def trace(
    model: Callable[..., Any],
    inputs: Inputs,
    decompositions: Mapping[Any, Any] | None = None,
) -> Joint:
    """Trace a step as one graph; GraphError where it is several, or has no backward pass.

    A call that logs ends a graph under ``torch.compile``: here it is left out, and that is said.
    """
    try:
        return _trace(model, inputs, decompositions, ignored=())
    except GraphError as error:
        if error.__cause__ is None:  # traced as one graph
            raise
        methods = {method for method in vars(logging.Logger).values() if callable(method)}
        joint = _trace(model, inputs, decompositions, ignored=methods)
        _warn(str(error))
        return joint


@functools.cache
def _warn(why: str) -> None:
    """Once for each line of the user's."""
    log.warning("in training %s: plans may differ from those here, for one graph", why)


def _trace(
    model: Callable[..., Any],
    inputs: Inputs,
    decompositions: Mapping[Any, Any] | None,
    *,
    ignored: Collection[Callable[..., Any]],
) -> Joint:
    torch.compiler.reset()
    backend = functools.partial(_backend, decompositions)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    try:
        with (
            dynamo_config.patch({"allow_rnn": True, _IGNORED: {*ignored}}),
            traceable(model, inputs) as given,
        ):
            call(compiled, given)
    except _Traced as traced:
        return traced.joint
    except TorchDynamoException as error:
        stack = getattr(error, "real_stack", None) or ()  # of the user's code
        where = "".join(f" ({frame.filename}:{frame.lineno})" for frame in stack[-1:])
        why = str(error).strip().partition("\n")[0]
        raise GraphError(f"the model is not traced as one graph: {why}{where}") from error
    raise GraphError("nothing in the model requires a gradient: there is no backward pass to trade against")


def _backend(decompositions: Mapping[Any, Any] | None, gm: GraphModule, inputs: Sequence[Any]) -> Dispatcher:
    compile_step = functools.partial(_stop, decompositions)
    return Dispatcher(Retracer(gm, Options(), compile_step), 1, None, None)


def _stop(
    decompositions: Mapping[Any, Any] | None,
    gm: GraphModule,
    inputs: Sequence[Any],
    options: Options,
) -> Compiled:
    """Trace as the backend does, up to where it plans."""
    parameters = [isinstance(value, torch.nn.Parameter) for value in inputs]

    def stop(joint: GraphModule, inputs: Any, **facts: Any) -> NoReturn:
        ready = copy_of(joint)
        mark_hints(ready, options.policy, module_names())
        make_ready(ready, facts, parameters)
        raise _Traced(Joint(joint, inputs, facts, ready))

    compiler = aot_autograd(
        fw_compiler=boxed_compiler,
        bw_compiler=boxed_compiler,
        partition_fn=stop,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )
    return Compiled(compiler(gm, inputs))

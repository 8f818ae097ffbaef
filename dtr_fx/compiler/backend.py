"""``torch.compile(model, backend="dtr", options={"budget": "60%"})``.

Each graph of Dynamo's becomes a ``Dispatcher``, which compiles a step for every tuple of sizes.  AOTAutograd
traces the joint graph; it is rewritten first and split afterwards, so that recomputation stands where the
plan put it.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from dtr_fx.compiler.accounting import shared_accounting
from dtr_fx.compiler.dispatch import Dispatcher
from dtr_fx.compiler.dynamo import keep_what_is_saved, module_names, sized_inputs
from dtr_fx.compiler.frames import watch_frames, with_room
from dtr_fx.compiler.retrace import Compile, Compiled, Retracer
from dtr_fx.compiler.zeros import make_zeros_late
from dtr_fx.costs.machine import are_several
from dtr_fx.errors import DTRError, GraphError, InfeasibleBudgetError, OptionError, OverBudgetError
from dtr_fx.passes.accumulate import AccumulateInPlace
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.effects import collectives
from dtr_fx.passes.hints import hint_of, is_budget, says_something
from dtr_fx.passes.marks import check_marks, runs_again
from dtr_fx.passes.reach import has_gradients
from dtr_fx.passes.split import Pair, prepare, repeat_results, split
from dtr_fx.passes.tensors import graph_device
from dtr_fx.passes.verify import VerificationError
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Carried, copy_of
from dtr_fx.planning.rewrite import rewrite_for_all
from dtr_fx.runtime import collector_paused
from dtr_fx.torch_private import (
    BoxedCodeGen,
    aot_autograd,
    has_triton,
    mark_boxed,
)

log = logging.getLogger(__name__)

# Is given the fields of a ``symbolic.Trace``.
Record = Callable[[GraphModule, "GraphModule | None", Carried, bool], None]


def dtr(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The compiler backend (entry point ``torch_dynamo_backends``); see ``Options``.

    The function that is returned raises, when it is called: OptionError for an option that cannot be
    understood, or a ``mode``; and with sizes that are new to it InfeasibleBudgetError where no plan fits, and
    OverBudgetError where plans fit, but not what Inductor makes of them.
    """
    try:
        chosen = Options.of_backend(options)
        if mode not in (None, "default"):
            why = "CUDA graphs keep memory that no budget counts; leave the mode out"
            raise OptionError(f"mode={mode!r}: {why}")
    except OptionError as error:
        # Raised here, Dynamo would wrap it in an error of its own.
        return functools.partial(_raise, copy.copy(error))
    compile_step = _COMPILE[chosen.executor or _default_executor(gm, example_inputs, chosen)]
    retracer = _retracer(gm, compile_step)(gm, chosen, compile_step)
    return Dispatcher(retracer, chosen.plans_kept, shared_accounting(chosen), options)


watch_frames(dtr)


def _retracer(gm: GraphModule, compile_step: Compile) -> type[Retracer]:
    if compile_step is not _compile_eagerly or not sized_inputs(gm):
        return Retracer
    from dtr_fx.compiler.symbolic import SymbolicRetracer  # only here: sizes of most graphs are numbers

    return SymbolicRetracer


def _raise(error: DTRError, *_: Any) -> Any:
    raise copy.copy(error)  # what is raised holds the frames that it came through


def partition(
    options: Options,
    parameters: Sequence[bool] | None,
    joint: GraphModule,
    inputs: Any,
    record: Record | None = None,
    **facts: Any,
) -> Pair:
    regions = joint.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    if options.limits and regions:  # AOTAutograd splits a nested region by itself
        raise GraphError(
            "a nested_compile_region saves values that no budget counts: take the decorator off, or "
            "leave the budget out"
        )
    if options.policy or says_something(joint):
        from dtr_fx.passes.marking import mark_hints  # only here: most models are without hints

        mark_hints(joint, options.policy, module_names())
    check_marks(joint)  # before PyTorch's partitioner meets what it cannot obey either
    hints = ((node, hint_of(node)) for node in joint.graph.nodes)
    is_hinted = any(hint is not None and (runs_again(node) or is_budget(hint)) for node, hint in hints)
    reference = None
    if options.is_default and not is_hinted:
        from dtr_fx.compiler.reference import Reference  # only here: else there is a budget

        reference = Reference.of(joint, inputs, facts)
    make_ready(joint, facts, parameters)
    if options.is_default:
        repeat_results(joint)
    rewrite = functools.partial(_rewrite, joint, record=record)
    if reference is None:
        rewrite(options)
    else:
        reference.rewrite(joint, options, rewrite)
    return split(joint, inputs, **facts)


def _compile_eagerly(
    gm: GraphModule, inputs: Sequence[Any], options: Options, record: Record | None = None
) -> Compiled:
    parameters = [isinstance(value, torch.nn.Parameter) for value in inputs]

    def compile_inference(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        # Only here: graphs that train have no updates to bring forward.
        from dtr_fx.passes.updates import prepare_inference

        prepare_inference(gm)
        _rewrite(gm, options, record, saves_nothing=True)
        return boxed_compiler(gm, inputs)

    takes_none = False

    def partition_once(joint: GraphModule, inputs: Any, **facts: Any) -> Pair:
        nonlocal takes_none
        forward, backward = partition(options, parameters, joint, inputs, record, **facts)
        takes_none = make_zeros_late(backward)
        return forward, backward

    compiler = aot_autograd(
        fw_compiler=boxed_compiler,
        bw_compiler=_compile_backward,
        inference_compiler=compile_inference,
        partition_fn=partition_once,
        keep_inference_input_mutations=True,
    )
    with collector_paused():
        compiled: Callable[..., Any] = with_room(compiler, gm, inputs)
    return Compiled(compiled, takes_none)


def _compile_backward(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    keep_what_is_saved()
    return boxed_compiler(gm, inputs)


def make_ready(joint: GraphModule, facts: Mapping[str, Any], parameters: Sequence[bool] | None) -> None:
    """Bring a joint graph, as AOTAutograd traced it, into the form that is planned.

    GraphError where PyTorch traced a model that trains without its backward pass.
    """
    prepare(joint, facts.get("static_lifetime_input_indices") or (), parameters)
    AccumulateInPlace().call(joint)
    if graph_device(joint).type == "meta" and not has_gradients(joint):
        raise GraphError(
            "PyTorch traces no backward pass of this model on the meta device, where some losses, such as "
            "cross_entropy, are not differentiated: give the model to dtr_fx.explain, or put it on the CPU"
        )


def _default_executor(gm: GraphModule, inputs: Sequence[Any], options: Options) -> str:
    """Inductor compiles for as long as dozens of eager steps take: too long for each of many sizes.

    What its kernels reserve is not known.
    """
    if options.count == "reserved":
        return "eager"
    on_gpu = any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in inputs)
    return "inductor if it fits" if on_gpu and has_triton() and not sized_inputs(gm) else "eager"


def _compile_with_inductor(gm: GraphModule, inputs: Sequence[Any], options: Options) -> Compiled:
    # Importing Inductor's scheduler takes a second, which other executors do without.
    from dtr_fx.compiler.inductor import compile_step

    return Compiled(compile_step(gm, inputs, options))


def _compile_as_it_fits(gm: GraphModule, inputs: Sequence[Any], options: Options) -> Compiled:
    try:
        return _compile_with_inductor(gm, inputs, replace(options, executor="inductor"))
    except (InfeasibleBudgetError, OverBudgetError) as error:
        log.warning("runs eagerly, as Inductor's kernels do not fit: %s", str(error).partition("\n")[0])
        return _compile_eagerly(gm, inputs, options)


_COMPILE = {
    "eager": _compile_eagerly,
    "inductor": _compile_with_inductor,
    "inductor if it fits": _compile_as_it_fits,
}


def boxed_compiler(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """A compiler for AOTAutograd: the graph, run as it is, frees each argument after its last use.

    Its function takes the arguments in a list and empties it.
    """
    gm.graph.set_codegen(BoxedCodeGen())
    gm.recompile()
    forward = gm.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    mark_boxed(run)
    return run


def _rewrite(
    gm: GraphModule,
    options: Options,
    record: Record | None,
    *,
    reference: GraphModule | None = None,
    saves_nothing: bool = False,
) -> None:
    if not any(node.op.startswith("call") for node in gm.graph.nodes):
        return
    original = copy_of(gm) if record is not None else gm
    called = collectives(gm)
    if are_several():
        from dtr_fx.compiler.ranks import with_room_of_all

        options = with_room_of_all(gm, options)
    report, carried = rewrite_for_all(gm, options, saves_nothing=saves_nothing)
    if collectives(gm) != called:
        raise VerificationError("a plan calls collectives in another order than the graph")
    if record is not None and carried is not None:
        record(original, reference, carried, saves_nothing)
    LowerDrops().call(gm)
    if options.on_report is not None:
        options.on_report(report)

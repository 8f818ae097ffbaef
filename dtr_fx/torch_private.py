"""Every private name of torch that dtr_fx uses; all are checked on the versions in ``CHECKED``.

Each is looked up when it is first asked for, since Inductor takes a second to import.  One that this torch
lacks is a ``TorchPrivateError`` in the module that imports it; so is a missing private attribute.  A torch
that is newer than those is a warning, once.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from dtr_fx.errors import DTRError

if TYPE_CHECKING:  # the types among them
    from torch._dynamo.exc import TorchDynamoException as TorchDynamoException
    from torch._guards import CompileContext as CompileContext
    from torch._guards import TracingContext as TracingContext
    from torch._inductor.choices import InductorChoices as InductorChoices
    from torch._inductor.custom_graph_pass import CustomPartitionerFn as CustomPartitionerFn
    from torch._inductor.custom_graph_pass import CustomSchedulerPass as CustomSchedulerPass
    from torch._inductor.ir import InputsKernel as InputsKernel
    from torch._inductor.ir import IRNode as IRNode
    from torch._inductor.scheduler import BaseSchedulerNode as BaseSchedulerNode
    from torch._inductor.scheduler import ExternKernelSchedulerNode as ExternKernelSchedulerNode
    from torch._inductor.scheduler import Scheduler as Scheduler
    from torch._inductor.scheduler import SchedulerBuffer as SchedulerBuffer
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

log = logging.getLogger(__name__)

# Oldest first; .ci/run runs the tests on each.
CHECKED = ("2.11", "2.13", "2.15")

_DESCRIPTORS = "torch._functorch._aot_autograd.descriptors"
# Where each name lies, and what it is for.
_NAMES = {
    # Operators.
    "OpOverload": "torch._ops:OpOverload",  # an operator with a schema, as traced graphs call it
    "HigherOrderOperator": "torch._ops:HigherOrderOperator",  # an operator that runs graphs
    "run_and_save_rng_state": "torch._prims.rng_prims:run_and_save_rng_state",  # a draw, and the state before
    "run_with_rng_state": "torch._prims.rng_prims:run_with_rng_state",  # the same draw again
    "graphsafe_run_with_rng_state": "torch._prims.rng_prims:graphsafe_run_with_rng_state",  # on a GPU
    "side_effectful_functions": "torch.fx.node:_side_effectful_functions",  # what a split must not remove
    # Running operators while a compiler traces.
    "FakeTensor": "torch._subclasses.fake_tensor:FakeTensor",  # a value in a traced graph
    "FakeTensorMode": "torch._subclasses.fake_tensor:FakeTensorMode",  # which traces on such values
    "unset_fake_temporarily": "torch._subclasses.fake_tensor:unset_fake_temporarily",  # real tensors inside
    "TorchDispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",  # sees every operator that runs
    "disable_current_modes": "torch.utils._python_dispatch:_disable_current_modes",  # plain kernels
    "no_python_dispatcher": "torch._dispatch.python:no_python_dispatcher",  # kernels not decomposed
    "is_traceable_wrapper_subclass": "torch.utils._python_dispatch:is_traceable_wrapper_subclass",  # DTensor
    "pytree": "torch.utils._pytree",  # the tensors in nested lists, tuples and dictionaries
    "OrderedSet": "torch.utils._ordered_set:OrderedSet",  # what Inductor's functions take
    "has_triton": "torch.utils._triton:has_triton",  # True if Inductor can compile for the GPU
    "EventType": "torch._C._profiler:_EventType",  # tells allocations in a profile
    "scoped_library": "torch.library:_scoped_library",  # kernels that are registered for a while
    "record_memory_history": "torch.cuda.memory:_record_memory_history",  # of PyTorch's CUDA allocator
    "cuda_snapshot": "torch.cuda.memory:_snapshot",  # its blocks and its history
    # Ranks.
    "default_store": "torch.distributed.distributed_c10d:_get_default_store",  # what ranks tell each other by
    "resolve_process_group": "torch._C._distributed_c10d:_resolve_process_group",  # a graph has its name
    # Dynamo.
    "aot_autograd": "torch._dynamo.backends.common:aot_autograd",  # makes a backend of compilers
    "TorchDynamoException": "torch._dynamo.exc:TorchDynamoException",  # what it refuses to trace
    "ConvertFrameAssert": "torch._dynamo.convert_frame:ConvertFrameAssert",  # compiles a frame, or refuses
    "Unsupported": "torch._dynamo.exc:Unsupported",  # why it refuses
    # Errors of a backend's after which Dynamo runs the graph as it is.
    "UNTRACEABLE": "torch._dynamo.exc:exceptions_allowed_to_be_fallback",
    "graph_break_reasons": "torch._dynamo.utils:graph_break_reasons",  # why it compiled in parts
    "innermost_backend": "torch._dynamo.eval_frame:innermost_backend",  # what torch.compile was given
    "rnn_decompositions": "torch._decomp.decompositions",  # how recurrent modules are traced
    "compile_lock": "torch._dynamo.convert_frame:compile_lock",  # held while it compiles
    "get_metrics_context": "torch._dynamo.utils:get_metrics_context",  # has the reason of a recompilation
    "reset_code": "torch._dynamo:reset_code",  # forgets the compilations of one function
    "dynamo_config": "torch._dynamo.config",  # limits of recompilation
    "dynamo_counters": "torch._dynamo.utils:counters",  # how many graphs it compiled
    "CompileContext": "torch._guards:CompileContext",  # the compilation at hand, and its number
    "compile_context": "torch._guards:compile_context",  # sets it
    "TracingContext": "torch._guards:TracingContext",  # what a trace knows of the step
    "tracing": "torch._guards:tracing",  # sets it
    "ConstantSource": "torch._dynamo.source:ConstantSource",  # a name for a symbol
    "enter_module": "torch.nn:Module._wrapped_call_impl",  # so, too, for one that is compiled in place
    "call_module": "torch.nn:Module._call_impl",  # on the stack for each module that runs
    "OptimizedModule": "torch._dynamo.eval_frame:OptimizedModule",  # what torch.compile makes of a module
    "trace_structured": "torch._logging:trace_structured",  # artifacts for TORCH_TRACE
    "top_saved_tensors_hooks": "torch._C._autograd:_top_saved_tensors_default_hooks",  # a checkpoint's region
    # AOTAutograd and FX.
    "functorch_config": "torch._functorch.config",  # when the backward graph is compiled, and caches
    "DynamicShape": "torch._subclasses.fake_tensor:DynamicOutputShapeException",  # sizes by values
    "DataDependent": "torch._subclasses.fake_tensor:DataDependentOutputException",  # a branch on a value
    "Unfakeable": "torch._subclasses.fake_tensor:UnsupportedOperatorException",  # an operator without shapes
    "aot_export_joint": "torch._functorch.aot_autograd:aot_export_joint_with_descriptors",  # without Dynamo
    "aot_module": "torch._functorch.aot_autograd",  # where a trace is handed on to be compiled
    "aot_compile": "torch._functorch.aot_autograd:aot_stage2_compile",  # splits a trace, and compiles it
    "enable_python_dispatcher": "torch._dispatch.python:enable_python_dispatcher",  # as in a trace
    "GradAOTOutput": f"{_DESCRIPTORS}:GradAOTOutput",  # a result of the backward pass
    "PlainAOTInput": f"{_DESCRIPTORS}:PlainAOTInput",  # an argument of the user's
    "PlainAOTOutput": f"{_DESCRIPTORS}:PlainAOTOutput",  # a result of the user's
    "InputMutationAOTOutput": f"{_DESCRIPTORS}:InputMutationAOTOutput",  # the new value of a written input
    "BoxedCodeGen": "torch.fx.graph:_BoxedCodeGen",  # a graph that takes its arguments in a list
    "source_loader": "torch.fx.graph_module:_loader",  # keeps the source text of every graph
    # Inductor.
    "compile_fx": "torch._inductor.compile_fx:compile_fx",  # compiles a graph of Dynamo's
    "get_default_op_list": "torch._functorch.partitioners:get_default_op_list",  # the operators that it fuses
    "low_memory_max_pool": "torch._inductor.inductor_prims:_low_memory_max_pool_with_offsets",  # fused, too
    "inductor_random": "torch._inductor.inductor_prims:random",  # fused, too
    "lookup_seed": "torch._inductor.inductor_prims:lookup_seed",  # fused, too
    "CustomPartitionerFn": "torch._inductor.custom_graph_pass:CustomPartitionerFn",  # base of Partitioner
    "CustomSchedulerPass": "torch._inductor.custom_graph_pass:CustomSchedulerPass",  # base of Scheduling
    "get_hash_for_files": "torch._inductor.custom_graph_pass:get_hash_for_files",  # the key of a cached graph
    "InductorChoices": "torch._inductor.choices:InductorChoices",  # decides which kernels fuse
    "CppScheduling": "torch._inductor.codegen.cpp:CppScheduling",  # how many kernels share a function
    "V": "torch._inductor.virtualized:V",  # the graph at hand, its inputs and outputs
    "Scheduler": "torch._inductor.scheduler:Scheduler",  # the kernels of a graph
    "BaseSchedulerNode": "torch._inductor.scheduler:BaseSchedulerNode",  # one kernel
    "ExternKernelSchedulerNode": "torch._inductor.scheduler:ExternKernelSchedulerNode",  # a library call
    "SchedulerBuffer": "torch._inductor.scheduler:SchedulerBuffer",  # what a kernel makes
    "IRNode": "torch._inductor.ir:IRNode",  # an operand
    "InputsKernel": "torch._inductor.ir:InputsKernel",  # a library call with its operands
    "prepare_planning_info": "torch._inductor.memory:prepare_planning_info",  # when buffers are freed
    "compute_memory_timeline": "torch._inductor.memory:compute_memory_timeline",  # the memory of an order
    "topological_sort_lpmf": "torch._inductor.memory:topological_sort_lpmf",  # orders that it tries
    "topological_sort_bfs": "torch._inductor.memory:topological_sort_bfs",
    "topological_sort_dfs": "torch._inductor.memory:topological_sort_dfs",
    # The number that stands for a size: called ``size_hint`` by torch 2.11, ``optimization_hint`` by 2.13.
    "size_hint": "torch._inductor.sizevars:SizeVarAllocator.optimization_hint|SizeVarAllocator.size_hint",
}
# Names that torch has only from a version on.
_SINCE = {"CustomSchedulerPass": (2, 12)}


class TorchPrivateError(DTRError, ImportError):
    """This torch lacks a private name that dtr_fx uses."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"torch {torch.__version__} has no {missing}: dtr_fx relies on it, as checked on torch "
            f"{', '.join(CHECKED)}; install one of these"
        )


def torch_has(name: str) -> bool:
    """True unless the name is of a later torch than this one."""
    return _version(torch.__version__) >= _SINCE.get(name, (0, 0))


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


def warn_if_unchecked(torch_version: str) -> None:
    """Log a warning of a torch that is newer than those that were checked."""
    if _version(torch_version) > _version(CHECKED[-1]):
        log.warning(
            "dtr_fx was checked with torch %s to %s; this is %s", CHECKED[0], CHECKED[-1], torch_version
        )


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _find(_NAMES[name])
    return found


def _find(place: str) -> Any:
    path, _, names = place.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise TorchPrivateError(path) from error
    if not names:
        return module
    for name in names.split("|"):
        with contextlib.suppress(AttributeError):
            return attrgetter(name)(module)
    raise TorchPrivateError(f"{path}.{names.replace('|', ' or ')}")


# --- what torch's objects keep in attributes ---------------------------------------------------------------


def read(owner: Any, name: str) -> Any:
    """A private attribute of one of torch's objects; ``TorchPrivateError`` if there is none of that name."""
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise TorchPrivateError(f"{name} in {type(owner).__name__}") from error


def schema_of(operator: OpOverload) -> Any:
    """The arguments and results of an operator, with the aliases and mutations that it declares."""
    return read(operator, "_schema")


def rename(node: Any, name: str) -> None:
    """Give a node of a graph a name, made unique if there is such a node."""
    read(node, "_rename")(name)


def forget_dispatch(operator: OpOverload) -> None:
    """Have an operator look anew for its kernels, some of which came or went."""
    read(operator, "_dispatch_cache").clear()


def version_of(tensor: Any) -> int:
    """How often the tensor was written to."""
    return int(read(tensor, "_version"))


def base_of(tensor: Any) -> Any:
    """The tensor that this one is a view of; None if it is no view."""
    return read(tensor, "_base")


def storage_key(storage: Any) -> int:
    """The same number for two storages if they are one: a fake one has no address."""
    return int(read(storage, "_cdata"))


def dynamo_source(placeholder: Any) -> Any:
    """Where Dynamo found an input of a graph; None where DDP's splitting or the minifier lost it."""
    return getattr(placeholder, "_dynamo_source", None)


def group_of(module: Any) -> Any:
    """The process group over which FSDP2 gathers a module's parameters; None where there is none."""
    group = read(module._get_fsdp_state(), "_fsdp_param_group")
    return getattr(getattr(group, "mesh_info", None), "shard_process_group", None)


def copy_sources(gm: Any, copied: Any) -> None:
    """Give a copy of Dynamo's graph what tells AOTAutograd which inputs are parameters, if it is there."""
    if hasattr(gm, "_param_name_to_source"):  # not in the minifier's copies
        copied._param_name_to_source = gm._param_name_to_source
    for ours, theirs in zip(*(each.graph.find_nodes(op="placeholder") for each in (gm, copied))):
        theirs._dynamo_source = dynamo_source(ours)


def is_followed(gm: Any) -> bool:
    """True if Dynamo broke a graph, so that another comes after it; the minifier's copies do not tell."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return reason is not None and bool(read(reason, "graph_break"))


def compilation_facts(metrics_context: Any) -> dict[str, Any]:
    """Dynamo's measurements of the compilation at hand."""
    return dict(read(metrics_context, "_metrics"))


def setting_of(config: Any, name: str) -> Any:
    """A setting of a module of torch's settings, with its default for all threads."""
    return read(config, "_config")[name]


def donate_nothing(metadata: Any) -> None:
    """Have AOTAutograd hand no saved tensor over to the backward graph for its own use."""
    read(metadata, "bw_donated_idxs")
    metadata.bw_donated_idxs = []


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Have ``torch.compiler.is_compiling()`` say yes, by which models tell that they are being traced."""
    before = read(torch.compiler, "_is_compiling_flag")
    try:
        torch.compiler._is_compiling_flag = True
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def checkpoints_left_out() -> Iterator[None]:
    """Have ``torch.utils.checkpoint`` call its function and do no more, where a trace sees both passes."""
    from torch.utils import checkpoint

    class Plain:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return function(*args)

    def plain(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    names = "CheckpointFunction", "_checkpoint_without_reentrant_generator"
    before = [read(checkpoint, name) for name in names]
    try:
        for name, stand_in in zip(names, (Plain, plain)):
            setattr(checkpoint, name, stand_in)
        yield
    finally:
        for name, own in zip(names, before):
            setattr(checkpoint, name, own)


def make_state(optimizer: torch.optim.Optimizer, parameters: Sequence[Any]) -> None:
    """Have a stock optimizer make the state that it would make in its first step, of these parameters."""
    if not hasattr(optimizer, "_init_group"):
        return
    wanted = {id(parameter) for parameter in parameters if parameter not in optimizer.state}
    for group in optimizer.param_groups:
        some = [parameter for parameter in group["params"] if id(parameter) in wanted]
        try:
            for parameter in some:  # of no memory: it is only looked at
                parameter.grad = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand_as(
                    parameter
                )
            lists = inspect.signature(optimizer._init_group).parameters
            optimizer._init_group({**group, "params": some}, *([] for _ in range(len(lists) - 1)))
        finally:
            for parameter in some:
                parameter.grad = None


def mark_boxed(run: Any) -> None:
    """Say to AOTAutograd that a function takes its arguments in a list."""
    run._boxed_call = True


def is_compiled_step(node: Any) -> bool:
    """True if a node of autograd's graph is a step that AOTAutograd compiled; user's functions have no id."""
    from torch.autograd.function import BackwardCFunction

    return isinstance(node, BackwardCFunction) and hasattr(read(node, "_forward_cls"), "_aot_id")


def saved_tensors(node: Any) -> tuple[Any, ...]:
    """What a compiled step has saved for its backward pass; ``RuntimeError`` if that is freed."""
    return (*node.saved_tensors, *read(node, "_tensors_no_vc_check"))


def any_profiler_runs() -> bool:
    """True if a profiler runs, in this thread or another."""
    runs_here = read(torch.autograd, "_profiler_enabled")()
    return bool(runs_here or read(torch.autograd.profiler, "_is_profiler_enabled"))


def profile_tree(profiler: Any) -> Any:
    """The events of a profile as a tree, with address, bytes and time of allocations."""
    return read(read(profiler.profiler, "kineto_results"), "experimental_event_tree")()


warn_if_unchecked(torch.__version__)  # once, as a module is imported once

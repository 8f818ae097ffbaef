"""The paper's prototype over FX: a graph runs under a byte budget, and what goes is decided while it runs.

What a live run did is written into a copy of the graph, with a report; that copy runs from then on.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from dtr_fx.inspect.views import Report
from dtr_fx.passes import rng
from dtr_fx.passes.roles import KEEP, SAVE_RNG
from dtr_fx.passes.storages import GraphProgram, NodeCall
from dtr_fx.passes.tensors import is_selection
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning
from dtr_fx.planning.rewrite import Laps, carry_out
from dtr_fx.planning.transform import readable_copy
from dtr_fx.runtime import Heuristic, OutOfBudget, Plan, Runtime
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.graph import Operator
from dtr_fx.runtime.heuristics import Score
from dtr_fx.runtime.steps import BANISH, COMPUTE, DROP
from dtr_fx.torch_private import pytree


class DTRInterpreter:
    """Runs an FX graph on its device under a byte budget, deciding online what to evict.

    The costs are the times that the operators take when they run for the first time, in seconds.  No gradient
    is recorded: give it a graph that contains its backward pass, or one that needs none.  ``graph_module``,
    None at first, is the rewritten graph, which does what the last live run did; ``report`` says what.

    ``gm`` and ``budget`` are as for ``transform``; ``heuristic`` says what is evicted first, and knows no
    next use: the future is not known.  The default is the paper's.

    >>> import torch, dtr_fx
    >>> gm = torch.fx.symbolic_trace(lambda x: ((y := x.sin()).cos().exp().sum() + y.sum()))
    >>> interpreter = dtr_fx.DTRInterpreter(gm, "90%")
    >>> x = torch.ones(1024)
    >>> bool(interpreter.run(x) == gm(x))
    True
    >>> interpreter.report.planned_peak <= interpreter.report.budget
    True
    """

    def __init__(
        self,
        gm: GraphModule,
        budget: float | int | str = 1.0,
        *,
        heuristic: str | Heuristic | Score = "dtr-eq",
    ) -> None:
        self._gm = gm
        self._options = Options(budget=budget, heuristic=heuristic, planner="online")
        self._layouts: list[Any] | None = None
        self.graph_module: GraphModule | None = None
        self.report: Report | None = None

    def run(self, *inputs: Any) -> Any:
        """The graph's outputs; inputs of other shapes than before are run live again.

        A graph without operators, or one that does not run on the inputs, is a GraphError; where nothing is
        left to evict, the InfeasibleBudgetError holds a budget that works.
        """
        layouts = [_layout(value) for value in inputs]
        if self.graph_module is None or layouts != self._layouts:
            outputs, self._layouts = self._run_live(inputs), layouts
            return outputs
        with torch.no_grad():
            return self.graph_module(*inputs)

    def _run_live(self, inputs: Sequence[Any]) -> Any:
        gm = readable_copy(self._gm, inputs)
        laps = Laps()
        planning = Planning(gm, self._options)
        budget = planning.budget
        machine = _Machine(gm, planning.graph, inputs)
        runtime = Runtime(budget, self._options.heuristic)
        runtime.execute = functools.partial(machine.execute, runtime)
        laps.take("analysis")
        try:
            with torch.no_grad():
                drive(runtime, planning.planner.program)
        except OutOfBudget:
            raise planning.error(budget, planning.planner.smallest.peak) from None
        finally:
            runtime.execute = None  # a cycle, which would keep the tensors
        machine.free_dropped(runtime)
        outputs = machine.outputs()
        laps.take("run")
        plan = Plan.of(planning.graph.program, runtime, runtime.heuristic.name)
        self.report = carry_out(gm, planning, budget, plan, laps)
        gm.recompile()
        self.graph_module = gm
        return outputs


class _Machine:
    """The values of a graph that runs, by their numbers in its program."""

    def __init__(self, gm: GraphModule, program: GraphProgram, inputs: Sequence[Any]) -> None:
        self._program = program
        self._calls = Interpreter(gm, garbage_collect_values=False)
        self._graph = gm.graph
        self._tensors: dict[int, Tensor] = {}
        self._others: dict[Node, tuple[pytree.TreeSpec, list[Any]]] = {}
        self._views: defaultdict[int, list[int]] = defaultdict(list)
        self._seen = 0
        for number, value in enumerate(program.values):
            self._views[value.alias_of].append(number)
        given = dict(zip(gm.graph.find_nodes(op="placeholder"), inputs))
        for node in gm.graph.find_nodes(op="get_attr"):
            given[node] = self._calls.fetch_attr(str(node.target))
        for node, value in given.items():
            self._remember(node, value)

    def execute(self, runtime: Runtime, op: Operator) -> float:
        """Run an operator, for the first time or again; its seconds, the first of which become its cost."""
        self.free_dropped(runtime)
        call = self._program.calls[op.id]
        self._synchronize()
        started = time.perf_counter()
        if call.role == SAVE_RNG:
            self._tensors[call.outputs[0]] = rng.save_state(str(self._program.device))
        elif call.role == KEEP:
            self._tensors[call.outputs[0]] = self._read(call.node).clone()
        elif call.role == COMPUTE:
            self._remember(call.node, self._call(call, again=op.runs > 0))
        self._synchronize()
        seconds = time.perf_counter() - started
        if op.runs == 0:
            call.cost = seconds
        return seconds

    def free_dropped(self, runtime: Runtime) -> None:
        """Let go of the storages that the runtime has dropped meanwhile, with all their views."""
        for step in runtime.steps[self._seen :]:
            if step.kind in (DROP, BANISH):
                for view in self._views[step.storage]:
                    self._tensors.pop(view, None)
        self._seen = len(runtime.steps)

    def outputs(self) -> Any:
        return map_arg(self._graph.output_node().args[0], self._read)

    def _call(self, call: NodeCall, *, again: bool) -> Any:
        node = call.node
        kept = call.kept if again else {}

        def read(used: Node) -> Any:
            return self._tensors[kept[used]] if used in kept else self._read(used)

        args, kwargs = map_arg((node.args, node.kwargs), read)
        states = [value for value in call.inputs if self._program.values[value].kind == "rng state"]
        if not (again and states):
            return getattr(self._calls, node.op)(node.target, args, kwargs)
        is_module = node.op == "call_module"
        replayed = self._calls.fetch_attr(str(node.target)) if is_module else rng.reference(node)
        return rng.replay(self._tensors[states[0]], str(self._program.device), replayed, *args, **kwargs)

    def _remember(self, node: Node, value: Any) -> None:
        """Keep the tensors of a value that are not there, by number, and the rest with the node."""
        leaves, structure = pytree.tree_flatten(value)
        numbers = self._numbers(node)
        self._others[node] = (structure, [None if n is not None else v for n, v in zip(numbers, leaves)])
        for number, leaf in zip(numbers, leaves):
            if number is not None:
                self._tensors.setdefault(number, leaf)

    def _read(self, node: Node) -> Any:
        """A node's value; of a tuple those elements that are there."""
        if is_selection(node):
            source, index = node.args
            return self._read(cast(Node, source))[index]
        structure, others = self._others[node]
        numbered = zip(self._numbers(node), others)
        leaves = [other if number is None else self._tensors.get(number) for number, other in numbered]
        return pytree.tree_unflatten(leaves, structure)

    def _numbers(self, node: Node) -> list[int | None]:
        numbers: list[int | None] = pytree.tree_leaves(self._program.values_of[node])
        return numbers

    def _synchronize(self) -> None:
        if self._program.device.type == "cuda":
            torch.cuda.synchronize(self._program.device)


def _layout(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return value

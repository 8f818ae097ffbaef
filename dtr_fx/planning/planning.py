"""One graph, analysed: what it needs, and plans for it under any budget."""

from __future__ import annotations

from torch.fx import GraphModule

from dtr_fx.costs import roofline as cost_model
from dtr_fx.costs.workspaces import workspaces
from dtr_fx.errors import GraphError, InfeasibleBudgetError
from dtr_fx.passes import storages, verify
from dtr_fx.planning.options import Options, resolve_budget
from dtr_fx.planning.planner import Planner, lower_bound
from dtr_fx.planning.reporting import source_line
from dtr_fx.runtime.events import RECOMPUTE
from dtr_fx.search import Run

# How closely the least memory for an overhead is searched, as a share of the graph's own peak.
_TOLERANCE = 0.01


class Planning:
    """What is known of a graph before it is rewritten.

    ``before`` is its memory timeline as it is, ``need`` what no plan can do without.  What an executor has
    found that a node needs for itself under a plan stands in ``meta["dtr_extra_workspace"]``, in bytes.

    Raises
    ------
    GraphError
        The graph has no operators.
    OptionError
        Its costs cannot be told.
    """

    def __init__(self, gm: GraphModule, options: Options) -> None:
        calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
        if not calls:
            raise GraphError("the graph has no operators: there is nothing to plan")
        device = storages.graph_device(gm)
        cost = cost_model.resolve(options.costs, device)
        if options.executor == "inductor" and isinstance(options.costs, str):
            # Only here: Inductor takes seconds to import.
            from dtr_fx.costs.kernels import of_kernels

            cost = of_kernels(cost, device)
        temporary = workspaces(calls)
        workspace = {
            node: nbytes + node.meta.get("dtr_extra_workspace", 0) for node, nbytes in temporary.items()
        }
        self.options = options
        replays_randomness = options.executor != "inductor"
        self.program = storages.analyze(gm, device, cost, workspace, replays_randomness=replays_randomness)
        self.workspace_of = {node.name: nbytes for node, nbytes in workspace.items()}
        as_it_is = {node.name: nbytes for node, nbytes in temporary.items()}
        self.before = verify.liveness(gm, as_it_is, device)
        self.baseline_peak = max(point.live for point in self.before)
        self.need = lower_bound(self.program)
        self.planner = Planner(self.program.program, options, self.need.nbytes)

    @property
    def budget(self) -> int:
        """The budget of the options in bytes."""
        return resolve_budget(
            self.options.budget,
            self.baseline_peak,
            self.program.device,
            already_held=self.program.constant_bytes,
        )

    def plan(self, budget: int) -> Run | None:
        """A plan within ``budget`` bytes; None if the graph fits as it is.

        Raises
        ------
        Infeasible
            None was found.
        """
        program, saved = self.program, self.options.budget.saved
        if program.boundary is None:
            saved = None
        if budget >= self.baseline_peak and (saved is None or program.saved_bytes <= saved):
            return None
        if saved is None:
            return self.planner.plan(budget)
        return self.planner.plan_saving(budget, program.held_between_passes, saved)

    def least_memory(self) -> Run | None:
        """The plan of the lowest peak with at most the options' overhead; None for the graph as it is."""
        run = self.planner.smallest
        if self.keeps_overhead(run):
            return run
        best = None
        low, high = run.runtime.peak, self.baseline_peak
        while high - low > _TOLERANCE * self.baseline_peak:
            middle = (low + high) // 2
            run = self.planner.plan(middle)
            if self.keeps_overhead(run):
                best, high = run, run.runtime.peak
            else:
                low = middle
        return best

    def keeps_overhead(self, run: Run) -> bool:
        """Whether a plan adds no more than the options' overhead."""
        limit = self.options.max_overhead
        return limit is None or self.extra(run) <= limit * self.program.base_cost

    def extra(self, run: Run) -> float:
        """Seconds that a plan adds: what is recomputed, and the copies of changed inputs that this reads."""
        steps = self.program.steps
        again = {event.op for event in run.runtime.events if event.kind == RECOMPUTE}
        read = {value for number in again for value in steps[number].inputs}
        kept = (step for step in steps if step.role == storages.KEEP and step.outputs[0] in read)
        return run.cost + sum(step.cost for step in kept)

    def error(self, budget: int, smallest: int) -> InfeasibleBudgetError:
        """What to tell about a budget that no plan was found for."""
        program = self.program
        node = program.steps[self.need.step].node
        return InfeasibleBudgetError(
            asked=budget,
            # As it is, the graph needs no saved states of random operators: where those weigh most, less.
            smallest=min(smallest, self.baseline_peak),
            lower_bound=self.need.nbytes,
            baseline_peak=self.baseline_peak,
            operator=node.name,
            source=source_line(node),
            pinned=self._pinned(),
        )

    def _pinned(self) -> dict[str, int]:
        """The bytes, by kind, that cannot be given up when the most memory is needed."""
        program = self.program
        steps = program.steps[: self.need.step + 1]
        results = {program.storage(value) for step in steps for value in step.pins}
        pinned: dict[str, int] = {}
        for value in {*program.constants, *results}:
            kind = program.values[value].kind if value in program.constants else "output"
            pinned[kind] = pinned.get(kind, 0) + program.values[value].nbytes
        return pinned

"""What is derived from reports: memory blocks, lives, overviews, the difference of two plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import BUILDS, Recipe, recipes
from torch import nn

import dtr_fx
from dtr_fx.compiler.explain import plan_step
from dtr_fx.errors import CommandError, InfeasibleBudgetError
from dtr_fx.inspect.diff import Difference, difference, render_difference
from dtr_fx.inspect.life import life_of, render_life
from dtr_fx.inspect.modules import module_tree, path_of
from dtr_fx.inspect.overview import overview, render_overview
from dtr_fx.inspect.views import Report
from dtr_fx.lab import networks
from dtr_fx.lab.zoo import gpt
from dtr_fx.planning.options import Options
from dtr_fx.report import Event, Point
from dtr_fx.report.blocks import blocks
from dtr_fx.runtime import HEURISTICS
from dtr_fx.search import Policy, execute_order, portfolio, scores_of
from dtr_fx.units import format_bytes, format_seconds


def plan(**options: object) -> Report:
    torch.manual_seed(0)
    model, inputs = gpt(layers=1, width=32, batch=4, length=32)
    (report,) = plan_step(model, inputs, Options.from_mapping({"budget": "60%", **options}))
    return report


@pytest.fixture(scope="module")
def searched() -> Report:
    return plan()


@pytest.fixture(scope="module")
def online() -> Report:
    return plan(planner="online", heuristic="dtr-eq", budget="70%")


def changes(report: Report) -> list[Event]:
    return [event for event in report.events if event.kind in ("drop", "recompute")]


# Memory blocks


def live_by_blocks(report: Report) -> Iterator[tuple[int, Point]]:
    """For every operator, the bytes in blocks that are there while it runs, and what verify found."""
    found = blocks(report)
    position = {event.name: at for at, event in enumerate(report.events)}
    for point in report.after:
        at = position[point.name]
        there = (block for block in found if block.made_at <= at and (block.stays or at <= block.last_at))
        yield sum(report.storages[block.storage].nbytes for block in there), point


@pytest.fixture(scope="module")
def whole_step() -> Report:
    torch.manual_seed(0)
    model, reports = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)), nn.GELU()), []
    options = {"plan_seconds": 0.02, "on_report": reports.append}
    optimizer = torch.optim.AdamW(model.parameters())
    step = dtr_fx.train_step(model, lambda model, x: model(x).square().mean(), optimizer, "90%", **options)
    step(torch.randn(256, 32))
    (report,) = reports
    return report


@pytest.mark.parametrize("name", ["searched", "online", "whole_step"])
def test_blocks_add_up_to_the_live_bytes_at_every_operator(name: str, request: pytest.FixtureRequest) -> None:
    report = request.getfixturevalue(name)
    assert report.drops > 5 or name == "whole_step"
    for nbytes, point in live_by_blocks(report):
        assert nbytes + point.parts[-1] == point.live  # the last part is temporary


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    recipe=recipes,
    build=st.sampled_from(list(BUILDS)),
    budget=st.sampled_from(["100%", "90%", "75%"]),
    planner=st.sampled_from(["search", "online"]),
)
def test_blocks_of_any_graph_add_up(recipe: Recipe, build: str, budget: str, planner: str) -> None:
    case = BUILDS[build](recipe)
    try:
        _, report = dtr_fx.transform(
            case.gm, budget, planner=planner, plan_seconds=0.01, example_inputs=case.example_inputs
        )
    except (InfeasibleBudgetError, dtr_fx.GraphError):
        return
    for nbytes, point in live_by_blocks(report):
        assert nbytes + point.parts[-1] == point.live


# The life of a value


def test_a_life_in_order(online: Report) -> None:
    name = next(event.origin for event in online.events if event.kind == "drop")
    life = life_of(online, name)
    kinds = [moment.kind for moment in life.moments if moment.kind != "read"]
    assert kinds[0] == "computed"
    assert kinds.count("dropped") == kinds.count("recomputed") == life.storage.drops == len(life.gaps)
    assert kinds[1:] == ["dropped", "recomputed"] * life.storage.drops + ["freed"] * (kinds[-1] == "freed")
    assert [moment.at for moment in life.moments] == sorted(moment.at for moment in life.moments)
    for moment in life.moments:
        assert online.events[moment.at].live == moment.live


def test_what_keeping_a_value_would_take(searched: Report) -> None:
    for event in changes(searched):
        if event.kind == "drop":
            for gap in life_of(searched, event.origin).gaps:
                between = searched.events[gap.dropped_at + 1 : gap.recomputed_at]
                most = max(step.live for step in between if step.kind != "drop")
                assert gap.peak == most + event.nbytes
                assert gap.operators == sum(step.kind != "drop" for step in between)


def test_choices_say_who_went_instead() -> None:
    options = {"planner": "online", "heuristic": "dtr-eq", "budget": "70%"}
    dropped = [event for event in plan(**options).events if event.reason == "budget"]
    name = max(dropped, key=lambda event: event.live).origin
    report = plan(**options, watch=name)
    went = [choice for choice in report.choices if choice.rank == 1]
    assert {choice.chosen for choice in went} == {name}
    evicted = [event.score for event in report.events if event.reason == "budget" and event.origin == name]
    assert set(evicted) <= {choice.score for choice in went}
    for choice in report.choices:
        assert 1 <= choice.rank <= choice.candidates
        assert report.events[choice.at].kind in ("compute", "recompute")
        if choice.rank > 1:
            assert choice.chosen != name
            assert choice.score is None or choice.chosen_score is None or choice.score >= choice.chosen_score
    text = render_life(life_of(report, name))
    assert "it went" in text
    assert text.count("weighed") == sum(moment.kind == "weighed" for moment in life_of(report, name).moments)


def test_watching_changes_no_plan(online: Report) -> None:
    watched = plan(planner="online", heuristic="dtr-eq", budget="70%", watch=changes(online)[0].origin)
    assert watched.events == online.events


def test_a_search_scores_nothing_and_says_so(searched: Report) -> None:
    name = changes(searched)[0].origin
    report = replace(searched, heuristic="search", choices=())
    assert "--planner online" in render_life(life_of(report, name))
    chain = networks.linear(3)
    calls = list(chain.calls())
    found = execute_order(chain, range(len(calls)))
    assert scores_of(chain, found, calls[0].outputs[0].tensor, portfolio(Policy(HEURISTICS["lru"]))) == []


def test_a_value_that_there_is_not(searched: Report) -> None:
    name = searched.storages[-1].name
    with pytest.raises(CommandError, match=f"did you mean '{name}'"):
        life_of(searched, name + "_")


def test_a_view_lives_in_its_storage(searched: Report) -> None:
    view = next(event for event in searched.events if event.kind == "compute" and not event.storages)
    assert life_of(searched, view.name).storage == searched.storages[view.uses[0]]


def test_who_decided(online: Report) -> None:
    assert online.heuristic == "dtr-eq"
    assert plan(budget="100%").heuristic == "none"


# A plan at a glance


def test_the_tables_add_up(searched: Report) -> None:
    found = overview(searched, top=1000)
    extra = math.fsum(event.cost for event in changes(searched))
    assert math.isclose(sum(group.recompute_cost for group in found.operators), extra)
    assert sum(group.drops for group in found.operators) == searched.drops
    assert sum(group.recomputes for group in found.operators) == searched.recomputes
    costs = [group.recompute_cost for group in found.operators]
    assert costs == sorted(costs, reverse=True)
    assert sum(storage.drops for storage in found.by_drops) == searched.drops
    assert found.by_bytes[0].nbytes == max(storage.nbytes for storage in searched.storages)


@pytest.mark.parametrize("name", ["searched", "online", "whole_step"])
def test_the_tree_of_modules_adds_up(name: str, request: pytest.FixtureRequest) -> None:
    report = request.getfixturevalue(name)
    tree = module_tree(report)
    assert tree.figures.at_peak == report.planned_peak
    assert tree.figures.drops == report.drops
    assert tree.figures.recomputes == report.recomputes
    assert tree.figures.operators == len(report.before)
    assert math.isclose(tree.figures.cost, report.base_cost)
    assert math.isclose(tree.figures.extra, report.total_cost - report.base_cost)
    for _, module in tree.walk():
        own = [event for event in report.events if _is_in(event, module.path)]
        assert module.figures.dropped == sum(event.nbytes for event in own if event.kind == "drop")
        assert module.figures.recomputed == sum(event.nbytes for event in own if event.kind == "recompute")
        assert sum(inner.figures.at_peak for inner in module.modules) <= module.figures.at_peak


def _is_in(event: Event, path: str) -> bool:
    return not path or f"{path_of(event)}.".startswith(f"{path}.")


def test_modules_are_those_of_the_model(searched: Report) -> None:
    modules = {module.path: module for _, module in module_tree(searched).walk()}
    assert {"", "blocks.0", "blocks.0.mlp.0", "head", "norm", "token"} <= modules.keys()
    # What holds nothing but one module is shown with it.
    assert modules["blocks.0"].name == "blocks.0"
    assert "blocks" not in modules
    backward = {event.module for event in searched.events if event.phase == "backward"}
    assert "blocks.0.mlp.0" in backward


def test_the_tree_is_folded(searched: Report) -> None:
    found = overview(searched)

    def names(depth: int | None) -> list[str]:
        text = render_overview(searched, found, depth=depth).partition("by module\n")[2]
        return [line.split("  ")[0] for line in text.splitlines()[2:]]

    assert names(1) == ["whole graph", "├ token", "├ dropout", "├ blocks.0", "├ norm", "└ head"]
    *inside, last = (module.name for module in found.modules.modules[2].modules)
    assert [name for name in names(2) if name.startswith("│ ")] == [
        *(f"│ ├ {name}" for name in inside),
        f"│ └ {last}",
    ]
    assert len(names(2)) <= len(names(None)) <= 24


def test_the_text_fits_a_narrow_terminal(searched: Report) -> None:
    lines = render_overview(searched, overview(searched), width=60).splitlines()
    assert max(map(len, lines)) <= 60


# The price of a drop


@pytest.fixture
def priced(searched: Report) -> Report:
    """Every drop costs 1.5 ms and is away for 20 ms."""
    drops = (
        replace(event, again=1.5e-3, away=0.02, reason="planned") if event.kind == "drop" else event
        for event in searched.events
    )
    return replace(searched, events=tuple(drops))


def test_a_life_says_what_a_drop_costs(priced: Report) -> None:
    name = next(event.origin for event in priced.events if event.kind == "drop")
    life = life_of(priced, name)
    (first, *_) = (moment for moment in life.moments if moment.kind == "dropped")
    assert (first.again, first.away) == (1.5e-3, 0.02)
    assert "dropped     1.50 ms again, away 20.0 ms; " in render_life(life)


def test_the_tables_say_for_how_long_a_value_is_away(searched: Report, priced: Report) -> None:
    (often, *_) = overview(priced).by_drops
    lines = render_overview(priced, overview(priced)).splitlines()
    row = next(line for line in lines if line.split()[:1] == [often.name])
    assert f" {format_seconds(0.02 * often.drops)} " in row
    unpriced = replace(searched, events=tuple(replace(event, away=None) for event in searched.events))
    assert " 20.0 ms " not in render_overview(unpriced, overview(unpriced))


@pytest.mark.parametrize("width", [72, 100, 120])
def test_the_difference_of_two_plans_says_what_drops_cost(priced: Report, online: Report, width: int) -> None:
    lines = render_difference(difference(priced, online), width=width).splitlines()
    dropped = [line for line in lines if line.startswith("A - drop")]
    assert dropped
    assert all("1.50 ms again" in line for line in dropped)
    assert max(map(len, dropped)) <= width


# Two plans


def applied(found: Difference, report: Report) -> Counter[tuple[str, str]]:
    """The first plan's drops and recomputes, with the changes made to them."""
    steps = Counter((event.kind, event.origin) for event in changes(report))
    for change in found.changes:
        if change.event.kind != "compute":
            steps[change.event.kind, change.event.origin] += 1 if change.only_in else -1
    return +steps


def test_a_plan_does_not_differ_from_itself(searched: Report) -> None:
    found = difference(searched, searched)
    assert found.changes == ()
    assert "the same drops and recomputes" in render_difference(found)


def test_two_plans_differ_in_what_only_one_of_them_does(searched: Report, online: Report) -> None:
    found = difference(searched, online)
    assert applied(found, searched) == Counter((event.kind, event.origin) for event in changes(online))
    mirrored = difference(online, searched)
    assert applied(mirrored, online) == Counter((event.kind, event.origin) for event in changes(searched))
    text = render_difference(found)
    assert sum(line.startswith(("A ", "B ")) and line[2] in "-+~" for line in text.splitlines()) == len(
        found.changes
    )


def test_an_operator_that_waits_is_a_difference() -> None:
    plain = report_of([[], [], [], [], []])
    p, q, r, s = plain.events
    late = replace(plain, events=(p, r, q, s))
    text = render_difference(difference(plain, late))
    assert "only in B: 0 drops, 0 recomputes, 1 late operator" in text
    [line] = (line for line in text.splitlines() if line.startswith("B ~ late"))
    assert line.split()[3] == "q"
    assert difference(late, late).changes == ()


def test_plans_of_different_graphs(searched: Report) -> None:
    (other,) = plan_step(nn.Linear(4, 4), torch.ones(2, 4), Options())
    with pytest.raises(CommandError, match="different graphs"):
        difference(searched, other)


STEPS = st.lists(st.tuples(st.sampled_from(["drop", "recompute"]), st.sampled_from("abc")), max_size=4)
OPERATORS = "pqrs"


def report_of(places: list[list[tuple[str, str]]]) -> Report:
    """A report whose plan puts these steps before each operator, and after the last."""
    events = []
    for number, steps in enumerate(places):
        events += [Event(kind, f"{kind}_{name}", name, "", 1, 1.0, 1) for kind, name in steps]
        if number < len(OPERATORS):
            name = OPERATORS[number]
            events.append(Event("compute", name, name, "", 1, 1.0, 1))
    points = tuple(Point(1, name) for name in OPERATORS)
    return Report(1, 1, 1, 1, 0, 1.0, 1.0, "lru", "cpu", tuple(events), points, points, (), {})


PLANS = st.lists(STEPS, min_size=len(OPERATORS) + 1, max_size=len(OPERATORS) + 1)


@given(first=PLANS, second=PLANS)
def test_the_difference_is_exact_at_every_place(
    first: list[list[tuple[str, str]]], second: list[list[tuple[str, str]]]
) -> None:
    found = difference(report_of(first), report_of(second))
    for number, (steps, others) in enumerate(zip(first, second)):
        before = [*OPERATORS, ""][number]
        only = [
            [
                (c.event.kind, c.event.origin)
                for c in found.changes
                if c.before == before and c.only_in == side
            ]
            for side in (0, 1)
        ]
        if steps == others:
            assert only == [[], []]
        common = [list(each) for each in (steps, others)]
        for side, gone in enumerate(only):
            for step in gone:
                common[side].remove(step)
        assert Counter(common[0]) == Counter(common[1])  # what is left is in both
        assert Counter(only[0]) - Counter(steps) == Counter(only[1]) - Counter(others) == Counter()


def test_bytes_in_the_text_are_those_of_the_plan(searched: Report, online: Report) -> None:
    found = difference(searched, online)
    lines = [line for line in render_difference(found).splitlines() if line[2:3] in ("-", "+", "~")]
    for line, change in zip(lines, found.changes):
        assert format_bytes(change.event.nbytes) in line
        assert line.endswith(format_bytes(change.event.live))

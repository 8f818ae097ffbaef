import json
import re
from dataclasses import replace

import pytest

from dtr_fx.inspect.diff import render_diff
from dtr_fx.inspect.views import Report
from dtr_fx.report import Event, Point, StorageStats

MiB = 2**20
BLOCKS = set("▁▂▃▄▅▆▇█")


def compute(name: str, phase: str = "forward", live: int = 10) -> Event:
    return Event("compute", name, name, phase, MiB, 1e-3, live * MiB, source=f"model.py:7, {name}()")


def drop(origin: str, phase: str = "forward", live: int = 10) -> Event:
    return Event(
        "drop", f"drop_{origin}", origin, phase, 2 * MiB, 0.0, live * MiB, "budget", 2.5e-7, "model.py:3"
    )


def recompute(origin: str, phase: str = "backward", live: int = 10) -> Event:
    return Event("recompute", f"{origin}_again", origin, phase, 2 * MiB, 1e-3, live * MiB, "needed by mm_9")


def report(
    *events: Event,
    before: tuple[int, ...] = (20, 40, 20),
    after: tuple[int, ...] = (20, 24, 20),
    budget: int = 24,
) -> Report:
    """A report with live bytes, peaks and budget in MiB."""
    again = sum(event.cost for event in events if event.kind == "recompute")
    return Report(
        budget=budget * MiB,
        baseline_peak=max(before, default=0) * MiB,
        planned_peak=max(after, default=0) * MiB,
        lower_bound=9 * MiB,
        constants=4 * MiB,
        base_cost=0.010,
        total_cost=0.010 + again,
        heuristic="dtr-eq",
        device="cpu",
        events=events,
        before=tuple(Point(live * MiB, f"op_{i}") for i, live in enumerate(before)),
        after=tuple(Point(live * MiB, f"new_{i}") for i, live in enumerate(after)),
        storages=(StorageStats("op_0", "activation", 2 * MiB, 1, 1, 1e-3),),
        seconds={"rematerialize": 0.01},
    )


def run(name: str, count: int, phase: str = "forward") -> list[Event]:
    return [compute(f"{name}_{i}", phase) for i in range(count)]


def changed_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("-", "+"))]


def chart(text: str, title: str) -> list[str]:
    """The rows of one timeline, from the top."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    return lines[start : lines.index("", start)]


def test_a_report_survives_json() -> None:
    made = report(compute("a"), drop("a"), recompute("a"))
    assert Report.from_json(made.to_json()) == made


def test_the_first_line_is_the_verdict() -> None:
    made = report(compute("a"), drop("a"), recompute("a"), recompute("a"))
    first = render_diff(made).splitlines()[0]
    assert first == made.summary()
    for fact in (
        "fits",
        "40.0 MiB → 24.0 MiB",
        "budget 24.0 MiB",
        "1 drop,",
        "2 recomputes",
        "overhead 20.0%",
    ):
        assert fact in first


def test_the_verdict_on_a_plan_that_does_not_fit() -> None:
    assert report(budget=20).summary().startswith("OVER BUDGET by 4.00 MiB")


def test_changes_say_what_how_much_why_where_and_how_much_lives() -> None:
    text = render_diff(report(compute("gelu"), drop("gelu", live=17), recompute("gelu", live=23)), width=110)
    dropped, remade = changed_lines(text)
    assert re.match(r"- drop +gelu +2\.00 MiB +budget \(2\.5e-07\) +model\.py:3 +17\.0 MiB$", dropped)
    assert re.match(r"\+ recompute +gelu +2\.00 MiB +needed by mm_9, 1\.00 ms +23\.0 MiB$", remade)


def test_unchanged_runs_are_folded_with_one_operator_of_context() -> None:
    text = render_diff(report(*run("a", 20), drop("a_3"), *run("b", 44), drop("a_4"), *run("c", 9)))
    assert [int(count) for count in re.findall(r"… (\d+) operators", text)] == [19, 42, 8]
    shown = re.findall(r"^ {13}(\w+_\d+) ", text, re.MULTILINE)
    assert shown == ["a_19", "b_0", "b_43", "c_0"]


def test_a_single_operator_is_shown_rather_than_folded() -> None:
    text = render_diff(report(drop("x"), *run("b", 3), drop("y")))
    assert "… 1 operator" not in text
    assert all(f"b_{i}" in text for i in range(3))


def test_a_fold_says_how_much_lives_at_most_inside_it() -> None:
    text = render_diff(report(compute("a", live=11), compute("b", live=31), compute("c", live=12)))
    (fold,) = (line for line in text.splitlines() if "… 3 operators" in line)
    assert fold.endswith("≤ 31.0 MiB")


def test_every_change_of_a_long_report_is_listed_in_order() -> None:
    events: list[Event] = []
    for i in range(300):
        events += [*run(f"a{i}", 5), drop(f"v{i}"), drop(f"w{i}"), recompute(f"u{i}", phase="forward")]
    lines = changed_lines(render_diff(report(*events)))
    assert [line.split()[2] for line in lines] == [f"{kind}{i}" for i in range(300) for kind in "vwu"]


def test_phases_are_headed_and_counted_and_folds_do_not_cross_them() -> None:
    events = [*run("a", 5), drop("a_0"), *run("b", 4, "backward"), recompute("a_0"), *run("c", 2, "backward")]
    text = render_diff(report(*events))
    assert "forward: 5 operators, 1 drop, 0 recomputes" in text
    assert "backward: 6 operators, 0 drops, 1 recompute" in text
    assert text.index("forward:") < text.index("- drop") < text.index("backward:") < text.index("+ recompute")


def test_a_graph_without_phases_has_no_headings() -> None:
    assert "──" not in render_diff(report(*run("a", 5, phase="")))


def test_banished_storages_are_no_change_and_no_operator() -> None:
    banished = Event("banish", "a", "a", "forward", MiB, 0.0, 10 * MiB)
    text = render_diff(report(compute("a"), banished, compute("b"), compute("c")))
    assert "… 3 operators" in text
    assert "banish" not in text


def test_the_timelines_share_a_scale_and_the_budget_is_a_line_on_it() -> None:
    text = render_diff(report(compute("op_1"), before=(10, 40, 10), after=(10, 20, 10), budget=20))
    before, after = chart(text, "before"), chart(text, "after")
    assert (len(before), len(after)) == (4, 2)  # 10 MiB a row
    for rows in (before, after):
        (marked,) = (row for row in rows if "budget 20.0 MiB" in row)
        assert rows.index(marked) == len(rows) - 2
        assert "▔" in marked
        assert set(rows[-1]) == {"█"}


def test_one_byte_above_the_budget_is_above_the_line() -> None:
    made = report(before=(40,), after=(20,), budget=20)
    above = Report(**(vars(made) | {"after": (Point(20 * MiB + 1, "a"),)}))
    assert len(chart(render_diff(made), "after")) == 2
    assert len(chart(render_diff(above), "after")) == 3


def test_the_peak_operator_is_named_with_its_line() -> None:
    made = report(compute("op_1"), Event("compute", "new_1", "op_1", "forward", 1, 0.0, 1, source="net.py:5"))
    lines = render_diff(made).splitlines()
    assert any(re.match(r"before +peak 40\.0 MiB at op_1 ", line) for line in lines)
    assert any(re.match(r"after +peak 24\.0 MiB at new_1 +net\.py:5", line) for line in lines)


def test_a_long_timeline_keeps_a_short_peak() -> None:
    live = [10] * 5000
    live[2345] = 40
    assert len(chart(render_diff(report(before=tuple(live), budget=20)), "before")) == 4


def test_a_budget_far_above_the_peak_does_not_flatten_the_picture() -> None:
    text = render_diff(report(budget=8 * 1024))
    assert "budget 8.00 GiB" in text
    assert len(chart(text, "before")) == 4


def test_an_empty_graph_can_be_shown() -> None:
    text = render_diff(report(before=(), after=(), budget=0))
    assert "fits" in text
    assert text.count("no operators") == 2


@pytest.mark.parametrize("width", [72, 80, 100, 160])
def test_lines_keep_to_the_width_and_live_bytes_to_the_right_margin(width: int) -> None:
    long = Event(
        "drop",
        "d",
        "_scaled_dot_product_flash_attention_for_cpu_backward_117",
        "forward",
        1023 * MiB,
        0.0,
        999 * MiB,
        "the operator that had to run needed room",
        1.5e-11,
        "/home/ada/projects/transformer/src/model/attention.py:117, out = self.attend(q, k, v)",
    )
    text = render_diff(report(*run("a", 9), long, *run("b", 9)), width=width)
    pictures_and_rows = text.split("\n\n", 1)[1]
    assert max(map(len, pictures_and_rows.splitlines())) <= width
    (line,) = changed_lines(text)
    assert len(line) == width
    assert line.endswith(" 999 MiB")
    assert "_117 " in line  # the number that tells a node from its siblings
    assert "attent" in line  # the file, not the folders


def test_colour_only_when_asked_for_and_it_changes_nothing_else() -> None:
    made = report(*run("a", 9), drop("a_1"), recompute("a_1"), budget=21)
    plain, colored = render_diff(made), render_diff(made, color=True)
    assert "\033" not in plain
    assert "\033[31m- drop" in colored
    assert "\033[32m+ recompute" in colored
    uncolored = re.sub(r"\033\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in uncolored.splitlines()] == plain.splitlines()


# The price of a drop


def priced(reason: str = "planned", score: float | None = None) -> Event:
    return Event(
        "drop",
        "drop_gelu",
        "gelu",
        "forward",
        2 * MiB,
        0.0,
        10 * MiB,
        reason,
        score,
        again=1.2e-3,
        away=0.0582,
    )


def test_a_planned_drop_says_what_it_costs_and_for_how_long_it_is_away() -> None:
    text = render_diff(report(*run("a", 9), priced()), width=100)
    assert re.search(r"2\.00 MiB  1\.20 ms again, away 58\.2 ms ", text)
    assert "planned" not in text


def test_a_recompute_says_what_it_costs_and_what_it_is_for() -> None:
    text = render_diff(report(*run("a", 9), recompute("gelu")), width=100)
    assert re.search(r"\+ recompute +gelu +2\.00 MiB  needed by mm_9, 1\.00 ms ", text)


@pytest.mark.parametrize("width", [72, 80])
def test_a_narrow_line_says_at_least_what_a_drop_costs(width: int) -> None:
    text = render_diff(report(*run("a", 9), priced()), width=width)
    assert "  1.20 ms again  " in text or "  1.20 ms again, away 58.2 ms  " in text


def test_a_score_stands_beside_the_price() -> None:
    drop = priced("budget", 2.5e-7)
    text = render_diff(report(*run("a", 9), drop), width=140)
    assert "budget (2.5e-07), 1.20 ms again, away 58.2 ms" in text
    assert "budget (2.5e-07), 1.20 ms again  " in render_diff(report(*run("a", 9), drop), width=88)
    assert "budget (2.5e-07)  " in render_diff(report(*run("a", 9), drop), width=80)


# The budget as asked, and as it was kept


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("60%", "budget 60% = 24.0 MiB,"),
        ("auto", "budget auto = 24.0 MiB,"),
        ("24MiB", "budget 24.0 MiB,"),
        (str(24 * MiB), "budget 24.0 MiB,"),
        ("32MiB", "budget 24.0 MiB of 32MiB,"),
        ("", "budget 24.0 MiB,"),
    ],
)
def test_the_verdict_has_the_budget_as_asked_and_in_force(asked: str, shown: str) -> None:
    assert shown in replace(report(), asked=asked).summary()


def test_a_graph_left_as_it_is_does_not_fit() -> None:
    made = replace(report(before=(40,), after=(40,), budget=24), heuristic="none", asked="60%")
    assert made.verdict == "left as it is"
    assert made.summary() == "left as it is: peak 40.0 MiB, no plan reaches 60% = 24.0 MiB"
    assert "as it was on cpu" in render_diff(made)
    assert json.loads(made.to_json())["verdict"] == "left as it is"
    assert Report.from_json(made.to_json()) == made


def test_a_graph_within_its_budget_fits_without_a_plan() -> None:
    assert replace(report(before=(20,), after=(20,)), heuristic="none").verdict == "fits"


def test_the_second_line_says_who_decided() -> None:
    made = replace(report(), heuristic="search")
    assert render_diff(made).splitlines()[1].startswith("search decided, runtime checked on cpu; ")
    refused = render_diff(replace(made, refused=2), width=120)
    assert refused.splitlines()[1].endswith("; 2 orders refused")

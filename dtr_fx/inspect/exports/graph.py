"""A report's graph for networkx, which writes GraphML and, with pydot, DOT."""

from __future__ import annotations

from collections import Counter

import networkx as nx

from dtr_fx.report import Event, Report


def to_networkx(report: Report) -> nx.DiGraph:
    """The operators and inputs of the graph as it was, an edge from each to those that read it.

    Attributes are numbers and strings, so that ``networkx.write_graphml`` and DOT writers take them: of an
    operator ``kind`` (``"operator"``), ``target``, ``phase``, ``module``, ``source``, ``nbytes``, ``cost``,
    ``drops``, ``recomputes`` and ``recompute_cost``; of an input ``kind`` and ``nbytes``.
    """
    graph = nx.DiGraph()
    original = {point.name for point in report.before}
    operators = [event for event in report.events if event.kind == "compute" and event.name in original]
    drops = _drops_by_operator(report)
    again = Counter(event.origin for event in report.events if event.kind == "recompute")
    origin_of = {event.name: event.origin for event in report.events}
    for event in operators:
        graph.add_node(event.name, **_attributes(event, drops[event.name], again[event.name]))
        graph.add_edges_from((origin_of.get(name, name), event.name) for name in event.reads)
    given = {storage.name: storage for storage in report.storages}
    for name, facts in graph.nodes(data=True):
        if not facts:  # nothing computes it: an input
            kind, nbytes = (given[name].kind, given[name].nbytes) if name in given else ("input", 0)
            facts.update(kind="parameter" if kind == "parameter" else "input", nbytes=nbytes)
    return graph


def _drops_by_operator(report: Report) -> Counter[str]:
    makers = {at: event.name for event in report.events if event.kind == "compute" for at in event.storages}
    return Counter(makers[at] for event in report.events if event.kind == "drop" for at in event.storages)


def _attributes(event: Event, drops: int, recomputes: int) -> dict[str, str | int | float]:
    facts = {name: getattr(event, name) for name in ("target", "phase", "module", "source", "nbytes", "cost")}
    again = {"recomputes": recomputes, "recompute_cost": recomputes * event.cost}
    return {"kind": "operator", **facts, "drops": drops, **again}

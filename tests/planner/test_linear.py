"""Costs as an array are what the cost model says of each step, and of many steps added up."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from tests.planner import planner_shapes as shapes

from ridgeline.graph.graph import Graph
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.cost import Cost, GraphCost
from ridgeline.planner.linear import LinearCosts


@pytest.mark.parametrize("graph", shapes.several(), ids=lambda g: f"{len(g.ops)}-{g.caches[0].window}")  # type: ignore[union-attr]
def test_costs_are_linear_in_a_steps_numbers(graph: Graph) -> None:
    book = GraphCost(graph)
    costs, expected, rng = LinearCosts(book), Cost(), np.random.default_rng(0)
    total = costs.numbers(())
    for _ in range(25):
        spans = [Span(i, int(rng.integers(300, 600)), int(rng.integers(0, 60)), 0) for i in range(int(rng.integers(0, 5)))]
        spans = [Span(s.seq, s.past, s.new, int(rng.integers(0, min(s.new, 3) + 1))) for s in spans]
        walks = (SharedWalk((0, 1), 256),) if len(spans) > 1 and spans[0].new and spans[1].new else ()
        cost = book.total(book.work(spans, walks))
        numbers = costs.numbers(spans, walks)
        assert astuple(costs.cost(numbers)) == pytest.approx(astuple(cost), rel=1e-6, abs=2)
        expected, total = expected + cost, total + numbers
    assert astuple(costs.cost(total)) == pytest.approx(astuple(expected), rel=1e-6, abs=50) and expected.flops > 0

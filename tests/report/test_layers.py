"""Layered drawings: boxes apart from one another, edges downwards and round the boxes, chains straight."""

from __future__ import annotations

from itertools import combinations, pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subtune.report.page.layers import Drawing, layered

WIDTH, HEIGHT, BETWEEN = 100.0, 40.0, 20.0


def drawn(*edges: tuple[int, int]) -> Drawing:
    return layered(nx.DiGraph(edges), WIDTH, HEIGHT, BETWEEN)


def check(drawing: Drawing) -> None:
    for (xa, ya), (xb, yb) in combinations(drawing.places.values(), 2):
        assert ya != yb or abs(xa - xb) >= WIDTH
    for (a, b), way in drawing.routes.items():
        (xa, ya), (xb, yb) = drawing.places[a], drawing.places[b]
        assert way[0] == (xa, ya + HEIGHT)
        assert way[-1] == (xb, yb)
        assert all(one[1] < other[1] for one, other in pairwise(way))
        for x, y in way[1:-1]:
            assert all(abs(x - at) >= WIDTH / 2 for at, top in drawing.places.values() if top <= y <= top + HEIGHT)
    for x, y in drawing.places.values():
        assert x - WIDTH / 2 + 1e-6 >= 0
        assert x + WIDTH / 2 <= drawing.width + 1e-6
        assert 0 <= y <= drawing.height - HEIGHT


def test_a_chain_is_straight() -> None:
    drawing = drawn((0, 1), (1, 2), (2, 3))
    check(drawing)
    assert {x for x, _ in drawing.places.values()} == {WIDTH / 2}
    assert (drawing.width, drawing.height) == (WIDTH, 4 * HEIGHT + 3 * BETWEEN)


def test_a_skip_goes_round_a_straight_chain() -> None:
    drawing = drawn((0, 1), (1, 2), (2, 3), (0, 3))
    check(drawing)
    assert len({round(x, 2) for x, _ in drawing.places.values()}) == 1
    assert len(drawing.routes[0, 3]) == 6


def test_what_reads_nothing_is_beside_its_reader() -> None:
    drawing = drawn((0, 1), (1, 2), (2, 3), (9, 3))
    check(drawing)
    assert drawing.places[9][1] == drawing.places[2][1]


def test_branches_do_not_cross() -> None:
    """Two chains whose nodes come in turns."""
    drawing = drawn((0, 1), (0, 2), (1, 4), (2, 3), (3, 5), (4, 6), (5, 7), (6, 7))
    check(drawing)
    left = [drawing.places[node][0] for node in (1, 4, 6)]
    right = [drawing.places[node][0] for node in (2, 3, 5)]
    assert len({a < b for a, b in zip(left, right, strict=True)}) == 1


def test_nothing() -> None:
    assert layered(nx.DiGraph(), WIDTH, HEIGHT, BETWEEN).places == {}


@given(st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda pair: pair[0] < pair[1]), min_size=1))
def test_any_graph(edges: set[tuple[int, int]]) -> None:
    check(drawn(*sorted(edges)))


@pytest.mark.parametrize("count", [1, 5])
def test_without_edges(count: int) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    check(layered(graph, WIDTH, HEIGHT, BETWEEN))

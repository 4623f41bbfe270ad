"""A layered drawing of a directed graph without circles: where every node lies, and what way every edge takes.

Source: Sugiyama, Tagawa, Toda: Methods for visual understanding of hierarchical system structures, 1981. Edges that
pass layers get a place in each of them. Orders in the layers are settled by barycentres; places along a layer are as
near to those of the neighbours as the widths allow, which is an isotonic regression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx

_SWEEPS = 12
_BEND = 14.0
"""Between two edges that pass a layer side by side."""
_GAP = 36.0
"""Between the boxes of one layer."""

_BOX = 1e6
"""How much more a box counts than an edge that passes: edges make room."""

Point = tuple[float, float]
_Slot = tuple[Any, ...]
"""`(node,)`, or `(from, to, layer)` where an edge passes a layer."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """`places` are the middles of the boxes' upper edges; `routes` lead from box to box, through the layers between."""

    width: float
    height: float
    places: Mapping[Any, Point]
    routes: Mapping[tuple[Any, Any], tuple[Point, ...]]


def layered(graph: nx.DiGraph, width: float, height: float, between: float) -> Drawing:
    """A drawing from top to bottom in boxes of `width` and `height`, with so much room `between` the layers."""
    rank = _ranks(graph)
    layers, wide = _slots(graph, rank)
    _order(layers, wide)
    xs = _along(layers, wide, width)
    left = min((x for slot, x in xs.items()), default=0.0) - width / 2
    right = max((x for slot, x in xs.items()), default=0.0) + width / 2
    step = height + between
    places = {node: (xs[(node,)] - left, layer * step) for node, layer in rank.items()}
    routes = {}
    for a, b in graph.edges:
        (xa, ya), (xb, yb) = places[a], places[b]
        way: list[Point] = [(xa, ya + height)]
        for layer in range(rank[a] + 1, rank[b]):
            x = xs[(a, b, layer)] - left
            way += [(x, layer * step), (x, layer * step + height)]
        routes[a, b] = (*way, (xb, yb))
    return Drawing(right - left, len(layers) * step - between if layers else 0.0, places, routes)


def _ranks(graph: nx.DiGraph) -> dict[Any, int]:
    """A layer for each node: behind all that it reads; what reads nothing is right before its first reader."""
    rank: dict[Any, int] = {}
    order = list(nx.topological_sort(graph))
    for node in order:
        rank[node] = max((rank[before] + 1 for before in graph.predecessors(node)), default=0)
    for node in reversed(order):
        if not graph.in_degree(node) and graph.out_degree(node):
            rank[node] = min(rank[after] for after in graph.successors(node)) - 1
    return rank


def _slots(graph: nx.DiGraph, rank: Mapping[Any, int]) -> tuple[list[list[_Slot]], nx.DiGraph]:
    """The layers, and the graph whose edges all lead to the next layer."""
    layers: list[list[_Slot]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    wide = nx.DiGraph()
    for node in graph:
        layers[rank[node]].append((node,))
        wide.add_node((node,))
    for a, b in graph.edges:
        way: list[_Slot] = [(a,)]
        for layer in range(rank[a] + 1, rank[b]):
            way.append((a, b, layer))
            layers[layer].append(way[-1])
        wide.add_edges_from(pairwise([*way, (b,)]))
    return layers, wide


def _order(layers: list[list[_Slot]], wide: nx.DiGraph) -> None:
    """Sort every layer by where its neighbours are, to and fro; the order with the fewest crossings stays."""
    best, fewest = [list(layer) for layer in layers], _crossings(layers, wide)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        neighbours = wide.predecessors if down else wide.successors
        indices = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
        for i in indices:
            at = {slot: place for place, slot in enumerate(layers[i - 1 if down else i + 1])}
            own = {slot: place for place, slot in enumerate(layers[i])}
            mean = {slot: _mean([at[one] for one in neighbours(slot)], own[slot]) for slot in layers[i]}
            layers[i].sort(key=lambda slot: (mean[slot], own[slot]))
        if (found := _crossings(layers, wide)) < fewest:
            best, fewest = [list(layer) for layer in layers], found
    layers[:] = best


def _crossings(layers: Sequence[Sequence[_Slot]], wide: nx.DiGraph) -> int:
    total = 0
    for upper, lower in pairwise(layers):
        at = {slot: place for place, slot in enumerate(lower)}
        ends = [place for slot in upper for place in sorted(at[one] for one in wide.successors(slot))]
        total += sum(1 for i, one in enumerate(ends) for other in ends[i + 1 :] if other < one)
    return total


def _along(layers: Sequence[Sequence[_Slot]], wide: nx.DiGraph, width: float) -> dict[_Slot, float]:
    """The middle of every slot."""
    xs: dict[_Slot, float] = {}
    offsets = [_offsets(layer, width) for layer in layers]
    for layer, at in zip(layers, offsets, strict=True):
        xs |= {slot: offset - at[-1] / 2 for slot, offset in zip(layer, at, strict=True)}
    for sweep in range(2 * _SWEEPS + 1):
        turn = list(enumerate(layers))
        neighbours = wide.successors if sweep % 2 else wide.predecessors
        for i, layer in reversed(turn) if sweep % 2 else turn:
            wanted = [_below(slot, list(neighbours(slot)), xs) for slot in layer]
            # a slot's place less its offset must not fall from left to right: then no two are too near
            weights = [_BOX if len(slot) == 1 else 1.0 for slot in layer]
            fitted = _rising([want - offset for want, offset in zip(wanted, offsets[i], strict=True)], weights)
            xs |= {slot: x + offset for slot, x, offset in zip(layer, fitted, offsets[i], strict=True)}
    return xs


def _below(slot: _Slot, neighbours: Sequence[_Slot], xs: Mapping[_Slot, float]) -> float:
    """Where a slot wants to be: with the boxes next to it, so that a chain is straight whatever passes beside it."""
    boxes = [one for one in neighbours if len(one) == 1]
    return _mean([xs[one] for one in boxes or neighbours], xs[slot])


def _offsets(layer: Sequence[_Slot], width: float) -> list[float]:
    """The middles where all lie side by side, as near as may be."""
    found = [0.0]
    for one, other in pairwise(layer):
        boxes = (len(one) == 1) + (len(other) == 1)
        found.append(found[-1] + boxes * width / 2 + (_BEND, _BEND * 1.5, _GAP)[boxes])
    return found


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The sequence that never falls and is nearest to `values`, in squares: where it would fall, it has the mean."""
    blocks: list[tuple[float, float, int]] = []
    for value, own in zip(values, weights, strict=True):
        mean, weight, count = value, own, 1
        while blocks and blocks[-1][0] > mean:
            before, more, others = blocks.pop()
            mean, weight = (mean * weight + before * more) / (weight + more), weight + more
            count += others
        blocks.append((mean, weight, count))
    return [mean for mean, _, count in blocks for _ in range(count)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise

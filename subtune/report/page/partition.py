"""The partition as an SVG: a box for each kernel, and beside it what is known of the one that the reader points at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import networkx as nx

from subtune.core.account import Account, Node, Tried, TunedSubgraph
from subtune.core.units import bytes_text, count_text, seconds_text, times_text
from subtune.report.page.layers import Drawing, Point, layered

_WIDTH, _HEIGHT, _BETWEEN = 236.0, 50.0, 30.0
_MARGIN = 12.0
_CHARS = 26
"""Of a title, in a box."""
_LISTED = 8
"""Candidates beside the partition."""


def partition(account: Account) -> str:
    """The drawing, its buttons, and the panel for explanations; "" where there is nothing to draw."""
    if not account.nodes:
        return ""
    known = {one.name: one for one in account.subgraphs}
    return "\n".join(
        [
            '<div class="partition">',
            '<div class="frame"><div class="tools" role="group" aria-label="Zoom">',
            '<button type="button" data-zoom="in" aria-label="Zoom in">+</button>',
            '<button type="button" data-zoom="out" aria-label="Zoom out">&minus;</button>',
            '<button type="button" data-zoom="fit">fit</button></div>',
            f'<div class="scroll">{_svg(account.nodes, known)}</div></div>',
            '<aside class="panel" id="panel" aria-live="polite"></aside>',
            "</div>",
            *(f'<template id="node-{i}">{_explained(node, known)}</template>' for i, node in enumerate(account.nodes)),
        ]
    )


def _svg(nodes: Sequence[Node], known: Mapping[str, TunedSubgraph]) -> str:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from((before, i) for i, node in enumerate(nodes) for before in node.after)
    drawing = layered(graph, _WIDTH, _HEIGHT, _BETWEEN)
    longest = max((known[node.subgraph].tuned_s for node in nodes if node.subgraph in known), default=0.0)
    width, height = drawing.width + 2 * _MARGIN, drawing.height + 2 * _MARGIN
    return "\n".join(
        [
            f'<svg class="graph" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
            f'data-width="{width:.0f}" role="group" aria-label="The partition: {len(nodes)} boxes">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            '<path d="M0,0.5 L8,4 L0,7.5 z"/></marker></defs>',
            f'<g transform="translate({_MARGIN:.0f},{_MARGIN:.0f})">',
            *_arrows(drawing),
            *(_box(i, node, drawing.places[i], known.get(node.subgraph), longest) for i, node in enumerate(nodes)),
            "</g></svg>",
        ]
    )


def _arrows(drawing: Drawing) -> Iterator[str]:
    for (a, b), way in drawing.routes.items():
        yield f'<path class="edge" data-from="{a}" data-to="{b}" d="{_curve(way)}" marker-end="url(#tip)"/>'


def _curve(way: Sequence[Point]) -> str:
    """Upright at every point: straight through a layer, a bow between two."""
    (x, y), *rest = way
    parts = [f"M{x:.1f},{y:.1f}"]
    for to_x, to_y in rest:
        bend = (to_y - y) * 0.5
        straight = abs(to_x - x) < 0.5
        parts.append(
            f"L{to_x:.1f},{to_y:.1f}"
            if straight
            else f"C{x:.1f},{y + bend:.1f} {to_x:.1f},{to_y - bend:.1f} {to_x:.1f},{to_y:.1f}"
        )
        x, y = to_x, to_y
    return " ".join(parts)


def _box(index: int, node: Node, place: Point, subgraph: TunedSubgraph | None, longest: float) -> str:
    """The title, the shape of what comes out, the latency; at the bottom a bar, full for the slowest of all."""
    x, y = place[0] - _WIDTH / 2, place[1]
    shape = node.ops[-1].partition(": ")[2] if node.ops else ""
    time = seconds_text(subgraph.tuned_s) if subgraph and subgraph.tuned_s else ""
    share = subgraph.tuned_s / longest if subgraph and longest else 0.0
    kind = f"node kind-{node.kind}" + ("" if node.subgraph else " in-main")
    label = f"{node.title}, {shape}" + (f", {time}" if time else "")
    return (
        f'<g class="{kind}" id="box-{index}" data-node="{index}" data-subgraph="{escape(node.subgraph)}" tabindex="0" '
        f'role="button" aria-label="{escape(label)}" transform="translate({x:.1f},{y:.1f})">'
        f'<rect class="body" width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" rx="5"/>'
        f'<rect class="mark" width="4" height="{_HEIGHT:.0f}" rx="2"/>'
        f'<text class="title" x="14" y="20">{escape(_cut(node.title, _CHARS))}</text>'
        f'<text class="sub" x="14" y="37">{escape(_cut(shape, _CHARS))}</text>'
        f'<text class="sub time" x="{_WIDTH - 10:.0f}" y="37">{escape(time)}</text>'
        f'<rect class="share" x="4" y="{_HEIGHT - 3:.0f}" width="{share * (_WIDTH - 8):.1f}" height="3"/></g>'
    )


def _explained(node: Node, known: Mapping[str, TunedSubgraph]) -> str:
    """What the panel shows of a box."""
    subgraph = known.get(node.subgraph)
    parts = [f"<h3>{escape(node.title)}</h3>"]
    if node.subgraph:
        parts.append(f'<p class="name">{escape(node.subgraph)}</p>')
    else:
        parts.append('<p class="about">No kernel of its own: it stays in the main program.</p>')
    if subgraph:
        parts.append(_figures(subgraph))
    parts += ["<h4>Ops</h4>", _items(node.ops, "ops")]
    if node.ends:
        parts += [f"<h4>{'Why it ends here' if node.subgraph else 'Why'}</h4>", _items(node.ends, "ends")]
    if subgraph and subgraph.candidates:
        parts.append(_candidates(subgraph))
    return "".join(parts)


def _figures(one: TunedSubgraph) -> str:
    gain = f" <em>{times_text(one.gain)}</em>" if one.default_s and one.tuned_s else ""
    rows = [("default", seconds_text(one.default_s))] if one.default_s or not one.tuned_s else []
    rows.append(("tuned", f"{seconds_text(one.tuned_s)}{gain}"))
    rows += [("predicted", seconds_text(one.predicted_s))] if one.predicted_s else []
    roof = f"{seconds_text(one.bound_s)} <em>by {one.limit}</em>"
    if one.tuned_s and one.bound_s:
        roof += f" <em>{one.bound_s / one.tuned_s:.0%} reached</em>"
    rows.append(("roofline", roof))
    rows.append(("work", f"{count_text(one.flops, 'FLOP')}, {bytes_text(one.nbytes)}"))
    rows.append(("intensity", f"{one.intensity:.3g} FLOP/B"))
    rows.append(("calls in a run", str(one.uses)))
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    return f'<dl class="figures">{body}</dl><h4>Schedule</h4><p class="schedule">{escape(one.schedule)}</p>'


def _candidates(one: TunedSubgraph) -> str:
    """The fastest and some that failed, with what the policy had expected of them."""
    timed = [tried for tried in one.candidates if not tried.failure]
    failed = [tried for tried in one.candidates if tried.failure]
    shown = timed[: _LISTED - min(2, len(failed))]
    rows = [_candidate_row(tried) for tried in [*shown, *failed[: _LISTED - len(shown)]]]
    said = f"{one.tried} tried" + (f", {one.failed} failed" if one.failed else "")
    head = "<tr><th>schedule</th><th>predicted</th><th>measured</th></tr>"
    return (
        f'<h4>Candidates <span class="about">{said}</span></h4><table class="candidates">{head}{"".join(rows)}</table>'
    )


def _candidate_row(tried: Tried) -> str:
    measured = seconds_text(tried.measured_s)
    if tried.failure:
        measured = f'<span class="failed" title="{escape(tried.message)}">{escape(tried.failure)}</span>'
    predicted = seconds_text(tried.predicted_s)
    return f"<tr><td>{escape(tried.schedule)}</td><td>{predicted}</td><td>{measured}</td></tr>"


def _items(lines: Sequence[str], name: str) -> str:
    return f'<ul class="{name}">' + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"

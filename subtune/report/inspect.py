"""Showing a partition: text for people, JSON for machines, DOT and SVG for the eye."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from textwrap import shorten
from typing import Any

import networkx as nx

from subtune.core.graph import Group, InFloats, Kind, Origin, PartitionGraph, Subgraph, Value
from subtune.report.compile_report import choices_json, choices_text, in_floats_text
from subtune.tuning.choose import Choice

COLOURS = {
    Kind.CONTRACTION: "#cfe3ff",
    Kind.REDUCTION: "#ffe7c2",
    Kind.NORMALIZATION: "#ffe7c2",
    Kind.POOLING: "#ffe7c2",
    Kind.GATHER: "#e9dcff",
    Kind.OTHER: "#e9dcff",
    Kind.ELEMENTWISE: "#d8f2d8",
    Kind.MOVEMENT: "#d8f2d8",
    Kind.VIEW: "#f4f4f4",
    Kind.OPAQUE: "#ffd4d4",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One group beside its workload. `uses` counts the groups that share the workload."""

    group: Group
    subgraph: Subgraph | None


def rows(graph: PartitionGraph, subgraphs: Iterable[Subgraph] = (), calls: Iterable[str] = ()) -> tuple[Row, ...]:
    """Put each group beside its workload.

    Args:
        subgraphs: what `extract` found in the outlined module.
        calls: the PrimFunc each group became, in the groups' order, as `subtune.passes.extract.call_names` gives them.
    """
    by_name = {subgraph.name: subgraph for subgraph in subgraphs}
    found = [by_name.get(name) for name in calls] or [None] * len(graph.groups)
    return tuple(Row(group, subgraph) for group, subgraph in zip(graph.groups, found, strict=True))


def to_text(
    graph: PartitionGraph,
    table: Sequence[Row],
    choices: Sequence[Choice] = (),
    left: Sequence[InFloats] = (),
    *,
    why: bool = True,
) -> str:
    """A table, one row a group; under it, if `why`, the reasons why the group ends where it does.

    Then comes what of a quantised model is `left` in floats. Last come the regions that may be grouped in other ways:
    what is known of each, and which is taken.
    """
    header = ("#", "subgraph", "anchor", "prologue", "epilogue", "inputs", "output", "MFLOP", "KiB", "FLOP/B", "uses")
    body = [_cells(graph, i, row) for i, row in enumerate(table)]
    reasons = [row.group.boundary for row in table]
    widths = [max(len(line[c]) for line in [header, *body]) for c in range(len(header))]
    right = {0, 7, 8, 9, 10}

    def line(cells: tuple[str, ...]) -> str:
        padded = (
            cell.rjust(w) if c in right else cell.ljust(w)
            for c, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    lines = [line(header), "  ".join("-" * w for w in widths)]
    for cells, sentences in zip(body, reasons, strict=True):
        lines.append(line(cells))
        if why:
            lines += [f"{'':{widths[0]}}    ends: {sentence}" for sentence in sentences]
    for op in graph.left:
        lines.append(f"{'':{widths[0]}}  {op.name} stays in main ({op.reason})")
    lines.append(_total(graph, table))
    lines += in_floats_text(left)
    lines += choices_text(choices, why=why)
    return "\n".join(lines)


def to_json(
    graph: PartitionGraph, table: Sequence[Row], choices: Sequence[Choice] = (), left: Sequence[InFloats] = ()
) -> str:
    """The same for machines: groups in execution order, what is left in main and in floats, and the regions."""
    groups = [
        {
            "name": row.group.name,
            "anchor": _op(graph, row.group.anchor),
            "prologue": [_op(graph, name) for name in row.group.prologue],
            "epilogue": [_op(graph, name) for name in row.group.epilogue],
            "inputs": [_value(value) for value in row.group.inputs],
            "outputs": [_value(value) for value in row.group.outputs],
            "boundary": list(row.group.boundary),
            "workload": row.subgraph.summary() if row.subgraph else None,
        }
        for row in table
    ]
    in_main = [{"name": item.name, "op": graph.op(item.name).op, "reason": item.reason} for item in graph.left]
    found = {"groups": groups, "left": in_main, "in_floats": [asdict(one) for one in left]}
    return json.dumps({**found, "regions": choices_json(choices)}, indent=1)


def to_dot(graph: PartitionGraph, table: Sequence[Row]) -> str:
    """Graphviz: one box a group, its ops listed; views and opaque ops as small boxes."""
    lines = ["digraph partition {", "  node [shape=box, style=filled, fontname=Helvetica, fontsize=10];"]
    for name, text, colour, tip in _boxes(graph, table):
        label = "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in text)
        tooltip = tip.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  "{name}" [label="{label}", fillcolor="{colour}", tooltip="{tooltip}"];')
    lines += [f'  "{a}" -> "{b}";' for a, b in graph.quotient().edges]
    return "\n".join([*lines, "}", ""])


def to_svg(graph: PartitionGraph, table: Sequence[Row]) -> str:
    """A layered drawing: a row for each step of the longest path, an arrow for each tensor."""
    quotient = graph.quotient()
    boxes = {name: (text, colour, tip) for name, text, colour, tip in _boxes(graph, table)}
    width, line_height, gap = 250, 13, 34
    layers = [sorted(layer) for layer in nx.topological_generations(quotient)]
    columns = max((len(layer) for layer in layers), default=1)
    places: dict[str, tuple[float, float, float]] = {}
    y = 20.0
    for layer in layers:
        layer.sort(key=lambda name: (_mean_x(quotient, places, name), name))
        tallest = max(len(boxes[name][0]) for name in layer) * line_height + 10
        start = 20 + (columns - len(layer)) * (width + 20) / 2
        for i, name in enumerate(layer):
            places[name] = (start + i * (width + 20), y, len(boxes[name][0]) * line_height + 10)
        y += tallest + gap
    total = columns * (width + 20) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{y:.0f}" font-family="Helvetica,sans-serif" '
        'font-size="10">',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>',
    ]
    for a, b in quotient.edges:
        (xa, ya, ha), (xb, yb, _) = places[a], places[b]
        x1, y1, x2, y2 = xa + width / 2, ya + ha, xb + width / 2, yb
        bend = (y2 - y1) / 2
        parts.append(
            f'<path d="M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}" '
            'fill="none" stroke="#666" marker-end="url(#a)"/>'
        )
    for name, (x, top, height) in places.items():
        text, colour, tip = boxes[name]
        parts.append(f"<g><title>{escape(tip)}</title>")
        parts.append(
            f'<rect x="{x:.0f}" y="{top:.0f}" width="{width}" height="{height:.0f}" rx="4" fill="{colour}" '
            'stroke="#888"/>'
        )
        for i, part in enumerate(text):
            weight = ' font-weight="bold"' if i == 0 else ""
            parts.append(
                f'<text x="{x + 6:.0f}" y="{top + 14 + i * line_height:.0f}"{weight}>{escape(_cut(part, 46))}</text>'
            )
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _boxes(graph: PartitionGraph, table: Sequence[Row]) -> list[tuple[str, list[str], str, str]]:
    """(node of the quotient, lines of text, colour, tooltip) for each group and each op left in main."""
    found = []
    for row in table:
        group = row.group
        text = [graph.op(group.anchor).op + ("" if len(group.ops) == 1 else f" + {len(group.ops) - 1}")]
        text += [f"{name}: {graph.op(name).output}" for name in group.ops]
        if row.subgraph is not None:
            s = row.subgraph
            text.append(f"{s.flops / 1e6:.2f} MFLOP, {s.nbytes / 1024:.0f} KiB, {s.intensity:.1f} FLOP/B, x{s.uses}")
        found.append((group.anchor, text, COLOURS[graph.op(group.anchor).kind], "\n".join(group.boundary)))
    for left in graph.left:
        op = graph.op(left.name)
        found.append((left.name, [f"{left.name}: {op.kind.value}"], COLOURS[op.kind], left.reason))
    return found


def _mean_x(quotient: nx.DiGraph, places: Mapping[str, tuple[float, float, float]], name: str) -> float:
    xs = [places[p][0] for p in quotient.predecessors(name) if p in places]
    return sum(xs) / len(xs) if xs else 0.0


def _cells(graph: PartitionGraph, index: int, row: Row) -> tuple[str, ...]:
    group, subgraph = row.group, row.subgraph
    inputs = " ".join(_brief(value) for value in group.inputs if value.origin is not Origin.CONSTANT)
    weights = sum(1 for value in group.inputs if value.origin is Origin.CONSTANT and value.tensor.numel > 1)
    if weights:
        inputs += f" +{weights} const"
    figures = ("", "", "", "")
    if subgraph is not None:
        figures = (
            f"{subgraph.flops / 1e6:.2f}",
            f"{subgraph.nbytes / 1024:.0f}",
            f"{subgraph.intensity:.1f}",
            str(subgraph.uses),
        )
    return (
        str(index),
        subgraph.name if subgraph else group.name,
        graph.op(group.anchor).op,
        shorten(" ".join(graph.op(name).short for name in group.prologue), 40, placeholder=" …") or "-",
        shorten(" ".join(graph.op(name).short for name in group.epilogue), 40, placeholder=" …") or "-",
        shorten(inputs.strip(), 60, placeholder=" …"),
        " ".join(_brief(value) for value in group.outputs),
        *figures,
    )


def _total(graph: PartitionGraph, table: Sequence[Row]) -> str:
    known = [row.subgraph for row in table if row.subgraph is not None]
    distinct = len({subgraph.name for subgraph in known})
    text = f"{len(graph.dag)} ops in {len(table)} subgraphs"
    if known:
        flops = sum(subgraph.flops for subgraph in known)
        text += f", {distinct} of them distinct; {flops / 1e9:.2f} GFLOP"
    if graph.left:
        text += f"; {len(graph.left)} ops left in main"
    return text


def _brief(value: Value) -> str:
    """`f32[1,56,56,64]`"""
    dtype = value.tensor.dtype.replace("float", "f").replace("uint", "u").replace("int", "i")
    return f"{dtype}[{','.join(map(str, value.tensor.shape))}]"


def _op(graph: PartitionGraph, name: str) -> dict[str, str]:
    return {"name": name, "op": graph.op(name).op}


def _value(value: Value) -> dict[str, Any]:
    tensor = value.tensor
    return {
        "from": value.origin.value,
        "source": value.source,
        "index": value.index,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
    }

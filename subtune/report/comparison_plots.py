"""The plots of a comparison as inline SVG, drawn by matplotlib (extra `plots`), in colours that the page's CSS sets.

Matplotlib writes colours into the drawing. Each is one that nobody would choose, and is replaced by a CSS variable, so
that the page decides what it looks like by day and by night.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from subtune.report.comparison import OP, SUBGRAPH, ComparedSubgraph
from subtune.tuning.roofline import Placed

_TEXT, _FAINT, _GRID, _OP, _OWN, _PAGE = "#010101", "#010102", "#010103", "#010104", "#010105", "#010106"
VARIABLES = {_TEXT: "text", _FAINT: "faint", _GRID: "grid", _OP: "op", _OWN: "own", _PAGE: "page"}
"""What stands in a drawing -> the CSS variable of the page that takes its place."""
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left", "legend.frameon": False,
    "axes.facecolor": "none", "axes.grid": True, "axes.axisbelow": True, "grid.color": _GRID, "grid.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _FAINT, "axes.labelcolor": _FAINT,
    "text.color": _TEXT, "axes.titlecolor": _TEXT, "xtick.color": _FAINT, "ytick.color": _FAINT, "lines.color": _OP,
}  # fmt: skip
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_WIDTH_IN = 9.0
_COLUMNS = 3
_NAME = 27

_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")

Numbered = Sequence[tuple[int, ComparedSubgraph]]
"""Rows with their numbers in the page's table."""


def rankings_plot(rows: Numbered) -> str:
    """A panel for each row, which has points: seconds on the op against seconds on the subgraph, a dot a candidate."""
    lines = -(-len(rows) // _COLUMNS)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(lines, _COLUMNS, squeeze=False).flat
        for panel, (number, row) in zip(panels, rows, strict=False):
            _ranking_panel(panel, number, row)
        for panel in list(panels)[len(rows) :]:
            panel.set_visible(False)
        handles = [Line2D([], [], linestyle="", **marker) for marker in _MARKERS.values()]
        figure.legend(handles, list(_MARKERS), loc="outside upper left", ncols=3)

    return _svg("rankings", "time on the op alone against time on the subgraph", 0.5 + 2.3 * lines, draw)


def roofline_plot(rows: Numbered) -> str:
    """An arrow for each row, from the op alone to the subgraph, below the roofs of the device."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        places = [(number, *_place(row.op_placed), *_place(row.placed)) for number, row in rows]
        for number, op_x, op_y, x, y in places:
            arrow = {"arrowstyle": "->", "color": _FAINT, "linewidth": 0.8, "shrinkA": 3, "shrinkB": 3}
            axes.annotate("", (x, y), (op_x, op_y), arrowprops=arrow)
            axes.annotate(str(number), (x, y), (4, 3), textcoords="offset points", fontsize=7, color=_FAINT)
        columns = list(zip(*places, strict=True))
        axes.plot(columns[1], columns[2], "o", color=_OP, mfc=_PAGE, markersize=5, label="op alone")
        axes.plot(columns[3], columns[4], "o", color=_OWN, markersize=5, label="subgraph")
        _roofs(axes, rows)
        axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="10⁹ operations per second")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_PLAIN)
            axis.set_minor_formatter(NullFormatter())
        figure.legend(loc="outside upper left", ncols=3)

    return _svg("roofline", "op and subgraph below the roofline", 4.6, draw)


def losses_plot(rows: Numbered) -> str:
    """A bar for each row: microseconds of a run that the op's winner loses; grey where that is no more than noise."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        order = sorted(rows, key=lambda one: one[1].lost_s)
        names = [f"{number}: {shortened(row.name)}" for number, row in order]
        values = [row.lost_s * 1e6 for _, row in order]
        colours = [_BARS[row.faster] for _, row in order]
        axes.barh(range(len(order)), values, color=colours, height=0.6, tick_label=names)
        axes.axvline(0, color=_FAINT, linewidth=0.8)
        axes.set_xlabel("microseconds of a run of the model")
        axes.grid(False, axis="y")

    return _svg("losses", "time lost by tuning at op level", 0.9 + 0.28 * len(rows), draw)


def shortened(name: str) -> str:
    """`name` without its middle, where it is long: names differ at the end as often as at the beginning."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 13]}…{name[-12:]}"


_BARS = {SUBGRAPH: _OP, OP: _OWN, "": _FAINT}
_MARKERS: dict[str, dict[str, Any]] = {
    "candidate": {"color": _FAINT, "marker": "o", "markersize": 4},
    "the op's winner": {"color": _OP, "marker": "s", "markersize": 9, "mfc": "none"},
    "the subgraph's winner": {"color": _OWN, "marker": "D", "markersize": 6, "mfc": "none"},
}


def _ranking_panel(panel: Any, number: int, row: ComparedSubgraph) -> None:
    winners = ("", row.op_winner, row.subgraph_winner)
    for winner, marker in zip(winners, _MARKERS.values(), strict=True):
        points = [point for point in row.ranking.points if winner in ("", point.candidate)]
        panel.plot([p.op_s * 1e6 for p in points], [p.subgraph_s * 1e6 for p in points], linestyle="", **marker)
    panel.set_title(f"{number}: {shortened(row.name)}\ntau {row.ranking.tau:.2f}")
    panel.set(xlabel="op alone, us", ylabel="subgraph, us")
    panel.set(xscale="log", yscale="log")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(4))
        axis.set_major_formatter(_PLAIN)
        axis.set_minor_locator(NullLocator())


def _place(one: Placed) -> tuple[float, float]:
    return one.position.intensity, one.flops_per_s / 1e9


def _roofs(axes: Any, rows: Numbered) -> None:
    """Of every rate that a row has: what memory brings, up to what the arithmetic takes."""
    positions = [one for _, row in rows for one in (row.op_placed.position, row.placed.position)]
    roofs = sorted({(one.flops_per_s, one.bytes_per_s) for one in positions})
    ridges = [flops / nbytes for flops, nbytes in roofs]
    intensities = [one.intensity for one in positions]
    low, high = min(intensities + ridges) / 2, max(intensities + ridges) * 3
    for (flops, nbytes), ridge in zip(roofs, ridges, strict=True):
        xs = np.array([low, ridge, high])
        axes.plot(xs, np.minimum(xs * nbytes, flops) / 1e9, color=_TEXT, linewidth=1)
        text = f"{flops / 1e9:,.0f}·10⁹ operations/s, {nbytes / 1e9:,.0f} GB/s"
        axes.annotate(text, (high, flops / 1e9), (0, 4), textcoords="offset points", ha="right", fontsize=8)


def _svg(name: str, title: str, height_in: float, draw: Callable[[Figure], None]) -> str:
    """What `draw` draws as an element of an HTML page."""
    style: Any = {**_STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        draw(figure)
        text = StringIO()
        figure.savefig(text, format="svg", metadata=_NO_METADATA, facecolor="none")
    return _inline(text.getvalue(), name, title)


def _inline(drawing: str, name: str, title: str) -> str:
    """The `svg` element without what only a file of its own needs; ids are the page's, so each gets a prefix."""
    box = re.search(r'viewBox="[^"]*"', drawing)
    assert box, "matplotlib says how large it is"
    body = drawing[drawing.index("<g ") : drawing.rindex("</svg>")]
    body = body.replace("xlink:href=", "href=")
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    body = re.sub(r"font-family: [^;\"]*", "font-family: inherit", body)
    return f'<svg {box[0]} role="img" aria-label="{escape(title)}">\n{body}</svg>'

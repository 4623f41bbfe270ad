"""Charts as SVG text: bars for ratios, lines for a quantity over another. They follow the reader's light or dark mode.

Drawn by hand: a chart of a dozen bars needs no plotting library, and the same figures give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 760
_LABELS = 170
"""Pixels on the left for the rows' names, and on the right for their values."""
_VALUES = 60
_ROW = 26
_BAR = 14
COLOURS = ("one", "two", "three", "four", "five")
_LIGHT = ("#0550ae", "#bc4c00", "#8250df", "#1a7f37", "#a40e26")
_DARK = ("#79c0ff", "#ffa657", "#d2a8ff", "#7ee787", "#ff9492")


def _colours(text: str, faint: str, grid: str, bar: str, series: Sequence[str]) -> str:
    rules = [f"text {{ fill: {text} }} .faint {{ fill: {faint} }} .grid {{ stroke: {grid} }} .bar {{ fill: {bar} }}"]
    rules.append(f".even {{ stroke: {faint} }}")
    rules += [f".{name} {{ fill: {one}; stroke: {one} }}" for name, one in zip(COLOURS, series, strict=True)]
    return "\n".join([*rules, ".line { fill: none }"])


_STYLE = f"""<style>
text {{ font: 13px system-ui, -apple-system, "Segoe UI", sans-serif }}
.head {{ font-weight: 600; font-size: 15px }} .strong {{ font-weight: 600 }}
.even {{ stroke-dasharray: 4 3 }} .line {{ stroke-width: 2 }}
{_colours("#1f2328", "#59636e", "#d1d9e0", "#b6d5f8", _LIGHT)}
@media (prefers-color-scheme: dark) {{
{_colours("#e6edf3", "#9198a1", "#3d444d", "#1f4a80", _DARK)}
}}
</style>"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart: `value` is the bar, and written to the right of it; `marks` are the dots, by series."""

    label: str
    value: float
    marks: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a line chart, as (x, y), x growing."""

    label: str
    points: tuple[tuple[float, float], ...]


def bar_chart(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars from 0, a dashed line at 1, and a dot for every mark. `bars` may not be empty."""
    series = list(dict.fromkeys(name for bar in bars for name, _ in bar.marks))
    colour = dict(zip(series, COLOURS, strict=False))
    most = max(max(bar.value, *(value for _, value in bar.marks), 1.0) for bar in bars)
    top = 84 if series else 62
    height = top + _ROW * len(bars) + 26
    step = grid_step(most)
    scale = (_WIDTH - _LABELS - _VALUES) / (step * math.ceil(most / step))

    def x(value: float) -> float:
        return _LABELS + value * scale

    parts = [text_at(0, 18, title, "head"), text_at(0, 38, subtitle, "faint")]
    parts += legend(series, colour)
    for index in range(math.ceil(most / step) + 1):
        at = x(index * step)
        parts.append(rule(at, top - 4, at, height - 22, "grid"))
        parts.append(text_at(at, height - 6, f"{index * step:g}", "faint", "middle"))
    for index, bar in enumerate(bars):
        middle = top + _ROW * index + _ROW / 2
        parts.append(text_at(_LABELS - 10, middle + 4.5, bar.label, "", "end"))
        size = f'width="{bar.value * scale:.1f}" height="{_BAR}"'
        parts.append(f'<rect class="bar" x="{_LABELS}" y="{middle - _BAR / 2:g}" {size}/>')
        for name, value in bar.marks:
            parts.append(f'<circle class="{colour[name]}" cx="{x(value):.1f}" cy="{middle:g}" r="4"/>')
        parts.append(text_at(_WIDTH, middle + 4.5, f"{bar.value:.2f}", "strong", "end"))
    parts.append(rule(x(1), top - 4, x(1), height - 22, "even"))
    return svg(title, height, parts)


def histogram(title: str, subtitle: str, bins: Sequence[tuple[str, int]], even: int) -> str:
    """A row for each (label, count), and a dashed line above row `even`. `bins` may not be empty."""
    top = 62
    height = top + _ROW * len(bins) + 10
    most = max(max(count for _, count in bins), 1)
    scale = (_WIDTH - _LABELS - _VALUES) / most
    parts = [text_at(0, 18, title, "head"), text_at(0, 38, subtitle, "faint")]
    for index, (label, count) in enumerate(bins):
        middle = top + _ROW * index + _ROW / 2
        parts.append(text_at(_LABELS - 10, middle + 4.5, label, "", "end"))
        size = f'width="{count * scale:.1f}" height="{_BAR}"'
        parts.append(f'<rect class="bar" x="{_LABELS}" y="{middle - _BAR / 2:g}" {size}/>')
        parts.append(text_at(_WIDTH, middle + 4.5, str(count), "strong", "end"))
    parts.append(rule(0, top + _ROW * even, _WIDTH, top + _ROW * even, "even"))
    return svg(title, height, parts)


def line_chart(title: str, subtitle: str, across: str, lines: Sequence[Line]) -> str:
    """Curves over a logarithmic x axis named `across`; y runs from 0 to 1 and is written in per cent."""
    top, height, left = 84, 380, 50
    xs = [x for line in lines for x, _ in line.points]
    low, high = math.log2(min(xs)), math.log2(max(xs))

    def at(x: float, y: float) -> tuple[float, float]:
        share = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return left + share * (_WIDTH - left - 20), height - 46 - y * (height - 46 - top)

    parts = [text_at(0, 18, title, "head"), text_at(0, 38, subtitle, "faint")]
    colour = dict(zip((line.label for line in lines), COLOURS * len(lines), strict=False))
    parts += legend(list(colour), colour)
    for percent in (0, 20, 40, 60, 80, 100):
        y = at(2**low, percent / 100)[1]
        parts += [rule(left, y, _WIDTH - 20, y, "grid"), text_at(left - 8, y + 4, f"{percent}%", "faint", "end")]
    for x in sorted(set(xs)):
        parts.append(text_at(at(x, 0)[0], height - 26, f"{x:g}", "faint", "middle"))
    parts.append(text_at((left + _WIDTH - 20) / 2, height - 6, across, "faint", "middle"))
    for line in lines:
        places = [at(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="{colour[line.label]} line" points="{path}"/>')
        parts += [f'<circle class="{colour[line.label]}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places]
    return svg(title, height, parts)


def grid_step(most: float) -> float:
    """Between grid lines: 0.5, 1, 2, 5, 10, … so that there are at most eight."""
    return next(step * 10**power for power in range(9) for step in (0.5, 1.0, 2.0) if most <= 8 * step * 10**power)


def legend(series: Iterable[str], colour: dict[str, str]) -> list[str]:
    parts, x = [], 6.0
    for name in series:
        parts += [f'<circle class="{colour[name]}" cx="{x:g}" cy="56" r="4"/>', text_at(x + 10, 60.5, name, "")]
        x += 34 + 7.2 * len(name)
    return parts


def text_at(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def rule(x0: float, y0: float, x1: float, y1: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'


def svg(title: str, height: float, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", _STYLE, *parts, "</svg>"]) + "\n"

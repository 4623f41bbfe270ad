"""Several small line charts in one SVG, two beside each other: a quantity over another, both from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from subtune.bench.charts import COLOURS, Line, grid_step, legend, rule, svg, text_at

_WIDTH, _HEIGHT, _GAP = 366, 210, 28
_LEFT, _TOP, _BELOW = 44, 26, 40
_TOP_OF_ALL = 84
_MORE = ("six", "seven")
_DASHED_FROM = 4
"""Lines from here on are dashed: more than four colours are hard to tell apart."""
_STYLE = """<style>
.six { fill: #57606a; stroke: #57606a } .seven { fill: #9a6700; stroke: #9a6700 } .dashed { stroke-dasharray: 5 3 }
@media (prefers-color-scheme: dark) {
.six { fill: #afb8c1; stroke: #afb8c1 } .seven { fill: #d4a72c; stroke: #d4a72c }
.line { fill: none }
}
.line { fill: none }
</style>"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: curves over an axis named `across`, x growing; `lines` may not be empty."""

    title: str
    across: str
    lines: tuple[Line, ...]


def panels(title: str, subtitle: str, unit: str, shown: Sequence[Panel]) -> str:
    """The charts in rows of two. Lines of one label have one colour in all of them; `unit` is that of y."""
    labels = list(dict.fromkeys(line.label for panel in shown for line in panel.lines))
    colours = (*COLOURS, *_MORE)
    colour = {label: colours[index % len(colours)] for index, label in enumerate(labels)}
    dashed = set(labels[_DASHED_FROM:])
    parts = [_STYLE, text_at(0, 18, title, "head"), text_at(0, 38, subtitle, "faint")]
    parts += legend(labels, colour)
    for index, panel in enumerate(shown):
        x, y = (index % 2) * (_WIDTH + _GAP), _TOP_OF_ALL + (index // 2) * (_HEIGHT + _GAP)
        parts += _panel(panel, x, y, unit, colour, dashed)
    height = _TOP_OF_ALL + -(-len(shown) // 2) * (_HEIGHT + _GAP)
    return svg(title, height, parts)


def _panel(panel: Panel, left: float, top: float, unit: str, colour: dict[str, str], dashed: set[str]) -> list[str]:
    most_x = max(x for line in panel.lines for x, _ in line.points)
    most_y = max(y for line in panel.lines for _, y in line.points)
    step = grid_step(most_y)
    highest = step * -(-most_y // step)

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + _LEFT + x / most_x * (_WIDTH - _LEFT - 8)
        return across, top + _HEIGHT - _BELOW - y / highest * (_HEIGHT - _BELOW - _TOP)

    parts = [text_at(left, top + 12, panel.title, "strong")]
    value = 0.0
    while value <= highest * 1.001:
        (begin, y), (end, _) = at(0, value), at(most_x, value)
        parts += [rule(begin, y, end, y, "grid"), text_at(begin - 6, y + 4, f"{value:g}", "faint", "end")]
        value += step
    for x in dict.fromkeys((0, most_x / 4, most_x / 2, 3 * most_x / 4, most_x)):
        parts.append(text_at(at(x, 0)[0], top + _HEIGHT - _BELOW + 16, f"{x:g}", "faint", "middle"))
    parts.append(text_at(left + _WIDTH, top + _HEIGHT - 6, f"{panel.across}; {unit}", "faint", "end"))
    for line in panel.lines:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line.points))
        style = f"{colour[line.label]} line" + (" dashed" if line.label in dashed else "")
        parts.append(f'<polyline class="{style}" points="{path}"/>')
    return parts

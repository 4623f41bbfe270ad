"""What the page says of a model of many shapes: its latency over the shape, and which kernel is taken where."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeVar

import altair as alt

from subtune.core.account import Account, LatencyAt, ShapedSubgraph
from subtune.core.html import table
from subtune.core.manifest import Manifest
from subtune.core.units import seconds_text
from subtune.report.page import charts
from subtune.report.page.sections import Figure, Section

_LATENCY = """What all kernels of a run take together, at every shape of the domain: what the tuner expects, from the
instances that it measured."""
_KERNELS = """Each line is a kernel, and each dot a shape at which it was timed. Blue ones ship, and comparisons in the
host's code take one of them; the table says where. Grey ones do not ship: few are kept, even if another is a little
faster somewhere."""
_T = TypeVar("_T")
_STATES = ("ships", "does not ship")
_SHOWN = 8
"""Subgraphs whose kernels are drawn: those with the most time."""


def greatest(manifest: Manifest) -> str:
    """A sentence on which instance times are of; "" for a model of one shape."""
    return f" Times are those of {_said(manifest, -1)}." if manifest.domain.symbols else ""


def headline(manifest: Manifest, account: Account | None) -> list[tuple[str, str, str]]:
    """(figure, what it is, a detail) of the least and the greatest shape."""
    if account is None or not account.latencies:
        return []
    ends = ((account.latencies[0], "at the least", 0), (account.latencies[-1], "at the greatest", -1))
    return [(seconds_text(one.seconds), name, _said(manifest, end)) for one, name, end in ends]


def latency(manifest: Manifest, account: Account) -> Section:
    """The latency of a run at the shapes of the domain."""
    names = manifest.domain.names
    found = account.latencies
    parts = (Figure("latency", "Latency of a run over the shape", _over_shape(names, found)),) if len(found) > 1 else ()
    return Section("latency-section", "Latency over the shape", _LATENCY, parts)


def kernels(manifest: Manifest, account: Account) -> Section:
    """Of the subgraphs with the most time, and a table of all."""
    time = {one.name: one.total_s for one in account.subgraphs}
    order = sorted(account.shaped, key=lambda one: -time.get(one.name, 0.0))
    parts: list[Figure | str] = []
    for number, one in enumerate(order[:_SHOWN]):
        parts.append(f"<h3>{escape(one.name)}</h3>{_about(one)}")
        if len(one.extents) == 1 and len(one.instances) > 1:
            title = f"Kernels of {one.name} over {one.extents[0]}"
            parts.append(Figure(f"shaped-{number}", title, _over_extent(one)))
        parts.append(f"<details><summary>Which kernel is taken where</summary>{_taken(one)}</details>")
    more = f" Shown are the {_SHOWN} with the most time of {len(order)}." if len(order) > _SHOWN else ""
    return Section("shapes", "Kernels by shape", _KERNELS + more, tuple(parts))


def _said(manifest: Manifest, end: int) -> str:
    return ", ".join(f"{symbol.name}={symbol.values[end]}" for symbol in manifest.domain.symbols)


def _about(one: ShapedSubgraph) -> str:
    ships = sum(kernel.ships for kernel in one.kernels)
    said = f"{ships} kernels ship" if ships != 1 else "1 kernel ships"
    varies = f"{', '.join(one.extents)} {'vary' if len(one.extents) > 1 else 'varies'}"
    return (
        f'<p class="about">{escape(varies)}; {said}; at the worst shape the one that is taken takes '
        f"{one.worst_regret:.1%} longer than the fastest.</p>"
    )


def _taken(one: ShapedSubgraph) -> str:
    if one.spans:
        rows = [(_span(span.first, span.last), one.kernels[span.kernel].schedule) for span in one.spans]
        return table((one.extents[0], "kernel"), rows)
    return table(("kernel",), [(kernel.schedule,) for kernel in one.kernels if kernel.ships])


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def _over_shape(names: tuple[str, ...], found: Sequence[LatencyAt]) -> charts.Spec:
    """Of the symbol with the most values; a line for some values of the others: least, greatest, and some between."""
    axis = max(range(len(names)), key=lambda i: len({one.values[i] for one in found}))
    rest = sorted({_without(one.values, axis) for one in found})
    shown = {rest[0], rest[len(rest) // 2], rest[-1]}
    others = _without(names, axis)
    rows = [
        {
            "at": one.values[axis],
            "ms": one.seconds * 1e3,
            "time": seconds_text(one.seconds),
            "others": ", ".join(f"{name}={value}" for name, value in zip(others, kept, strict=True)),
        }
        for one in found
        if (kept := _without(one.values, axis)) in shown
    ]
    last = max(one.values[axis] for one in found)
    steps = alt.Axis(tickMinStep=1, format="d")
    base = alt.Chart(charts.data(rows)).encode(
        x=alt.X("at:Q", title=names[axis], axis=steps, scale=alt.Scale(nice=False)),
        y=alt.Y("ms:Q", title="milliseconds of a run"),
        detail="others:N",
        tooltip=charts.tips_of((alt.Tooltip("at:Q", title=names[axis]), "time", *(["others"] if others else []))),
    )
    line, dots = base.mark_line(color=charts.ACCENT), base.mark_circle(size=14, color=charts.ACCENT)
    named = base.transform_filter(f"datum.at == {last}").mark_text(align="right", dx=-4, dy=-9, color=charts.FAINT)
    return charts.sized(alt.layer(line, dots, named.encode(text="others:N")), 240)


def _without(values: tuple[_T, ...], index: int) -> tuple[_T, ...]:
    return (*values[:index], *values[index + 1 :])


def _over_extent(one: ShapedSubgraph) -> charts.Spec:
    rows = [
        {
            "extent": at[0],
            "us": seconds * 1e6,
            "kernel": kernel.schedule,
            "number": number,
            "what": _STATES[0 if kernel.ships else 1],
            "time": seconds_text(seconds),
            "strength": 0.9 if kernel.ships else 0.35,
        }
        for number, kernel in enumerate(one.kernels)
        for at, seconds in zip(one.instances, kernel.measured_s, strict=True)
        if seconds and at[0] > 0
    ]
    rows.sort(key=lambda row: (row["what"] == _STATES[0], row["number"], row["extent"]))
    scale: Any = alt.Scale(type="log", nice=False, padding=10)
    colours = alt.Scale(domain=list(_STATES), range=[charts.ACCENT, charts.FAINT])
    base = alt.Chart(charts.data(rows)).encode(
        x=alt.X("extent:Q", scale=scale, title=one.extents[0], axis=charts.decades(format="~g")),
        y=alt.Y("us:Q", scale=scale, title="microseconds of one call", axis=charts.decades(format="~g")),
        detail="number:N",
        color=alt.Color("what:N", scale=colours, legend=None),
        opacity=alt.Opacity("strength:Q", scale=None),
        tooltip=charts.tips_of(("kernel", "what", "extent", "time")),
    )
    return charts.sized(alt.layer(base.mark_line(strokeWidth=1.5), base.mark_circle(size=30)), 260)

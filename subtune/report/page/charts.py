"""The page's charts, as Vega-Lite specifications made with Altair. Colours are the page's variables: light or dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from subtune.core.account import Account, MemoryUse, TunedSubgraph
from subtune.core.units import bytes_text, count_text, seconds_text

BARS = 24
"""Subgraphs that are shown by name: those with the most time."""
_POINTS = 3000
_NAME = 34
ACCENT, OTHER, FAINT, GRID, TEXT = "var(--accent)", "var(--other)", "var(--faint)", "var(--grid)", "var(--text)"
_LABELS: Any = {"expr": "windowSize()[0] < 700 ? 130 : 260"}
"""Pixels that names may take of a phone's screen, and of a larger one."""
_STATES = ("roofline", "tuned", "default")

Spec = dict[str, Any]


def time_by_subgraph(subgraphs: Sequence[TunedSubgraph]) -> Spec:
    """A bar for each subgraph: its share of a run."""
    total = sum(one.total_s for one in subgraphs)
    rows = [
        {
            "name": label(one),
            "subgraph": one.name,
            "ms": one.total_s * 1e3,
            "share": one.total_s / total,
            "time": seconds_text(one.total_s),
            "calls": one.uses,
            "schedule": one.schedule,
        }
        for one in _longest(subgraphs)
    ]
    tips = ("subgraph", "time", alt.Tooltip("share:Q", format=".1%"), "calls", "schedule")
    bars = (
        alt.Chart(data(rows))
        .mark_bar(color=ACCENT, height=11, cornerRadiusEnd=2)
        .encode(
            x=alt.X("ms:Q", title="milliseconds of a run", axis=alt.Axis(tickCount=8)),
            y=alt.Y("name:N", sort=None, title=None),
            tooltip=tips_of(tips),
        )
    )
    return sized(bars, 22 * len(rows) + 10)


def against_bounds(subgraphs: Sequence[TunedSubgraph]) -> Spec:
    """Of one call of each: the roofline, what ships, the default schedule."""
    shown = _longest(subgraphs)
    rows = [
        {"name": label(one), "subgraph": one.name, "us": seconds * 1e6, "what": state, "time": seconds_text(seconds)}
        for one in shown
        for state, seconds in zip(_STATES, (one.bound_s, one.tuned_s, one.default_s), strict=True)
        if seconds
    ]
    base = alt.Chart(data(rows)).encode(y=alt.Y("name:N", sort=None, title=None))
    scale = alt.Scale(type="log", nice=False, padding=12)
    lines = base.mark_line(color=GRID, strokeWidth=2).encode(
        x=alt.X("us:Q", scale=scale, title="microseconds of one call", axis=decades(format="~g")), detail="name:N"
    )
    dots = base.encode(x=alt.X("us:Q", scale=scale), color=_states(), tooltip=tips_of(("subgraph", "what", "time")))
    ticks = dots.transform_filter("datum.what == 'roofline'").mark_tick(thickness=2, size=13)
    others = dots.transform_filter("datum.what != 'roofline'").mark_circle(size=58, opacity=1)
    return sized(alt.layer(lines, ticks, others), 22 * len(shown) + 30)


def roofline(subgraphs: Sequence[TunedSubgraph]) -> Spec | None:
    """Default and tuned kernels below the device's roofs; None where nothing computes and is measured."""
    placed = [one for one in subgraphs if one.tuned_s and one.flops and one.nbytes]
    if not placed:
        return None
    points = [
        {
            "subgraph": one.name,
            "what": state,
            "intensity": one.intensity,
            "rate": one.flops / seconds / 1e9,
            "speed": count_text(one.flops / seconds, "FLOP/s"),
            "time": seconds_text(seconds),
            "reached": one.bound_s / seconds,
            "ms": max(one.total_s * 1e3, 1e-6),
        }
        for one in placed
        for state, seconds in (("default", one.default_s), ("tuned", one.tuned_s))
        if seconds
    ]
    x = alt.X("intensity:Q", scale=_log(), title="operations per byte", axis=decades(format="~g"))
    y = alt.Y("rate:Q", scale=_log(), title="10⁹ operations per second", axis=decades(format="~g"))
    roof = alt.Chart(data(_roofs(placed))).encode(x=x, y=y)
    roofs = roof.mark_line(color=FAINT, strokeWidth=1.5).encode(detail="roof:N")
    names = roof.mark_text(color=FAINT, fontSize=11, align="right", dy=-8).encode(text="rates:N")
    arrows = alt.Chart(data(points)).mark_line(color=GRID, strokeWidth=1).encode(x=x, y=y, detail="subgraph:N")
    dots = (
        alt.Chart(data(points))
        .mark_circle(opacity=0.85)
        .encode(
            x=x,
            y=y,
            size=alt.Size("ms:Q", scale=alt.Scale(range=[30, 420]), legend=None),
            color=_states(("tuned", "default")),
            tooltip=tips_of(("subgraph", "what", "time", "speed", alt.Tooltip("reached:Q", format=".0%"))),
        )
    )
    zoom = alt.selection_interval(bind="scales")
    return sized(alt.layer(roofs, names, arrows, dots.add_params(zoom)), 380)


def _roofs(placed: Iterable[TunedSubgraph]) -> list[Spec]:
    """A line for each pair of rates: what memory brings, up to what the arithmetic takes."""
    rows = list(placed)
    found = sorted({(one.flops_per_s, one.bytes_per_s) for one in rows if one.flops_per_s and one.bytes_per_s})
    ridges = [flops / nbytes for flops, nbytes in found]
    intensities = [one.intensity for one in rows]
    low, high = min([*intensities, *ridges]) / 2, max([*intensities, *ridges]) * 3
    return [
        {
            "roof": i,
            "intensity": at,
            "rate": min(at * nbytes, flops) / 1e9,
            "rates": f"{count_text(flops, 'FLOP/s')}, {count_text(nbytes, 'B/s')}" if at == high else "",
        }
        for i, ((flops, nbytes), ridge) in enumerate(zip(found, ridges, strict=True))
        for at in (low, ridge, high)
    ]


def predictions(account: Account) -> Spec | None:
    """Every candidate that was timed: what the policy expected against what was measured."""
    rows = [
        {
            "subgraph": subgraph.name,
            "schedule": one.schedule,
            "predicted": one.predicted_s * 1e6,
            "measured": one.measured_s * 1e6,
            "ships": "ships" if subgraph.uses and one.schedule == subgraph.schedule else "candidate",
        }
        for subgraph in (*account.subgraphs, *account.others)
        for one in subgraph.candidates
        if one.predicted_s and one.measured_s
    ][:_POINTS]
    rows.sort(key=lambda row: row["ships"])  # what ships is drawn last, on top
    if len(rows) < 2:
        return None
    values = [value for row in rows for value in (row["predicted"], row["measured"])]
    low, high = min(values) / 1.5, max(values) * 1.5  # type: ignore[type-var, operator]
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    x = alt.X("predicted:Q", scale=scale, title="predicted, microseconds", axis=decades(format="~g"))
    y = alt.Y("measured:Q", scale=scale, title="measured, microseconds", axis=decades(format="~g"))
    diagonal = [{"predicted": at, "measured": at} for at in (low, high)]
    line = alt.Chart(data(diagonal)).mark_line(color=FAINT, strokeDash=[4, 4], strokeWidth=1).encode(x=x, y=y)
    colour = alt.Color("ships:N", scale=alt.Scale(domain=["ships", "candidate"], range=[ACCENT, FAINT]), legend=None)
    tips = ("subgraph", "schedule", _number("predicted"), _number("measured"))
    dots = (
        alt.Chart(data(rows)).mark_circle(size=34, opacity=0.75).encode(x=x, y=y, color=colour, tooltip=tips_of(tips))
    )
    zoom = alt.selection_interval(bind="scales")
    return sized(alt.layer(line, dots.add_params(zoom)), 340)


def search_over_time(account: Account) -> Spec | None:
    """When each candidate had its outcome, and how it compares with the best of its subgraph; failures on top."""
    rows: list[Spec] = []
    for subgraph in (*account.subgraphs, *account.others):
        best = min((one.measured_s for one in subgraph.candidates if one.measured_s), default=0.0)
        for one in subgraph.candidates:
            about = {"subgraph": subgraph.name, "schedule": one.schedule, "seconds": one.at_s}
            if one.failure:
                rows.append({**about, "state": "failed", "outcome": f"{one.failure}: {one.message}"})
            elif best:
                slower = one.measured_s / best
                said = f"{seconds_text(one.measured_s)}, {slower:.2f} times the best"
                rows.append({**about, "state": "timed", "slower": slower, "outcome": said})
    if not rows or account.shaped:  # of many shapes it is not known when
        return None
    top = 1.25 * max([row["slower"] for row in rows if "slower" in row], default=2.0)
    for row in rows:
        row.setdefault("slower", top)
    x = alt.X("seconds:Q", title="seconds of tuning", scale=alt.Scale(nice=False, padding=8))
    y = alt.Y("slower:Q", scale=_log(), title="times the subgraph's best", axis=alt.Axis(format="~g"))
    state = alt.Scale(domain=["timed", "failed"], range=[ACCENT, OTHER])
    shape = alt.Shape("state:N", scale=alt.Scale(domain=["timed", "failed"], range=["circle", "cross"]), legend=None)
    dots = (
        alt.Chart(data(rows[:_POINTS]))
        .mark_point(size=30, filled=True, opacity=0.7)
        .encode(
            x=x,
            y=y,
            color=alt.Color("state:N", scale=state, legend=None),
            shape=shape,
            tooltip=tips_of(("subgraph", "schedule", "outcome", _number("seconds"))),
        )
    )
    return sized(dots, 300)


def failures(kinds: Mapping[str, int]) -> Spec | None:
    """How many candidates failed, by kind."""
    if not kinds:
        return None
    rows = [{"kind": kind, "candidates": count} for kind, count in kinds.items()]
    bars = (
        alt.Chart(data(rows))
        .mark_bar(color=OTHER, height=11, cornerRadiusEnd=2)
        .encode(
            x=alt.X("candidates:Q", title="candidates that failed", axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y("kind:N", sort=None, title=None),
            tooltip=tips_of(("kind", "candidates")),
        )
    )
    return sized(bars, 22 * len(rows) + 10)


def arena(use: MemoryUse) -> Spec | None:
    """Every tensor in the arena as a box: the steps that need it, and the bytes where it lies."""
    rows = [
        {
            "first": life.first,
            "end": life.last + 1,
            "low": life.offset / 2**20,
            "high": (life.offset + life.nbytes) / 2**20,
            "size": bytes_text(life.nbytes),
            "made by": use.steps[life.first],
            "steps": f"{life.first} to {life.last}",
            "shade": i % 2,
        }
        for i, life in enumerate(use.lives[:_POINTS])
    ]
    if not rows:
        return None
    boxes = (
        alt.Chart(data(rows))
        .mark_rect(stroke="var(--page)", strokeWidth=0.7, fill=ACCENT)
        .encode(
            x=_steps("first:Q"),
            x2="end:Q",
            y=alt.Y("low:Q", title="place in the arena, MiB"),
            y2="high:Q",
            fillOpacity=alt.FillOpacity("shade:Q", scale=alt.Scale(domain=[0, 1], range=[0.85, 0.55]), legend=None),
            tooltip=tips_of(("made by", "size", "steps")),
        )
    )
    return sized(boxes, 260)


def live_bytes(use: MemoryUse) -> Spec | None:
    """Bytes of activations in use during every step."""
    live = use.live_bytes
    if not any(live):
        return None
    rows = [
        {"step": i, "MiB": count / 2**20, "kernel": name, "in use": bytes_text(count)}
        for i, (name, count) in enumerate(zip(use.steps, live, strict=True))
    ]
    rows.append({**rows[-1], "step": len(rows)})
    line: Any = {"color": ACCENT, "strokeWidth": 1.5}
    area = (
        alt.Chart(data(rows))
        .mark_area(interpolate="step-after", color=ACCENT, fillOpacity=0.22, line=line)
        .encode(
            x=_steps("step:Q"), y=alt.Y("MiB:Q", title="in use, MiB"), tooltip=tips_of(("step", "kernel", "in use"))
        )
    )
    return sized(area, 150)


def label(one: TunedSubgraph) -> str:
    """A name that fits beside a bar, without its middle: names differ at the end as often as at the beginning."""
    name = one.name
    return name if len(name) <= _NAME else f"{name[: _NAME - 13]}…{name[-12:]}"


def _longest(subgraphs: Sequence[TunedSubgraph]) -> list[TunedSubgraph]:
    return sorted((one for one in subgraphs if one.tuned_s), key=lambda one: -one.total_s)[:BARS]


def _steps(field: str) -> alt.X:
    return alt.X(field, title="step of a run", scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=1, format="d"))


def _states(shown: Sequence[str] = _STATES) -> alt.Color:
    colours = {"roofline": TEXT, "tuned": ACCENT, "default": OTHER}
    scale = alt.Scale(domain=list(shown), range=[colours[one] for one in shown])
    return alt.Color("what:N", scale=scale, legend=None)


def _log() -> alt.Scale:
    return alt.Scale(type="log", nice=False, padding=14)


def decades(**more: Any) -> alt.Axis:
    """Of a logarithmic scale: lines at powers of ten only."""
    power = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6"
    shown: Any = {"condition": {"test": power, "value": 1}, "value": 0}
    return alt.Axis(gridOpacity=shown, tickOpacity=shown, **more)


def _number(field: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", format=".3~g")


def tips_of(fields: Sequence[str | alt.Tooltip]) -> list[alt.Tooltip]:
    return [one if isinstance(one, alt.Tooltip) else alt.Tooltip(f"{one}:N") for one in fields]


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    return alt.Data(values=[{key: _plain(value) for key, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    """Six digits are enough for the eye, and the page is shorter."""
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def sized(chart: Any, height: int) -> Spec:
    axis = {"labelColor": FAINT, "titleColor": FAINT, "gridColor": GRID, "domainColor": GRID, "tickColor": GRID}
    fonts = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "labelLimit": _LABELS}
    sized = (
        chart.properties(width="container", height=height, background="transparent")
        .configure(font="system-ui, sans-serif", autosize=alt.AutoSizeParams(type="fit", contains="padding"))
        .configure_axis(**axis, **fonts)
        .configure_axisY(grid=False)
        .configure_view(stroke=None)
    )
    found: Spec = sized.to_dict()
    return found

"""The page's sections: what each says, and of which charts and tables it consists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from subtune.core.account import Account, Decision, TunedSubgraph
from subtune.core.html import table
from subtune.core.manifest import Manifest
from subtune.core.units import bytes_text, seconds_text, times_text
from subtune.report.page import charts

PARTITION = """Each box is a kernel: the ops that were fused into it. Its bar is its latency, full for the slowest one.
Point at a box to see what is in it, why it ends there and what was tried; click to keep it. Dashed boxes stay in the
main program."""
_TIMES = "Where a run's time goes, and how far each kernel is from its roofline and from the default schedule."
_ROOFLINE = """Each dot is a kernel, larger the more of a run it takes. To the right: more operations for each byte. Up:
faster. The lines are what the machine can do. A kernel is above its roof only where its data lie in a cache, or its
algorithm does with fewer operations. Drag to move, scroll to zoom."""
_DECISIONS = """Where the ops of a region can be grouped in other ways, these were measured and the fastest was taken.
These are their costs."""
_SEARCH = """Every candidate that was tried. Its position says when, and how far it is from the best of its subgraph.
What failed is at the top."""
_MEMORY = """All tensors between kernels share one arena, each where nothing lies that is still needed. Above: what is
in use at each step. Below: which tensor lies where."""
_DECIDED = 30
"""Regions that are shown."""
_BAR_PERCENT = 65.0
"""Of its column, the longest bar: a figure stands beside it."""

MEASURED = "Expected against measured: on the line, the policy was right."


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart in the page: `id` names it, `title` is read out, `caption` stands below; `keys` are the legend."""

    id: str
    title: str
    spec: charts.Spec
    caption: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Parts are charts and finished HTML."""

    id: str
    title: str
    about: str
    parts: tuple[Figure | str, ...]


def totals(subgraphs: Iterable[TunedSubgraph]) -> tuple[float, float, float]:
    """Seconds of all uses of the subgraphs that were measured: default, tuned, roofline."""
    measured = [one for one in subgraphs if one.tuned_s]
    return (
        sum(one.uses * one.default_s for one in measured),
        sum(one.total_s for one in measured),
        sum(one.uses * one.bound_s for one in measured),
    )


def headline(manifest: Manifest, account: Account | None) -> list[tuple[str, str, str]]:
    """(figure, what it is, a detail) of what matters most."""
    plan = manifest.memory
    memory = (
        bytes_text(manifest.weights_nbytes + plan.arena_nbytes),
        "memory",
        f"weights {bytes_text(manifest.weights_nbytes)}, activations {bytes_text(plan.arena_nbytes)}",
    )
    if account is None or not account.subgraphs:
        return [(str(len(manifest.subgraphs)), "kernels", ""), memory]
    default_s, tuned_s, bound_s = totals(account.subgraphs)
    cards = []
    if default_s:
        cards += [
            (times_text(default_s / tuned_s), "faster than the default", "sum of the kernels, each timed alone"),
            (seconds_text(tuned_s), "tuned", f"default {seconds_text(default_s)}"),
        ]
    if tuned_s:
        cards.append((seconds_text(bound_s), "roofline", f"{bound_s / tuned_s:.0%} of it is reached"))
    tried = [*account.subgraphs, *account.others]
    failed = sum(one.failed for one in tried)
    tuning = seconds_text(dict(account.seconds).get("tune", 0.0))
    cards.append((str(sum(one.tried for one in tried)), "candidates", f"{failed} failed; {tuning} of tuning"))
    kernels = sum(one.uses for one in account.subgraphs)
    cards.append((str(kernels), "kernels in a run", f"{len(account.subgraphs)} of them distinct"))
    return [*cards, memory]


def times(manifest: Manifest, account: Account) -> Section:
    """Time by subgraph, and against default and roofline; a table of all."""
    measured = [one for one in account.subgraphs if one.tuned_s]
    parts: list[Figure | str] = []
    if measured:
        shown = f" The {charts.BARS} with the most time." if len(measured) > charts.BARS else ""
        parts += [
            Figure("time", "Time by subgraph", charts.time_by_subgraph(measured), f"Time of a run by subgraph.{shown}"),
            Figure(
                "bounds",
                "Default, tuned and roofline of each subgraph",
                charts.against_bounds(measured),
                f"One call of each: {', '.join(_states(measured))}.",
                _states(measured),
            ),
        ]
    parts.append(_subgraphs(account.subgraphs))
    return Section("times", "Time by subgraph", _TIMES, tuple(parts))


def roofline(manifest: Manifest, account: Account) -> Section:
    spec = charts.roofline(account.subgraphs)
    keys = _states(account.subgraphs)[1:]
    parts = (Figure("roofline-chart", "Kernels below the roofline", spec, keys=keys),) if spec else ()
    return Section("roofline", "Roofline", _ROOFLINE, parts)


def decisions(manifest: Manifest, account: Account) -> Section:
    """The alternatives of every region, as tables with bars."""
    order = sorted(account.decisions, key=lambda one: -one.uses * one.rivals[one.taken].seconds)
    parts = tuple(_decision(one) for one in order[:_DECIDED])
    more = f" Shown are the {_DECIDED} with the most time of {len(order)}." if len(order) > _DECIDED else ""
    return Section("alternatives", "Alternatives", _DECISIONS + more, parts)


def search(manifest: Manifest, account: Account) -> Section:
    drawn: tuple[tuple[str, str, charts.Spec | None, str, tuple[str, ...]], ...] = (
        ("search-time", "Candidates over time", charts.search_over_time(account), "", ("timed", "failed")),
        ("predictions", "Predicted against measured", charts.predictions(account), MEASURED, ("ships", "candidate")),
        ("failures", "Failures by kind", charts.failures(account.failures), "Failures by kind.", ()),
    )
    parts = tuple(Figure(name, title, spec, text, keys) for name, title, spec, text, keys in drawn if spec is not None)
    return Section("search", "The search", _SEARCH, parts)


def memory(manifest: Manifest, account: Account) -> Section:
    plan = manifest.memory
    drawn = [
        ("live", "Memory in use over time", charts.live_bytes(account.memory)),
        ("arena", "Tensors in the arena", charts.arena(account.memory)),
    ]
    parts: tuple[Figure | str, ...] = tuple(Figure(name, title, spec) for name, title, spec in drawn if spec)
    said = (
        f"The arena takes {bytes_text(plan.arena_nbytes)}; none can be smaller than {bytes_text(plan.bound_nbytes)}, "
        f"and without reuse it would be {bytes_text(plan.total_nbytes)}."
    )
    return Section("memory", "Memory over time", f"{_MEMORY} {said}" if parts else said, parts)


def kernels(manifest: Manifest) -> str:
    """What the manifest says of each kernel."""
    rows = [
        (one.name, seconds_text(one.default_s), seconds_text(one.tuned_s), _gain(one.gain), one.candidate)
        for one in manifest.subgraphs
    ]
    return table(("kernel", "default", "tuned", "gain", "schedule"), rows)


def _subgraphs(subgraphs: Sequence[TunedSubgraph]) -> str:
    rows = [
        (
            one.name, str(one.uses), seconds_text(one.default_s), seconds_text(one.tuned_s), _gain(one.gain),
            seconds_text(one.predicted_s), seconds_text(one.bound_s), one.limit, f"{one.tried}", f"{one.failed}",
            one.schedule,
        )
        for one in sorted(subgraphs, key=lambda one: -one.total_s)
    ]  # fmt: skip
    head = (
        "subgraph", "uses", "default", "tuned", "gain", "predicted", "roofline", "bound by", "tried", "failed",
        "schedule",
    )  # fmt: skip
    return f"<details><summary>All {len(rows)} subgraphs as a table</summary>{table(head, rows)}</details>"


def _states(subgraphs: Iterable[TunedSubgraph]) -> tuple[str, ...]:
    """What charts show of each; of many shapes nobody times a default schedule."""
    return ("roofline", "tuned", *(["default"] if any(one.default_s for one in subgraphs) else []))


def _gain(gain: float) -> str:
    return times_text(gain) if gain != 1.0 else "-"


def _decision(one: Decision) -> str:
    """The partition's own first, then those with a time, the fastest first; folded are those without."""
    longest = max((rival.seconds for rival in one.rivals), default=0.0)
    order = sorted(range(len(one.rivals)), key=lambda i: (i != 0, one.rivals[i].seconds))
    shown = [i for i in order if one.rivals[i].seconds or i in (0, one.taken)]
    folded = [i for i in order if i not in shown]
    more = f" and {one.uses - 1} more alike" if one.uses > 1 else ""
    parts = [f"<h3>At {escape(one.place)}{more}</h3>", _rivals(one, shown, longest)]
    if folded:
        said = "1 more was" if len(folded) == 1 else f"{len(folded)} more were"
        parts.append(f"<details><summary>{said} not measured</summary>{_rivals(one, folded, longest)}</details>")
    return "".join(parts)


def _rivals(one: Decision, indices: Sequence[int], longest: float) -> str:
    rows = []
    for index in indices:
        rival = one.rivals[index]
        figure = f'<span class="about">{escape(rival.note or "not measured")}</span>'
        if rival.seconds:
            width = _BAR_PERCENT * rival.seconds / longest
            figure = f'<span class="bar" style="width:{width:.1f}%"></span><span>{seconds_text(rival.seconds)}</span>'
        count = "1 kernel" if rival.kernels == 1 else f"{rival.kernels} kernels"
        why = f'<div class="about">{escape(rival.why)}</div>' if rival.why else ""
        mark, said = (' class="taken"', ' <em class="tag">taken</em>') if index == one.taken else ("", "")
        name = f"{escape(rival.name)}{said} <small>{count}</small>"
        rows.append(f"<li{mark}><div>{name}{why}</div><div>{figure}</div></li>")
    return f'<ul class="rivals">{"".join(rows)}</ul>'

"""A simulated fleet as a table, a chart and the sentences that have figures: see `benchmarks/simulate_fleet.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from subtune.bench.charts import Line, line_chart
from subtune.bench.section import Section, table
from subtune.bench.stored import StoredRun

Row = Mapping[str, Any]

_HEAD = (
    "devices", "minutes", "of it tuning", "workloads per hour", "candidates per hour", "devices idle", "builders idle",
    "writes per s", "writer busy", "driver busy", "driver's ms per candidate",
)  # fmt: skip


def fleet_section(run: StoredRun, all_asked: StoredRun, one_asked: StoredRun) -> Section:
    """`all_asked`, `one_asked`: the same of fewer targets, before and after waiting devices were woken one by one."""
    report = run.report
    in_turn, beside, free = _kinds(report["rows"])
    parts = [
        f"{report['models']} models x {len(report['targets'])} targets are {report['workloads']} distinct workloads. "
        f"Targets one after the other, as `tune-fleet` does it; all devices are of the kind at hand:",
        _table(in_turn, report),
        "Targets side by side, each with its part of the devices. `tune-fleet` does not do this yet:",
        _table(beside, report),
        "Targets one after the other, and a driver that needs no time at all:",
        _table(free, report, has_driver=False),
        _limits(report, in_turn, free),
        _wakes(all_asked.report, one_asked.report),
        f"The simulation was compared with the run whose durations it has: {report['sample']} workloads on one device "
        f"took {report['recorded_s']:.0f} s there and {report['simulated_s']:.0f} s here.",
    ]
    return Section("How many devices", "\n\n".join(parts), _chart(in_turn, beside, free, report), "Time that is used")


def _kinds(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """One after the other, side by side, and the first without the driver's time."""
    beside = [row for row in rows if row["side_by_side"]]
    others = [row for row in rows if not row["side_by_side"]]
    return [row for row in others if row["counts_cpu"]], beside, [row for row in others if not row["counts_cpu"]]


def _tuning_cpu_s(row: Row, report: Mapping[str, Any]) -> float:
    """The driver's seconds without those for reading models and writing artifacts."""
    return float(row["cpu_s"] - report["prepare_s"] - report["artifacts_s"])


def _table(rows: Sequence[Row], report: Mapping[str, Any], has_driver: bool = True) -> str:
    cells = []
    for row in rows:
        tune_s, cpu_s = row["tune_s"], _tuning_cpu_s(row, report)
        cells.append(
            [
                f"{row['devices']}", f"{row['seconds'] / 60:.1f}", f"{tune_s / 60:.1f}",
                f"{3600 * row['workloads'] / tune_s:.0f}", f"{3600 * row['candidates'] / tune_s:.0f}",
                f"{row['idle']:.1%}", f"{row['idle_builders']:.1%}", f"{row['writes'] / tune_s:.1f}",
                f"{row['writer_s'] / tune_s:.1%}",
                *((f"{cpu_s / tune_s:.0%}", f"{1000 * cpu_s / row['candidates']:.1f}") if has_driver else ()),
            ]
        )  # fmt: skip
    return table(_HEAD if has_driver else _HEAD[:-2], cells)


def _limits(report: Mapping[str, Any], in_turn: Sequence[Row], free: Sequence[Row]) -> str:
    """At which rates the driver and the writer would be busy all the time."""
    one, most = in_turn[0], in_turn[-1]
    pace = one["candidates"] / one["tune_s"]
    driver = most["candidates"] / _tuning_cpu_s(most, report)
    writer = most["writes"] / most["writer_s"]
    besides_s = report["prepare_s"] + report["artifacts_s"]
    devices, writers = driver / pace, writer / (one["writes"] / one["tune_s"])
    last = free[-1]
    return (
        f"One device tries {pace:.1f} candidates a second. The driver's computing is enough for {driver:.0f}: that of "
        f"{devices:.0f} devices. The one writer's {writer:.0f} transactions a second are enough for {writers:.0f} "
        "devices. Reading the models and writing the artifacts takes the driver "
        f"{besides_s / 60:.0f} minutes, in which no device does anything. That is {besides_s / one['seconds']:.0%} of "
        f"the time with one device, and {besides_s / most['seconds']:.0%} with {most['devices']}. With a driver that "
        f"needs no time, {last['devices']} devices tune in {last['tune_s'] / 60:.1f} minutes, not in "
        f"{most['tune_s'] / 60:.1f}; they are idle for {last['idle']:.1%}, as each target waits for its longest one."
    )


def _wakes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    def most(report: Mapping[str, Any]) -> Row:
        return max((row for row in report["rows"] if not row["side_by_side"]), key=lambda row: row["devices"])

    old = most(before)
    new = next(row for row in after["rows"] if row["devices"] == old["devices"] and not row["side_by_side"])
    return (
        f"The simulation has found one fault. All devices that waited were asked after every turn, whether there was "
        f"something for them. With {old['devices']} devices and {len(before['targets'])} targets, tuning took "
        f"{old['tune_s']:.0f} s, nearly all of it for these questions. Now one is asked, and the next one if there was "
        f"something: {new['tune_s']:.0f} s."
    )


def _chart(in_turn: Sequence[Row], beside: Sequence[Row], free: Sequence[Row], report: Mapping[str, Any]) -> str:
    def busy(rows: Sequence[Row]) -> tuple[tuple[float, float], ...]:
        return tuple((row["devices"], 1 - row["idle"]) for row in rows)

    driver = tuple((row["devices"], min(1.0, _tuning_cpu_s(row, report) / row["tune_s"])) for row in in_turn)
    lines = [
        Line("devices measure", busy(in_turn)),
        Line("targets side by side", busy(beside)),
        Line("driver needs no time", busy(free)),
        Line("driver computes", driver),
    ]
    subtitle = "Share of the time of tuning, simulated: the devices' and the driver's"
    return line_chart("What a fleet's time is used for", subtitle, "devices", [line for line in lines if line.points])

"""A stored run of the coverage suite as a section of the performance page."""

from __future__ import annotations

from subtune.bench.coverage.report import BARS, FLOOR_S, WORST, coverage_chart
from subtune.bench.peers import peers_of
from subtune.bench.section import Section, details, table
from subtune.bench.stored import StoredRun


def coverage_section(run: StoredRun) -> Section:
    """`--suite coverage`: the histogram, what it amounts to, the worst cases, and those that failed."""
    report, found, kind = run.report, run.report["summary"], run.report["kind"]
    floor_s, bar = FLOOR_S[kind], BARS[kind]
    timed = [row for row in report["rows"] if row["outcome"] == "timed" and row["best_s"] > floor_s]
    worst = sorted(timed, key=lambda row: row["ratio"])[:WORST]
    cells = [
        [row["name"], f"{row['ours_s'] * 1e6:.1f}", row["best"], f"{row['best_s'] * 1e6:.1f}", f"{row['ratio']:.2f}"]
        for row in worst
    ]
    failed = [f"- {row['outcome']}: {row['name']}: {row['why']}" for row in report["rows"] if row["outcome"] != "timed"]
    where = "a GPU" if peers_of(kind).is_gpu else "a CPU"
    text = [
        f"{len(report['rows'])} cases drawn from a grammar of operators, types, layouts, shapes and epilogues with "
        f"seed {report['seed']}: `subtune bench --suite coverage --seed {report['seed']}`. A ratio is the best peer's "
        f"latency over subtune's. Of the {found['counting']} cases whose best peer takes more than "
        f"{floor_s * 1e6:.0f} µs the median is {found['median']:.2f} and the least {found['least']:.2f}; "
        f"{found['below']} are under {bar}. {found['failed']} cases failed, {found['defaults']} hold a subgraph whose "
        f"best schedule is the default, {found['untuned']} one that was not tuned.",
        details("The worst", table(("case", "subtune, µs", "best peer", "its, µs", "ratio"), cells)) if cells else "",
        "\n".join(failed),
    ]
    chart = coverage_chart(
        f"Operators on {where}: the best peer's latency over subtune's",
        f"{found['counting']} cases; below the line subtune is faster",
        [(label, count) for label, count in found["bins"]],
    )
    return Section(f"Coverage on {where}, seed {report['seed']}", "\n\n".join(filter(None, text)), chart, "ratios")

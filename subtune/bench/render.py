"""`python -m subtune.bench.render [ROOT]`: the documentation's figures, made of the runs stored in `benchmarks/`.

Writes `docs/performance.md`, one SVG per chart under `docs/charts/`, and between two markers each the README's table
and `docs/cluster.md`'s simulated fleet. A test compares what is there with what this makes: a figure that is in no
stored run is in no document.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from subtune.bench.fleet_section import fleet_section
from subtune.bench.markdown import SECTIONS, TOGETHER, Section, origin, readme_table
from subtune.bench.stored import StoredRun, StoredRunError, read_runs

RUNS = "benchmarks"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
CLUSTER = "docs/cluster.md"
FLEETS = ("fleet", "fleet-all-asked", "fleet-one-asked", "fleet-durations")
"""Runs that are no benchmarks: they are for the page about clusters."""
README_RUN = "cpu"
"""The stored run that the README shows."""
_INTRODUCTION = """\
# Performance

<!-- Made by `python -m subtune.bench.render` from benchmarks/*.json. Do not edit. -->

Every figure on this page comes from a stored run of `subtune bench`. Each framework runs in a process of its own, with
the same threads on the same cores and on the same inputs. Rounds are interleaved: while one framework is timed, the
others are stopped. A ratio is the median over rounds of the other's latency over subtune's. Every output is compared
with subtune's; a framework that computes something else is no peer.

A machine's speed drifts. Compare ratios, not milliseconds, and take even ratios as good to about five per cent.

To run everything again and render this page: `benchmarks/run`.
"""


def rendered(root: Path) -> dict[str, str]:
    """The text of every generated file below `root`, by its path.

    Raises:
        StoredRunError: a stored run cannot be read, or the README has no markers.
    """
    everything = read_runs(root / RUNS)
    runs = [run for run in everything if run.name not in FLEETS]
    parts, files = [_INTRODUCTION], {}
    for name, section, sources in _sections(runs):
        parts.append(f"## {section.heading}\n")
        if section.chart:
            files[f"docs/charts/{name}.svg"] = section.chart
            parts.append(f"![{section.caption}](charts/{name}.svg)\n")
        parts.append(f"{section.text}\n")
        parts += [f"*{origin(run, RUNS)}*\n" for run in sources]
    files["docs/performance.md"] = "\n".join(parts)
    readme = (root / "README.md").read_text(encoding="utf-8")
    files["README.md"] = _with_table(readme, runs)
    fleets = {run.name: run for run in everything if run.name in FLEETS}
    return files | (_fleet(root, fleets) if fleets else {})


def render(root: Path) -> None:
    """Write what `rendered` gives, and remove charts that no run makes any more."""
    files = rendered(root)
    for chart in (root / "docs" / "charts").glob("*.svg"):
        if str(chart.relative_to(root)) not in files:
            chart.unlink()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _fleet(root: Path, runs: Mapping[str, StoredRun]) -> dict[str, str]:
    """The page about clusters, and its chart."""
    page = (root / CLUSTER).read_text(encoding="utf-8")
    if missing := [name for name in FLEETS if name not in runs]:
        raise StoredRunError(f"{RUNS}/{missing[0]}.json is missing: the simulated fleet is made of {', '.join(FLEETS)}")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise StoredRunError(f"{CLUSTER} needs the markers {BEGIN} and {END} once")
    section = fleet_section(*(runs[name] for name in FLEETS[:3]))
    about = [f"*{origin(runs['fleet'], RUNS)}*", f"*Durations: {origin(runs['fleet-durations'], RUNS)}*"]
    parts = [BEGIN, f"![{section.caption}](charts/fleet.svg)", section.text, *about, END]
    text = "\n\n".join(parts)
    return {
        CLUSTER: re.sub(f"{BEGIN}.*{END}", lambda _: text, page, flags=re.DOTALL),
        "docs/charts/fleet.svg": section.chart,
    }


def _sections(runs: Sequence[StoredRun]) -> list[tuple[str, Section, list[StoredRun]]]:
    """(name of the chart's file, section, its runs): suites in one order, some suites' runs together."""
    found: list[tuple[str, Section, list[StoredRun]]] = []
    for suite, make in SECTIONS.items():
        found += [(run.name, make(run), [run]) for run in runs if run.suite == suite]
    for suite, make_all in TOGETHER.items():
        if together := [run for run in runs if run.suite == suite]:
            found.append((suite, make_all(together), together))
    if unknown := [run for run in runs if run.suite not in (*SECTIONS, *TOGETHER)]:
        raise StoredRunError(f"{unknown[0].name}.json is of suite {unknown[0].suite!r}, which nothing renders")
    return found


def _with_table(readme: str, runs: Sequence[StoredRun]) -> str:
    run = next((run for run in runs if run.name == README_RUN), None)
    if run is None or readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise StoredRunError(
            f"README.md needs the markers {BEGIN} and {END} once, and {RUNS}/{README_RUN}.json to fill them"
        )
    where = f"{run.run.machine}, {run.report['threads']} threads; {run.run.date}"
    note = f"{where}; full tables: [performance](docs/performance.md)"
    text = f"{BEGIN}\n{readme_table(run)}\n\n<sub>{note}</sub>\n{END}"
    return re.sub(f"{BEGIN}.*{END}", lambda _: text, readme, flags=re.DOTALL)


if __name__ == "__main__":
    render(Path(sys.argv[1] if len(sys.argv) > 1 else "."))

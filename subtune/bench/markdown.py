"""Stored runs as Markdown tables and charts: one function per suite, each `StoredRun -> Section`.

Only what is in the run's JSON is written, and nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from subtune.bench.charts import Bar, Line, bar_chart, line_chart
from subtune.bench.coverage.section import coverage_section
from subtune.bench.dietcode.section import dietcode_section
from subtune.bench.race import DISAGREES, FOREIGN_LIMIT
from subtune.bench.section import Section, details, table
from subtune.bench.stored import StoredRun
from subtune.bench.torch_source import CONVERTED

Row = Mapping[str, Any]

FRAMEWORKS = {
    "onnxruntime": "ONNX Runtime",
    "openvino-f32": "OpenVINO",
    "openvino": "OpenVINO bf16",
    "torch-compile": "torch.compile",
    "torch-dynamic": "torch.compile, dynamic",
    "torch": "PyTorch",
    "torch-graph": "PyTorch, CUDA graph",
    "torch-max-autotune": "torch.compile, max-autotune",
    "default": "TVM's default",
    "numpy": "numpy",
}
MODES = {"f32": "float32", "bf16": "bfloat16", "exact": "float32, `--exact`"}
_LIMITS = ("subtune", "fma", "copy", "copy-cold")
_README_ROWS = 12


def origin(run: StoredRun, folder: str) -> str:
    """One line: where the figures come from."""
    found = run.run
    versions = ", ".join(f"{name} {version}" for name, version in found.versions)
    threads = f", {run.report['threads']} threads" if "threads" in run.report else ""
    commit = f"commit {found.commit}" if found.commit else "an installed package"
    return f"{found.machine}{threads}; {found.date}; {commit}; {versions}. Data: `{folder}/{run.name}.json`."


def model_section(run: StoredRun) -> Section:
    """`subtune bench MODEL --json FILE`."""
    report = run.report
    rows = [
        [
            name_of(row["framework"]), _ms(row["median_s"]), f"{row['ratio']:.2f}", _mb(row["peak_rss_bytes"]),
            f"{row['max_rel']:.0e}",
        ]
        for row in report["rows"]
    ]  # fmt: skip
    text = table(("framework", "ms", "ratio", "peak MB", "largest relative error"), rows)
    return Section(f"{report['name']}", "\n\n".join(filter(None, (text, _doubts([("", report)])))))


def cpu_section(run: StoredRun) -> Section:
    """`--suite cpu`: a row per model, a column per peer."""
    report, rows = run.report, timed(run)
    peers = tuple(peer for peer in report["against"] if any(_is_native(framework(row, peer)) for row in rows))
    speed, cost = [], []
    for row in rows:
        ours = framework(row, "subtune")
        assert ours is not None
        bar = f"{row['bar']:.2f}" if row["bar"] else ""
        speed.append([row["name"], _ms(ours["median_s"]), *(_ratio(framework(row, peer)) for peer in peers), bar])
        memory = [_peak(framework(row, name)) for name in ("subtune", *peers)]
        cost.append([row["name"], f"{row['tune_s']:.0f}", str(row["tried"]), str(row["untuned"]), *memory])
    text = [
        "A ratio is the peer's latency over subtune's: above 1 subtune is faster. The bar is the ratio to the best "
        "peer that was set out for.",
        table(("model", "subtune, ms", *map(name_of, peers), "bar"), speed),
        "What tuning took, how many candidates were tried, how many subgraphs a budget left on the default schedule, "
        "and the most memory that each process held, in MB.",
        table(("model", "tuning, s", "candidates", "untuned", "subtune", *map(name_of, peers)), cost),
        _doubts([(f"{row['name']}: ", row["report"]) for row in rows]),
        _failures(report["rows"]),
        quality(report["quality"]),
    ]
    mode = MODES.get(report["mode"], report["mode"])
    chart = models_chart(run) if any(row["best"] for row in rows) else ""
    return Section(
        f"Models on a CPU, {mode}", "\n\n".join(filter(None, text)), chart, "the best peer's latency over ours"
    )


def models_chart(run: StoredRun) -> str:
    """The best peer's latency over subtune's, every peer as a dot."""
    bars = []
    for row in timed(run):
        if row["best"]:
            peers = [framework(row, name) for name in run.report["against"]]
            shown = (peer for peer in peers if peer and _agrees(peer) and _is_native(peer))
            marks = tuple((name_of(peer["framework"]), peer["ratio"]) for peer in shown)
            bars.append(Bar(row["name"], row["ratio"], marks))
    mode = MODES.get(run.report["mode"], run.report["mode"]).replace("`", "")
    where = f"{run.run.machine.split(',')[0]}, {run.report['threads']} threads, {mode}, {run.run.date}"
    return bar_chart(
        "How many times faster subtune runs than the best of its peers", f"{where}; longer is better", bars
    )


def readme_table(run: StoredRun) -> str:
    """A dozen models at most, one of each architecture, beside the best peer."""
    rows = [row for row in timed(run) if row["best"] and not row["name"].endswith("-b8")][:_README_ROWS]
    cells = []
    for row in rows:
        ours, best = framework(row, "subtune"), framework(row, row["best"])
        assert ours is not None
        assert best is not None
        cells.append([row["name"], _ms(ours["median_s"]), name_of(row["best"]), f"{row['ratio']:.2f}"])
    return table(("model", "subtune, ms", "best peer", "its latency over ours"), cells)


def ops_section(run: StoredRun) -> Section:
    """`--suite cpu-ops`: a line per family of operators, and every operator below it."""
    report = run.report
    rows = [row for row in report["rows"] if row["race"] is not None]
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(row["name"].split("-")[0], []).append(row)
    summary = []
    for family, members in families.items():
        ratios = [row["ratio"] for row in members if row["ratio"]]
        shares = [row["kernel_share"] or row["share"] for row in members]
        met = sum(row["verdict"] in ("yes", "kernel") for row in members)
        figures = (f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}") if ratios else ("", "")
        summary.append(
            [family, str(len(members)), *figures, f"{geometric_mean(shares):.0%}", f"{met} of {len(members)}"]
        )
    peers = tuple(report["against"])
    every = []
    for row in rows:
        found = {one["framework"]: one for one in row["race"]["rows"]}
        every.append([
            row["name"], f"{found['subtune']['median_s'] * 1e6:.1f}", f"{row['kernel_s'] * 1e6:.1f}",
            *(_ratio(found.get(peer)) for peer in peers), row["limit"], f"{row['share']:.0%}", row["verdict"],
        ])  # fmt: skip
    text = [
        "The limit of a product or a convolution is the processor's peak of multiply-adds; of every other operator a "
        "copy of as many bytes. The bar is met when 90 % of the peak or 85 % of the copy is reached, or a product is "
        "ahead of every peer. Means are geometric.",
        table(("operators", "cases", "ratio to the best peer", "least", "of the limit", "bar met"), summary),
        details("Every operator", table(("operator", "call, µs", "kernels, µs", *map(name_of, peers), "limit", "share",
                                         "met"), every)),
        _failures(report["rows"]),
        quality(report["quality"]),
    ]  # fmt: skip
    return Section("Single operators on a CPU", "\n\n".join(filter(None, text)))


def gpu_section(run: StoredRun) -> Section:
    """`--suite fastdlight|tensorcore|gpu-ops`."""
    report = run.report
    cells, bars = [], []
    for row in report["rows"]:
        if not row["best_s"]:
            continue
        to_default, to_library = (row[name] / row["best_s"] for name in ("default_s", "library_s"))
        published = row["published"]
        said = f"{published['rival_s'] / published['best_s']:.2f} ({published['rival']})" if published else ""
        cells.append([
            row["name"], f"{row['best_s'] * 1e6:.1f}", _positive(to_default), _positive(to_library), said,
            f"{row['bar']:.2f}", f"{row['first_s'] / row['best_s']:.2f}" if row["first_s"] else "",
            f"{row['tune_s']:.1f}",
        ])  # fmt: skip
        if to_library:
            bars.append(Bar(row["name"], to_library))
    head = (
        "row", "subtune, µs", "to dlight's default", "to PyTorch's libraries", "published gain", "bar",
        "first candidate", "tuned in s",
    )  # fmt: skip
    text = [
        "Ratios are the other's latency over subtune's. The published gain is the document's own, on its device. "
        "`first candidate` is the latency of the model's first choice over the winner's.",
        table(head, cells),
        _failures(report["rows"]),
        quality(report["quality"]),
    ]
    title = {"fastdlight": "FastDlight's rows", "tensorcore": "The rows of apache/tvm#4105"}
    name = title.get(run.suite, "More operators")
    chart = bar_chart(f"{name}: PyTorch's latency over subtune's", run.run.machine.split(",")[-1].strip(), bars)
    return Section(
        f"{name} on a GPU", "\n\n".join(filter(None, text)), chart if bars else "", "PyTorch's latency over ours"
    )


def levels_section(run: StoredRun) -> Section:
    """`--suite op-vs-subgraph`."""
    cells = []
    for row in run.report["rows"]:
        if found := row["compared"]:
            op = f"{found['op_s'] * 1e6:.1f}" if found["op_s"] else "fails"
            cells.append([row["name"], op, f"{found['subgraph_s'] * 1e6:.1f}", _positive(row["gain"])])
    text = [
        "Each subgraph with the winner of tuning its anchor alone, and with its own winner.",
        table(("subgraph", "op-level, µs", "subgraph-level, µs", "gain"), cells),
        f"Geometric mean of the gains: {run.report['gain']:.2f}.",
        _failures(run.report["rows"]),
    ]
    return Section("Tuning operators against tuning subgraphs", "\n\n".join(filter(None, text)))


def budget_section(runs: Sequence[StoredRun]) -> Section:
    """`--suite budget`: every model's points."""
    rows = [row for run in runs for row in run.report["rows"]]
    cells, lines = [], []
    for row in rows:
        limited = tuple((p["budget_s"], p["speed"]) for p in row["points"] if p["budget_s"])
        lines += [Line(row["name"], limited)] if limited else []
        for point in row["points"]:
            budget = f"{point['budget_s']:g}" if point["budget_s"] else "none"
            cells.append([
                row["name"], budget, f"{point['tune_s']:.1f}", _ms(point["latency_s"]), f"{point['speed']:.0%}",
                f"{point['untuned']} of {point['subgraphs']}", str(point["tried"]),
            ])  # fmt: skip
    text = [
        "What `--budget` buys: the latency of the model that comes out, and its speed beside that of the model tuned "
        "to the end, both timed in turns. Every run begins with an empty database.",
        table(("model", "budget, s", "tuning, s", "ms", "of the full speed", "untuned subgraphs", "candidates"), cells),
        "\n".join(
            f"- {row['name']}: other programs kept {row['foreign_cores']:.1f} cores busy: do not trust its rows"
            for row in rows
            if row["foreign_cores"] > FOREIGN_LIMIT
        ),
        _failures(rows),
    ]
    chart = line_chart("Speed over tuning budget", "beside tuning to the end", "budget, seconds", lines)
    return Section("Latency over tuning budget", "\n\n".join(filter(None, text)), chart, "speed over tuning budget")


def onnx_section(runs: Sequence[StoredRun]) -> Section:
    """Suite `onnx`: how the cases of ONNX's own backend suite ended, with subtune and with TVM's importer."""
    cells = []
    for run in sorted(runs, key=lambda run: bool(run.report["plain"])):
        counts = run.report["counts"]
        outcomes = (sum(counts.values()), *(counts[outcome] for outcome in ("pass", "refused", "wrong", "crash")))
        cells.append(["TVM alone" if run.report["plain"] else "subtune", *map(str, outcomes)])
    text = (
        "Every case of the official backend suite that runs on a CPU: imported, normalised, partitioned and built. "
        "A case is right, or it is refused with the reason."
    )
    return Section(
        "ONNX's backend suite", f"{text}\n\n{table(('', 'cases', 'pass', 'refused', 'wrong', 'crash'), cells)}"
    )


TOGETHER: Mapping[str, Callable[[Sequence[StoredRun]], Section]] = {"budget": budget_section, "onnx": onnx_section}
"""All runs of a suite in one section."""

SECTIONS: Mapping[str, Callable[[StoredRun], Section]] = {
    "cpu": cpu_section,
    "model": model_section,
    "cpu-ops": ops_section,
    "coverage": coverage_section,
    "dietcode": dietcode_section,
    "fastdlight": gpu_section,
    "tensorcore": gpu_section,
    "gpu-ops": gpu_section,
    "op-vs-subgraph": levels_section,
}


def timed(run: StoredRun) -> tuple[Row, ...]:
    """A suite's rows that were raced."""
    return tuple(row for row in run.report["rows"] if row["report"] is not None)


def framework(row: Row, name: str) -> Row | None:
    return next((one for one in row["report"]["rows"] if one["framework"] == name), None)


def name_of(key: str) -> str:
    return FRAMEWORKS.get(key, key)


def quality(found: Row) -> str:
    """How well the cost model's order agrees with what was measured."""
    if not found["workloads"]:
        return ""
    regrets = ", ".join(f"{share:.1%}" for share in found["regret_median"])
    return (
        f"The cost model against these measurements ({found['workloads']} workloads, {found['candidates']} candidates, "
        f"medians): rank correlation {found['spearman_median']:.2f}; regret of its best 1, 5 and 20: {regrets}."
    )


def _agrees(row: Row) -> bool:
    return bool(row["max_rel"] <= DISAGREES)


def _is_native(row: Row | None) -> bool:
    """Whether the framework ran what its users write. Runs of old do not say: PyTorch's models were converted then."""
    if row is None:
        return True
    return bool(row.get("via", CONVERTED if row["framework"].startswith("torch") else "") != CONVERTED)


def _ratio(row: Row | None) -> str:
    if row is None or not _is_native(row):
        return ""
    return f"{row['ratio']:.2f}" if _agrees(row) else f"{row['ratio']:.2f} (other outputs)"


def _failures(rows: Iterable[Row]) -> str:
    return "\n".join(f"- {row['name']}: {row['failure']}" for row in rows if row["failure"])


def _doubts(reports: Iterable[tuple[str, Row]]) -> str:
    """What is missing, and what was disturbed."""
    lines = []
    for name, report in reports:
        lines += [f"- {name}{name_of(peer)} not timed: {why}" for peer, why in report["failures"].items()]
        if report["foreign_cores"] > FOREIGN_LIMIT:
            lines.append(f"- {name}other programs kept {report['foreign_cores']:.1f} cores busy: do not trust this row")
    return "\n".join(lines)


def _positive(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _peak(row: Row | None) -> str:
    return _mb(row["peak_rss_bytes"]) if row else ""


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.0f}"

"""What records of near workloads, and of near devices, save a compile; and what they cost the model that comes out.

    python benchmarks/transfer.py --folder DIR [--first zoo:resnet18] [--then zoo:resnet50] [--threads 2]

Compiles `--first` into a database of its own, then `--then` several times, each time with another database:

- alone: an empty one;
- half: an empty one, with half of the candidates per subgraph, to tell what the records add to that;
- shapes: the one that `--first` left;
- device: that of alone, its records renamed to another processor's (`--renamed OLD=NEW`). They are this machine's own
  measurements under another name: that says what the search does with them, and not how alike two processors are.

Each artifact is then timed in turns with that of alone: the ratio is the median over rounds of latency over alone's,
above 1 being slower. Candidates are those of which the compile itself stored an outcome. Files that are in `--folder`
already are taken as they are, but for artifacts.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import subtune
from subtune.artifact.random_inputs import random_inputs
from subtune.driver import compile_model
from subtune.report.compile_report import Transfer

HALF_TOPK = 10


@dataclass(frozen=True)
class Run:
    """One compile: candidates with an outcome of its own, seconds of tuning, milliseconds of all kernels as tuned."""

    name: str
    candidates: int
    tuning_s: float
    kernels_ms: float
    transfer: Transfer


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as handle:
        return int(handle.execute("SELECT COUNT(*) FROM measurements").fetchone()[0])


def copy(source: Path, path: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(path)) as new:
        old.backup(new)


def rename(path: Path, old: str, new: str) -> int:
    """How many winners are another processor's now."""
    with closing(sqlite3.connect(path)) as handle, handle:
        handle.execute("UPDATE measurements SET device = replace(device, ?, ?)", (old, new))
        return handle.execute("UPDATE winners SET device = replace(device, ?, ?)", (old, new)).rowcount


def compiled(name: str, model: str, folder: Path, **options: Any) -> Run:
    database = folder / f"{name}.db"
    before = rows(database) if database.exists() else 0
    report = compile_model(model, folder / f"{name}.subtune", database=database, **options)
    run = Run(name, rows(database) - before, report.seconds["tune"], report.tuned_s * 1e3, report.transfer)
    print(f"{name}: {run.candidates} candidates in {run.tuning_s:.1f} s", flush=True)
    return run


def ratio(artifact: Path, other: Path, rounds: int) -> tuple[float, float, float]:
    """The latency of `artifact` over that of `other`, called in turns: the median over rounds, and its quartiles."""
    loaded = [subtune.load(path) for path in (artifact, other)]
    inputs = random_inputs(loaded[0].manifest.inputs, 0)
    for one in loaded:
        one.run(inputs)
    found = []
    for number in range(rounds):
        taken = [0.0, 0.0]
        for place in (0, 1) if number % 2 else (1, 0):
            begin = time.perf_counter()
            for _ in range(5):
                loaded[place].run(inputs)
            taken[place] = time.perf_counter() - begin
        found.append(taken[0] / taken[1])
    found.sort()
    return median(found), found[len(found) // 4], found[-len(found) // 4 - 1]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--first", default="zoo:resnet18")
    parser.add_argument("--then", default="zoo:resnet50")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--topk", type=int, default=2 * HALF_TOPK)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--renamed", default="znver4=znver3", metavar="OLD=NEW")
    args = parser.parse_args(given)
    folder, options = args.folder, {"threads": args.threads, "topk": args.topk, "verify": False}
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "first.db").exists():
        compiled("first", args.first, folder, transfer=False, **options)
    runs = [compiled("alone", args.then, folder, transfer=False, **options)]
    runs.append(compiled("half", args.then, folder, transfer=False, **{**options, "topk": args.topk // 2}))
    copy(folder / "first.db", folder / "shapes.db")
    runs.append(compiled("shapes", args.then, folder, **options))
    copy(folder / "alone.db", folder / "device.db")
    if not rename(folder / "device.db", *args.renamed.split("=")):
        raise SystemExit(f"no record has {args.renamed.partition('=')[0]} in its device's fingerprint")
    runs.append(compiled("device", args.then, folder, **options))
    result = []
    for run in runs:
        middle, low, high = ratio(folder / f"{run.name}.subtune", folder / "alone.subtune", args.rounds)
        share = run.candidates / max(1, runs[0].candidates)
        print(
            f"{run.name:8} {run.candidates:4} candidates ({share:.0%}), {run.tuning_s:6.1f} s of tuning, kernels "
            f"{run.kernels_ms:.2f} ms; latency over alone {middle:.3f} ({low:.3f} to {high:.3f})  {run.transfer}"
        )
        result.append({**asdict(run), "ratio": middle, "low": low, "high": high})
    (folder / "transfer.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What records of near workloads, and of near devices, save a compile; and what they cost the model that comes out.

    python benchmarks/transfer.py --folder DIR [--first zoo:resnet18] [--then zoo:resnet50] [--threads 2]

Compiles `--first` into a database of its own, then `--then` several times, each time with another database:

- alone: an empty one;
- half: an empty one, with half of the candidates per subgraph, to tell what the records add to that;
- shapes: the one that `--first` left;
- device: that of alone, its records renamed to another processor's (`--renamed OLD=NEW`). They are this machine's own
  measurements under another name: that says what the search does with them, and not how alike two processors are.

All artifacts are then called in turns. Ratios are of latencies over alone's, above 1 being slower: the median over
rounds with its quartiles, and that of the least of all rounds, which says more where others use the machine, too.
Candidates are those of which the compile itself stored an outcome. A `first.db` that is in `--folder` is taken as it
is, and with `--race` all that is there.
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
from statistics import quantiles
from typing import Any

import subtune
from subtune.artifact.random_inputs import random_inputs
from subtune.driver import compile_model
from subtune.report.compile_report import Transfer


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


def latencies(paths: Sequence[Path], rounds: int) -> list[list[float]]:
    """Seconds of each artifact's calls, one in every round; the order turns with the rounds."""
    loaded = [subtune.load(path) for path in paths]
    inputs = random_inputs(loaded[0].manifest.inputs, 0)
    for one in loaded:
        one.run(inputs)
    found: list[list[float]] = [[] for _ in loaded]
    for number in range(rounds):
        for step in range(len(loaded)):
            place = (number + step) % len(loaded)
            begin = time.perf_counter()
            loaded[place].run(inputs)
            found[place].append(time.perf_counter() - begin)
    return found


def compile_all(folder: Path, args: argparse.Namespace) -> list[Run]:
    options = {"threads": args.threads, "topk": args.topk, "verify": False}
    if not (folder / "first.db").exists():
        compiled("first", args.first, folder, transfer=False, **options)
    runs = [compiled("alone", args.then, folder, transfer=False, **options)]
    runs.append(compiled("half", args.then, folder, transfer=False, **{**options, "topk": args.topk // 2}))
    copy(folder / "first.db", folder / "shapes.db")
    runs.append(compiled("shapes", args.then, folder, transfer=True, **options))
    copy(folder / "alone.db", folder / "device.db")
    if not rename(folder / "device.db", *args.renamed.split("=")):
        raise SystemExit(f"no record has {args.renamed.partition('=')[0]} in its device's fingerprint")
    runs.append(compiled("device", args.then, folder, transfer=True, **options))
    (folder / "runs.json").write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    return runs


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--first", default="zoo:resnet18")
    parser.add_argument("--then", default="zoo:resnet50")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--topk", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=201)
    parser.add_argument("--renamed", default="znver4=znver5", metavar="OLD=NEW")
    parser.add_argument("--race", action="store_true", help="compile nothing, race what an earlier run left")
    args = parser.parse_args(given)
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.race:
        stored = json.loads((args.folder / "runs.json").read_text())
        runs = [Run(**{**one, "transfer": Transfer(**one["transfer"])}) for one in stored]
    else:
        runs = compile_all(args.folder, args)
    found = latencies([args.folder / f"{run.name}.subtune" for run in runs], args.rounds)
    for run, seconds in zip(runs, found, strict=True):
        low, middle, high = quantiles([one / alone for one, alone in zip(seconds, found[0], strict=True)])
        print(
            f"{run.name:8} {run.candidates:4} candidates ({run.candidates / max(1, runs[0].candidates):.0%}), "
            f"{run.tuning_s:6.1f} s of tuning; latency {min(seconds) * 1e3:.2f} ms at least, over alone "
            f"{min(seconds) / min(found[0]):.3f}, median {middle:.3f} ({low:.3f} to {high:.3f})"
        )
        if run.transfer.subgraphs:
            print(f"         {run.transfer}")


if __name__ == "__main__":
    main()

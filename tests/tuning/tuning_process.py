"""A tuning process for the fault tests to disturb: `python tuning_process.py MODE DATABASE`.

Prints `ready`, then the key of each workload once its record is in the database, then `done` or `interrupted`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "measure")]

import doubles  # noqa: E402
from tvm import te  # noqa: E402

from subtune.backends.cpu.device import CPU  # noqa: E402
from subtune.core.candidate import DEFAULT, Candidate  # noqa: E402
from subtune.core.workload import Workload  # noqa: E402
from subtune.database import Database  # noqa: E402
from subtune.measure import LocalMeasurer, ReplayMeasurer  # noqa: E402
from subtune.tuning.search import Search, tune, tune_subgraph  # noqa: E402

CANDIDATES = tuple(Candidate.make("t", i=i) for i in range(6))
WORKLOADS = 40


def scale(n: int) -> Workload:
    a = te.placeholder((n,), "float32", name="a")
    return Workload.of(te.create_prim_func([a, te.compute((n,), lambda i: a[i] * 2)]), 1)


@dataclass(frozen=True)
class Subgraph:
    workload: Workload
    uses: int = 1


def replayed(path: str) -> None:
    """Forty workloads with made-up outcomes: most of the time passes in the database."""
    device = CPU("auto", threads=2)
    measurer = ReplayMeasurer({DEFAULT: 9.0, **{c: 2.0 + i for i, c in enumerate(CANDIDATES)}}, call_s=0.001)
    workloads = [scale(n) for n in range(1, WORKLOADS + 1)]
    with Database(path) as database:
        print("ready", flush=True)
        for workload in workloads:
            search = Search(topk=6, candidates=lambda w, d, k: CANDIDATES)
            tune_subgraph(workload, device, search, database=database, measurer=measurer)
            print(workload.key, flush=True)
    print("done", flush=True)


def real(path: str) -> None:
    """One workload with worker processes, the last of whose candidates hangs."""
    device = CPU("auto", threads=2)
    candidates = (Candidate("vector"), Candidate("hang"))
    with (
        Database(path) as database,
        LocalMeasurer(
            builders=1, schedule="doubles:schedule", search_path=[doubles.DIRECTORY], run_limit_s=3600
        ) as used,
    ):
        print("ready", flush=True)

        def tell(progress: object) -> None:
            print("tried", progress.tried, flush=True)  # type: ignore[attr-defined]

        records = tune(
            [Subgraph(doubles.workload())],
            device,
            Search(candidates=lambda w, d, k: candidates),
            database=database,
            measurer=used,
            progress=tell,
        )
    print("interrupted" if records.interrupted else "done", flush=True)


if __name__ == "__main__":
    {"replayed": replayed, "real": real}[sys.argv[1]](sys.argv[2])

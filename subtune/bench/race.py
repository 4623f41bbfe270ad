"""Frameworks timed in turns: interleaved rounds, medians, and every output compared with subtune's first.

A race is between jobs, the first of them subtune's; what they run is for others to say (`artifact_race`, the suites).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from subtune.bench.job import BenchError, Job, Round
from subtune.bench.process import Worker
from subtune.verification.verify import output_error

_MAX_CALLS = 2000
"""In a round; enough for the median of an operator of a microsecond."""
_MIN_CALLS = 3
_SLOW_S = 2.0
"""A framework whose call takes longer is called once in a round: its noise is small against that."""
FOREIGN_LIMIT = 0.1
"""Cores; /proc/stat counts in hundredths of a second, so a little is noise."""
DISAGREES = 0.1
"""Relative error above which a framework is said to compute something else. Two runs of BERT in bfloat16, each with its
own rounding in twelve layers, differ by 0.06."""
_NO_ERROR_KNOWN = 1e9
"""Stands for an infinite error (another shape, NaN): JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a race is. A framework is timed for about `round_s` seconds in each of `rounds` rounds."""

    rounds: int = 7
    round_s: float = 0.5
    timeout_s: float = 600.0
    """For a framework to load the model, and for a round."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One framework's figures. `ratio` is its latency over subtune's: above 1, subtune is faster.

    Attributes:
        ratio: median over rounds of the ratio within a round, so that a drift of the machine cancels.
        peak_rss_bytes: most memory the process ever held while it loaded and ran the model.
        before_bytes: what it held before: interpreter, inputs and the framework's libraries.
        rss_bytes: what it holds between calls in the end.
        max_rel: largest relative error of its outputs against subtune's (`subtune.verification.verify.OutputError`).
        via: what made its model of the ONNX file (onnx2torch), "" where that was written for it or it reads the file.
    """

    framework: str
    median_s: float
    min_s: float
    ratio: float
    samples: int
    peak_rss_bytes: int
    before_bytes: int = 0
    rss_bytes: int = 0
    max_rel: float = 0.0
    via: str = ""

    @property
    def model_bytes(self) -> int:
        """What loading and running the model added at its worst moment."""
        return self.peak_rss_bytes - self.before_bytes

    @property
    def agrees(self) -> bool:
        return self.max_rel <= DISAGREES


@dataclass(frozen=True, slots=True)
class Race:
    """`failures` holds (framework, reason) of those that could not be timed.

    `foreign_cores`: cores that other processes kept busy while frameworks were timed, on average.
    """

    rows: tuple[BenchRow, ...]
    failures: tuple[tuple[str, str], ...]
    foreign_cores: float

    def row(self, framework: str) -> BenchRow | None:
        return next((row for row in self.rows if row.framework == framework), None)


def shown_name(row: BenchRow) -> str:
    """The framework's name, with what made its model where the framework's users would not have written it so."""
    return f"{row.framework} ({row.via})" if row.via else row.framework


def best_peer(rows: Iterable[BenchRow], frameworks: Sequence[str]) -> BenchRow | None:
    """The fastest of `frameworks`; one that computes something else is no peer."""
    found = [row for row in rows if row.framework in frameworks and row.agrees]
    return min(found, key=lambda row: row.ratio, default=None)


def race(jobs: Sequence[Job], pace: Pace) -> Race:
    """Time each job's framework in turn. The first must work; of the others, failures are reported.

    Raises:
        BenchError: the first framework does not start, or dies.
    """
    failures: list[tuple[str, str]] = []
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(jobs[0], pace.timeout_s))]
        for job in jobs[1:]:
            try:
                workers.append(stack.enter_context(Worker(job, pace.timeout_s)))
            except BenchError as e:
                failures.append((job.framework, _without_name(e)))
        return run_race(workers, failures, pace, outputs_of(jobs[0]))


def run_race(
    workers: Sequence[Worker], failures: list[tuple[str, str]], pace: Pace, expected: list[np.ndarray]
) -> Race:
    """Time the workers in turn, who have loaded their models. `failures` are those who have not.

    Args:
        expected: what every framework's outputs are compared with.

    Raises:
        BenchError: the first framework dies.
    """
    timed = _rounds(workers, pace, failures)
    base = [median(one.seconds) for one in timed[0][1]]
    rows = tuple(_row(worker, rounds, base, expected) for worker, rounds in timed)
    every = [one for _, rounds in timed for one in rounds]
    foreign = sum(one.foreign_s for one in every) / max(sum(one.wall_s for one in every), 1e-9)
    return Race(rows, tuple(failures), foreign)


def cores_for(threads: int) -> tuple[int, ...]:
    """The cores that every framework is kept on: as many as threads, or all there are if those are fewer."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0))[:threads])


def write_inputs(path: Path, arrays: Sequence[np.ndarray]) -> str:
    """The arrays in the file that a `Job` names."""
    np.savez(path, *arrays)
    return str(path)


def _rounds(workers: Sequence[Worker], pace: Pace, failures: list[tuple[str, str]]) -> list[tuple[Worker, list[Round]]]:
    """Every framework's rounds; those that die on the way are left out and added to `failures`."""
    calls: dict[Worker, int] = {}
    timed: dict[Worker, list[Round]] = {worker: [] for worker in workers}
    for turn in range(pace.rounds + 1):
        for worker in list(timed):
            try:
                if turn == 0:
                    # The first call paid for page faults; the last of these tells how many fit into a round.
                    once = max(worker.time(2, 1, pace.timeout_s).seconds[-1], 1e-7)
                    least = 1 if once > _SLOW_S else _MIN_CALLS
                    calls[worker] = max(least, min(_MAX_CALLS, int(pace.round_s / once)))
                else:
                    warmup = 1 if calls[worker] == 1 else 2
                    timed[worker].append(worker.time(calls[worker], warmup, pace.timeout_s))
            except BenchError as e:
                if worker is workers[0]:
                    raise
                failures.append((worker.framework, _without_name(e)))
                del timed[worker]
    return list(timed.items())


def _row(worker: Worker, rounds: Sequence[Round], base: Sequence[float], expected: list[np.ndarray]) -> BenchRow:
    return BenchRow(
        framework=worker.framework,
        median_s=median(s for one in rounds for s in one.seconds),
        min_s=min(s for one in rounds for s in one.seconds),
        ratio=median(median(one.seconds) / own for one, own in zip(rounds, base, strict=True)),
        samples=sum(len(one.seconds) for one in rounds),
        peak_rss_bytes=max(one.peak_rss_bytes for one in rounds),
        before_bytes=worker.before_bytes,
        rss_bytes=rounds[-1].rss_bytes,
        max_rel=_max_rel(worker.job, expected),
        via=worker.via,
    )


def _max_rel(job: Job, expected: list[np.ndarray]) -> float:
    """Largest error over all outputs; dtypes may differ in width, shapes may not."""
    if not job.outputs:
        return 0.0
    got = outputs_of(job)
    if len(got) != len(expected):
        return _NO_ERROR_KNOWN
    worst = 0.0
    for index, (one, ours) in enumerate(zip(got, expected, strict=True)):
        if job.to_ours and one.ndim == len(job.to_ours):
            one = one.transpose(job.to_ours)
        error = output_error(str(index), one.astype(ours.dtype), ours)
        worst = max(worst, error.max_rel)
    return min(worst, _NO_ERROR_KNOWN)


def outputs_of(job: Job) -> list[np.ndarray]:
    """What a worker left of its first call."""
    if not job.outputs:
        return []
    with np.load(job.outputs) as stored:
        return [stored[f"arr_{index}"] for index in range(len(stored.files))]


def _without_name(error: BenchError) -> str:
    return str(error).partition(": ")[2]

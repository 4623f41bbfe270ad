"""The files of one case, and the processes that hold it: one for each framework, which go from case to case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from subtune.backends.base import Device
from subtune.bench.coverage.arrays import draw
from subtune.bench.coverage.case import CASE_SUFFIX, Case
from subtune.bench.coverage.grammar import body
from subtune.bench.coverage.onnx_dialect import OnnxDialect
from subtune.bench.coverage.work import Work, work_of
from subtune.bench.job import BenchError, Job
from subtune.bench.peers import peers_of
from subtune.bench.process import Worker
from subtune.bench.race import cores_for, write_inputs


@dataclass(frozen=True, slots=True)
class Files:
    """A case on disk. `job` has everything but the framework and what it loads."""

    model: Path
    work: Work
    job: Job

    def job_of(self, framework: str, path: Path | None = None) -> Job:
        outputs = str(self.model.with_name(f"{framework}.npz"))
        return replace(self.job, framework=framework, path=str(path or self.model), outputs=outputs)


def written(case: Case, folder: Path, device: Device) -> Files:
    """The case's model, its description and its inputs, in `folder`."""
    dialect = OnnxDialect(case.dtype)
    outputs = body(dialect, case)
    model = dialect.model(outputs, draw(case, dialect.weights))
    path = folder / "case.onnx"
    onnx.save(model, path)
    path.with_suffix(CASE_SUFFIX).write_text(case.to_json())
    inputs = write_inputs(folder / "inputs.npz", draw(case, dialect.inputs))
    threads, kind = device.model.host.threads, device.backend.kind
    job = Job(
        "", "", threads, inputs, tuple(g.name for g in dialect.inputs), tuple(g.dtype for g in dialect.inputs),
        cores=cores_for(threads) if peers_of(kind).is_pinned else (), allow_tf32=device.numerics.tf32, kind=kind,
    )  # fmt: skip
    return Files(path, work_of(model), job)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The processes that took a model, and why the others did not, by framework."""

    workers: Mapping[str, Worker]
    reasons: Mapping[str, str]


class Lane:
    """A process for each framework that was asked for; one that dies is started again for the next case.

    Args:
        timeout_s: for a framework to load a case.
        side_by_side: whether frameworks may load at the same time; nobody times anything meanwhile.
    """

    def __init__(self, timeout_s: float, side_by_side: bool):
        self._timeout_s, self._side_by_side = timeout_s, side_by_side
        self._workers: dict[str, Worker] = {}

    def load(self, jobs: Sequence[Job]) -> Loaded:
        for job in jobs:  # here: Linux ends a process with the *thread* that started it (`_die_with_parent`)
            self._running(job)
        if not self._side_by_side:
            found = [self._tried(job) for job in jobs]
        else:
            with ThreadPoolExecutor(len(jobs)) as beside:
                found = list(beside.map(self._tried, jobs))
        names = [job.framework for job in jobs]
        loaded = {name: one for name, one in zip(names, found, strict=True) if isinstance(one, Worker)}
        return Loaded(loaded, {n: one for n, one in zip(names, found, strict=True) if isinstance(one, str)})

    def is_alive(self, framework: str) -> bool:
        return framework in self._workers and self._workers[framework].is_alive

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _tried(self, job: Job) -> Worker | str:
        """The process that has it, or why there is none."""
        try:
            return self._loaded(job)
        except BenchError as e:
            return str(e).partition(": ")[2]

    def _loaded(self, job: Job) -> Worker:
        worker = self._running(job)
        try:
            worker.load(job, self._timeout_s)
        except BenchError as e:
            if "no answer" in str(e):  # it would answer the next question with what it owes to this one
                worker.close()
            raise
        return worker

    def _running(self, job: Job) -> Worker:
        """The framework's process, started anew if it died."""
        if not self.is_alive(job.framework):
            if job.framework in self._workers:
                self._workers[job.framework].close()
            self._workers[job.framework] = Worker.started(job)
        return self._workers[job.framework]

"""Winners to and from MetaSchedule's JSON database: two files that `relax.transform.MetaScheduleApplyDatabase` uses."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.core.candidate import Candidate
from subtune.core.errors import DatabaseError
from subtune.core.kernel import Kernel
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database.store import Database

FILES = ("database_workload.json", "database_tuning_record.json")


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How many winners went over, and why the others could not: (workload key, reason)."""

    count: int
    skipped: tuple[tuple[str, str], ...]


def export_metaschedule(
    database: Database,
    directory: str | os.PathLike[str],
    device: Device | HardwareModel,
    schedule: str = "subtune.backends:schedule",
) -> Exchanged:
    """Write the winners measured on `device` into `directory`, made if missing.

    Only a winner that is a trace of its own workload can go over; one that computes on padded axes is none. A trace
    that packs a constant does so inside the function, in a block marked as MetaSchedule marks its own
    (`SplitLayoutRewritePreproc` takes it out again); exp, tanh, erf and sigmoid are TVM's own in the exported schedule.

    Raises:
        DatabaseError: the directory holds such files already, or cannot be written.
    """
    device = as_device(device)
    out = MetaScheduleWriter(directory, device.model.target(), must_be_new=True)
    module, _, name = schedule.partition(":")
    function = getattr(importlib.import_module(module), name)
    skipped = []
    count = 0
    for record in _records(database, device):
        workload = database.workload(record.workload_key)
        assert workload is not None
        kernel = function(workload, record.candidate, device)
        if reason := out.add(workload.func, kernel, record.timing.median_s):
            skipped.append((workload.key, reason))
        else:
            count += 1
    return Exchanged(count, tuple(skipped))


def _records(database: Database, device: Device) -> Iterable[Record]:
    """Of each workload one: that of models in memory before that of models that a cache keeps."""
    found: dict[str, Record] = {}
    for one in (device, device.for_working_set(0)):
        for record in database.list_records(device=one.scope().device, versions=[device.backend.versions()]):
            found.setdefault(record.workload_key, record)
    return found.values()


class MetaScheduleWriter:
    """Kernels into the JSON database in `directory`, made if missing.

    Raises:
        DatabaseError: the directory holds such files already though it `must_be_new`, or cannot be written.
    """

    def __init__(self, directory: str | os.PathLike[str], target: Any, must_be_new: bool = False) -> None:
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        self._database = _opened(Path(directory), JSONDatabase, must_be_new)
        self._target = target

    def add(self, func: Any, kernel: Any, seconds: float) -> str:
        """Why the kernel of `func` cannot go over; "" where it did."""
        from tvm.s_tir.meta_schedule.arg_info import ArgInfo
        from tvm.s_tir.meta_schedule.database import TuningRecord

        if reason := _obstacle(kernel):
            return reason
        mod = _normalised(func)
        stored = self._database.commit_workload(mod)
        arguments = ArgInfo.from_prim_func(mod["main"])
        self._database.commit_tuning_record(
            TuningRecord(kernel.trace, stored, [float(seconds)], self._target, arguments)
        )
        return ""


def import_metaschedule(database: Database, directory: str | os.PathLike[str]) -> Exchanged:
    """Take the records in `directory` as suggestions: the next compile checks and times them like any candidate.

    Raises:
        DatabaseError: the files are missing or are not MetaSchedule's.
    """
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    directory = Path(directory)
    if missing := [name for name in FILES if not (directory / name).is_file()]:
        raise DatabaseError(f"{directory} holds no {missing[0]}; name the directory of a MetaSchedule database")
    try:
        records = JSONDatabase(work_dir=str(directory)).get_all_tuning_records()
    except Exception as e:  # TVM raises its own type for each kind of damage
        raise DatabaseError(f"{directory} is no MetaSchedule database that this TVM reads: {_last_line(e)}") from e
    skipped = []
    count = 0
    for record in records:
        functions = list(record.workload.mod.functions.values())
        if len(functions) != 1:
            skipped.append((directory.name, f"a workload of {len(functions)} functions"))
            continue
        workload = Workload.of(functions[0], _num_outputs(functions[0]))
        if not record.run_secs:
            skipped.append((workload.key, "it was never timed"))
            continue
        seconds = [float(s) for s in record.run_secs]
        candidate = Candidate.make("trace", json=json.dumps(_plain(record.trace.as_json())))
        database.add_suggestion(workload, candidate, sum(seconds) / len(seconds))
        count += 1
    return Exchanged(count, tuple(skipped))


def _normalised(func: Any) -> Any:
    """The module as MetaScheduleApplyDatabase will look it up: attributes take part in the comparison."""
    import tvm
    from tvm.s_tir import meta_schedule  # noqa: F401  # registers the function below

    return tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(func)


def _obstacle(kernel: Any) -> str:
    if not isinstance(kernel, Kernel):
        return f"its family does not apply any more: {kernel.reason}"
    if kernel.trace is None:
        return "it is not a trace of its workload"
    return ""


def _opened(directory: Path, make: Any, must_be_new: bool) -> Any:
    if must_be_new and any((directory / name).exists() for name in FILES):
        raise DatabaseError(f"{directory} holds a MetaSchedule database already; name another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return make(work_dir=str(directory))
    except (OSError, ValueError) as e:
        raise DatabaseError(f"cannot write a MetaSchedule database to {directory}: {_last_line(e)}") from e


def _num_outputs(func: Any) -> int:
    """Outputs are the last parameters: count those that the body stores to."""
    import tvm_ffi
    from tvm import tirx

    stored: list[Any] = []
    tvm_ffi.structural_walk(func, (tirx.BufferStore, lambda node: stored.append(node.buffer)))
    return sum(any(param.same_as(buffer) for buffer in stored) for param in func.params)


def _plain(value: Any) -> Any:
    """TVM's containers and numbers as JSON's."""
    if isinstance(value, str | int | float | bool | None):
        return value if not isinstance(value, str) else str(value)
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return [_plain(v) for v in value]
    return value.value


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__

"""The process that times one framework: `python -m subtune.bench.worker`, commands as JSON lines on stdin.

One framework per process, because two thread pools in one process stall each other. The first line is the job
(see `subtune.bench.job`), answered by {"before_bytes": ..., "via": ...}; every further {"calls": n, "warmup": m} by the
fields of a `Round`. Another job takes the place of the first. Whatever fails is answered by {"error": ...}.

A call takes numpy arrays and gives arrays back, through the Python API of the framework; what is timed is such a call
as a whole, and the loop that times it is the same for all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from subtune.bench.job import Job
from subtune.bench.peers import Peer, import_libraries, load

_ALIGNMENT = 64
_REASON_CHARS = 200


def main() -> None:
    _die_with_parent()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the frameworks print must not end up among the replies
    peer: Peer | None = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "framework" in order:
                peer = None  # the last one's memory goes before the next one's comes
                job = Job.from_json(line)
                peer, before_bytes = _prepare(job)
                reply = {"before_bytes": before_bytes, "via": peer.via}
            else:
                assert peer is not None, "nothing was loaded"
                reply = _time(peer, order["calls"], order["warmup"])
        except Exception as e:
            # Whatever a foreign framework raises is reported to the parent, which says so and goes on without it.
            reply = {"error": _reason(e)}
        print(json.dumps(reply), file=replies)


def _prepare(job: Job) -> tuple[Peer, int]:
    """The framework, its first call done and its outputs written; and the memory in use before the model was loaded."""
    if job.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job.cores)
    inputs = _read_inputs(job)
    import_libraries(job)
    before_bytes = memory_bytes("VmRSS")
    _forget_peak()
    peer = load(job, inputs)
    result = peer.call()
    if job.outputs:
        arrays = [np.asarray(array) for array in peer.outputs(result)]
        np.savez(job.outputs, *(array.astype(np.float32) if array.dtype.kind == "V" else array for array in arrays))
    return peer, before_bytes


def _read_inputs(job: Job) -> dict[str, np.ndarray]:
    """The arrays, each on a 64-byte boundary: no framework has to copy what it could have read in place."""
    if not job.inputs:
        return {}
    found = {}
    with np.load(job.inputs) as stored:
        for index, name in enumerate(job.names):
            array = stored[f"arr_{index}"]
            if array.dtype.kind == "V":  # the file knows none of ml_dtypes' types
                import ml_dtypes

                array = array.view(getattr(ml_dtypes, job.dtypes[index]))
            raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % _ALIGNMENT
            found[name] = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            np.copyto(found[name], array)
    return found


def _time(peer: Peer, calls: int, warmup: int) -> dict[str, Any]:
    call = peer.call
    for _ in range(warmup):
        call()
    seconds = []
    clock = time.perf_counter
    busy, own, begin = _machine_busy_s(), time.process_time(), clock()
    if peer.seconds is not None:
        seconds = peer.seconds(calls)
    else:
        for _ in range(calls):
            start = clock()
            call()
            seconds.append(clock() - start)
    wall_s = clock() - begin
    return {
        "seconds": seconds,
        "wall_s": wall_s,
        "foreign_s": max(0.0, _machine_busy_s() - busy - (time.process_time() - own)),
        "peak_rss_bytes": memory_bytes("VmHWM"),
        "rss_bytes": memory_bytes("VmRSS"),
    }


def memory_bytes(field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (high-water mark) of this process. (getrusage counts the parent's, too.)"""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _forget_peak() -> None:
    """Let the high-water mark begin anew, where Linux allows it: importing a framework is not running a model."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _machine_busy_s() -> float:
    """CPU seconds that all processes of this machine have spent since it started; 0.0 where it does not say."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _die_with_parent() -> None:
    """A stopped process would outlive a parent that is killed: ask Linux to end it then."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _reason(error: Exception) -> str:
    """The line that says what happened, with the kind of error in front: the first, or the last of a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    if isinstance(error, ModuleNotFoundError):
        return f"not installed ({line})"
    return f"{type(error).__name__}: {line[:_REASON_CHARS]}"


if __name__ == "__main__":
    main()

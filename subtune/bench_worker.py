"""The process that times one framework: `python -m subtune.bench_worker`, commands as JSON lines on stdin.

One framework per process, because two thread pools in one process stall each other. The first line is the job
(see `subtune.bench.Job`), answered by {"ready": ...}; every further
{"calls": n, "warmup": m} by {"seconds": [...], ...}.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from subtune.random_inputs import random_inputs
from subtune.tensorspec import TensorSpec

Call = Callable[[], Any]


def _subtune_call(job: dict[str, Any], inputs: dict[str, np.ndarray]) -> Call:
    from subtune.artifact import load

    artifact = load(job["path"], threads=job["threads"])
    return lambda: artifact.run(inputs)


def _onnxruntime_call(job: dict[str, Any], inputs: dict[str, np.ndarray]) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(job["path"], options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def _default_call(job: dict[str, Any], inputs: dict[str, np.ndarray]) -> Call:
    """TVM's own importer and default pipeline, for this processor."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(array.shape) for name, array in inputs.items()}
    mod = from_onnx(onnx.load(job["path"]), shape_dict=shapes, keep_params_in_input=False)
    target = tvm.target.Target(json.loads(job["target"]))
    with target:
        mod = relax.get_pipeline("zero")(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
    args = [tvm.runtime.tensor(array) for array in inputs.values()]  # in the model's order, as main's parameters are
    return lambda: machine["main"](*args)


_FRAMEWORKS = {"subtune": _subtune_call, "onnxruntime": _onnxruntime_call, "default": _default_call}


def _peak_rss_bytes() -> int:
    """High-water mark of this process's memory. (getrusage's counts the parent's, which a fork hands down.)"""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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


def main() -> None:
    _die_with_parent()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the frameworks print must not end up among the replies
    job = json.loads(sys.stdin.readline())
    specs = [TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in job["inputs"]]
    try:
        call = _FRAMEWORKS[job["framework"]](job, random_inputs(specs, job["seed"], job["limits"]))
        call()
    except Exception as e:
        # Whatever a foreign framework raises is reported to the parent, which says so and goes on without it.
        print(json.dumps({"error": f"{type(e).__name__}: {str(e).strip().splitlines()[-1:]}"}), file=replies)
        return
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        order = json.loads(line)
        for _ in range(order["warmup"]):
            call()
        seconds = []
        busy, own, begin = _machine_busy_s(), time.process_time(), time.perf_counter()
        for _ in range(order["calls"]):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        foreign_s = max(0.0, _machine_busy_s() - busy - (time.process_time() - own))
        reply = {
            "seconds": seconds,
            "wall_s": time.perf_counter() - begin,
            "foreign_s": foreign_s,
            "peak_rss": _peak_rss_bytes(),
        }
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()

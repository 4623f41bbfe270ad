"""What a framework says its operators took: without the layout changes around them and without the call.

A network changes layouts at its ends, a model of one convolution around that very convolution. Where subtune is given
its own layout, comparing its kernel with a peer's whole call would flatter it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_MOVES = ("Reorder", "ReorderInput", "ReorderOutput", "Transpose", "Reshape", "Parameter", "Input", "Result", "Output")


def onnxruntime_seconds(path: str, options: Any, inputs: Mapping[str, np.ndarray], calls: int) -> list[float]:
    """Of each of `calls` runs, by ONNX Runtime's profile, which counts in microseconds."""
    import onnxruntime as ort

    options.enable_profiling = True
    options.profile_file_prefix = f"{path}.{os.getpid()}"
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    warmup = 2
    for _ in range(warmup + calls):
        session.run(None, dict(inputs))
    profile = Path(session.end_profiling())
    runs: list[float] = []
    # Events are written as they end, a run's own after those of its nodes; without one for the run, by counting.
    nodes = [event for event in json.loads(profile.read_text()) if event.get("cat") == "Node"]
    profile.unlink()
    kernels = sorted((e for e in nodes if e["name"].endswith("_kernel_time")), key=lambda e: e["ts"])
    per_run = len(kernels) // (warmup + calls)
    if per_run == 0:
        raise RuntimeError("its profile holds no operators")
    for first in range(warmup * per_run, len(kernels), per_run):
        part = kernels[first : first + per_run]
        runs.append(sum(e["dur"] for e in part if e["args"]["op_name"] not in _MOVES) * 1e-6)
    return runs


def openvino_seconds(request: Any) -> float:
    """Of the last inference, by OpenVINO's performance counters."""
    return sum(node.real_time.total_seconds() for node in request.get_profiling_info() if node.node_type not in _MOVES)

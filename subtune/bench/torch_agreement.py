"""Before a race: does the PyTorch module compute what the ONNX file says?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from subtune.bench.job import BenchError, Job
from subtune.bench.peer import Arrays, Peer
from subtune.bench.peers import AGREEMENT
from subtune.bench.process import Worker

_FLOAT32, _HALF = 1e-4, 2e-2
"""Largest difference over the output's scale: the module's in float32 from the file's, which may round to half."""


def require_function(named: str, timeout_s: float = 600.0) -> None:
    """Raise BenchError, one sentence, unless `package.module:function` gives an nn.Module; tried in its own process."""
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", named):
        raise BenchError(f"--torch {named} is not of the form package.module:function")
    if reason := _reason(Job(AGREEMENT, "", 1, torch_function=named), timeout_s):
        raise BenchError(reason)


def disagreement(job: Job, timeout_s: float) -> str:
    """Why the module of the job may not be raced; "" where its outputs are the file's."""
    return _reason(replace(job, framework=AGREEMENT, outputs="", kind="cpu"), timeout_s)


def agreement(job: Job, inputs: Arrays) -> Peer:
    """In the worker: both computed once. A job without a file only loads the user's module."""
    from subtune.bench.torch_source import from_function, torch_module

    if not job.path:
        from_function(job.torch_function)
        return Peer(lambda: None)
    module, _ = torch_module(job)
    got, expected = _torch_outputs(module, job, inputs), _file_outputs(job, inputs)
    if [a.shape for a in got] != [a.shape for a in expected]:
        shapes = " and ".join(str([a.shape for a in arrays]) for arrays in (got, expected))
        raise BenchError(f"the PyTorch module and the ONNX file have outputs of shapes {shapes}")
    for index, (one, other) in enumerate(zip(got, expected, strict=True)):
        wide = other.astype(np.float32)
        tolerance = _FLOAT32 if other.dtype in (np.float32, np.float64) else _HALF
        error = float(np.abs(one - wide).max(initial=0.0)) / max(float(np.abs(wide).max(initial=0.0)), 1e-30)
        if not error <= tolerance:
            raise BenchError(f"output {index} of the PyTorch module is {error:.1e} off the ONNX file's: not raced")
    return Peer(lambda: None)


def _torch_outputs(module: Any, job: Job, inputs: Arrays) -> list[np.ndarray]:
    import torch

    from subtune.bench.torch_arrays import as_array, as_tensor

    tensors = [as_tensor(inputs[name]) for name in job.names]
    with torch.inference_mode():
        found = module.float()(*(tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors))
    return [as_array(tensor) for tensor in (found if isinstance(found, tuple | list) else [found])]


def _file_outputs(job: Job, inputs: Arrays) -> list[np.ndarray]:
    """ONNX Runtime's; where it is not there or refuses the file, those of onnx's own evaluator."""
    try:
        import onnxruntime as ort

        session = ort.InferenceSession(job.path, providers=["CPUExecutionProvider"])
        return list(session.run(None, inputs))
    except Exception:  # its errors have no common base
        from onnx.reference import ReferenceEvaluator

        return list(ReferenceEvaluator(job.path).run(None, dict(inputs)))  # type: ignore[arg-type]


def _reason(job: Job, timeout_s: float) -> str:
    try:
        Worker(job, timeout_s).close()
    except BenchError as e:
        return str(e).removeprefix(f"{AGREEMENT}: ").removeprefix("BenchError: ")
    return ""

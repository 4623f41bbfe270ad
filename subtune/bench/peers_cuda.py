"""The frameworks on a GPU. Inputs and outputs stay there: a call is the model's kernels, waited for."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from subtune.bench.job import Job
from subtune.bench.peer import Arrays, Peer
from subtune.bench.peers import Peers
from subtune.bench.torch_op import torch_op

_HALF = {"fp16": "float16", "bf16": "bfloat16"}


def artifact(job: Job, inputs: Arrays) -> Peer:
    """subtune's, tuned or with dlight's schedules: one CUDA graph."""
    from subtune.artifact import load

    loaded = load(job.path)
    first = list(loaded.run(inputs).values())
    return Peer(loaded.program.replay, lambda _: first)  # type: ignore[attr-defined]


def torch_graph(job: Job, inputs: Arrays) -> Peer:
    """PyTorch eager, channels last, captured in a CUDA graph."""
    import torch

    module, tensors = _on_gpu(job, inputs)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                module(*tensors)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = module(*tensors)

    # A graph holds addresses: what lies there has to live as long.
    def call(_held: Any = (module, tensors)) -> Any:
        graph.replay()
        torch.cuda.synchronize()
        return result

    return Peer(call, _arrays)


def torch_compiled(job: Job, inputs: Arrays) -> Peer:
    """`torch.compile` in mode max-autotune, weights frozen; it makes its own CUDA graphs."""
    import torch
    from torch._inductor import config

    config.freezing = True
    module, tensors = _on_gpu(job, inputs)
    compiled = torch.compile(module, mode="max-autotune")

    def call() -> Any:
        with torch.inference_mode():
            result = compiled(*tensors)
        torch.cuda.synchronize()
        return result

    for _ in range(3):  # the second call captures
        call()
    return Peer(call, _arrays)


def _on_gpu(job: Job, inputs: Arrays) -> tuple[Any, list[Any]]:
    """The module and its inputs; in half precision where the artifact is, but for the integers."""
    import torch

    _without_torchvision()
    from subtune.bench.torch_model import converted, in_half

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.allow_tf32
    torch.backends.cudnn.benchmark = True
    module = converted(job.path).cuda()
    dtype = getattr(torch, _HALF[job.precision]) if job.precision in _HALF else None
    if dtype is not None:
        module = in_half(module, dtype)
    if any(inputs[name].ndim == 4 for name in job.names):
        module = module.to(memory_format=torch.channels_last)
    tensors = []
    for name in job.names:
        tensor = torch.from_numpy(inputs[name]).cuda()
        tensor = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        tensors.append(tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor)
    if dtype is None:
        return module, tensors
    try:
        with torch.inference_mode():
            module(*tensors)
    except RuntimeError:  # constants of the graph stay float32 and meet halves: PyTorch's own way with such models
        with torch.autocast("cuda", dtype), torch.inference_mode():
            module(*tensors)
        return torch.autocast("cuda", dtype)(module), tensors
    return module, tensors


def _without_torchvision() -> None:
    """onnx2torch imports it for operators on boxes, which few models have."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        stand_in = ModuleType("torchvision")
        stand_in.ops = ModuleType("torchvision.ops")  # type: ignore[attr-defined]
        sys.modules["torchvision"], sys.modules["torchvision.ops"] = stand_in, stand_in.ops


def _arrays(result: Any) -> list[np.ndarray]:
    results = [result] if hasattr(result, "cpu") else list(result)
    return [tensor.float().cpu().numpy() for tensor in results]


OPERATOR = "torch-op"
"""One operator of a GPU suite in PyTorch, whose description is the job's path."""
AGAINST = ("torch-graph", "torch-max-autotune", "dlight")
PEERS = Peers(
    {
        OPERATOR: torch_op,
        "subtune": artifact,
        "dlight": artifact,
        "torch-graph": torch_graph,
        "torch-max-autotune": torch_compiled,
    },
    AGAINST,
    AGAINST,
)

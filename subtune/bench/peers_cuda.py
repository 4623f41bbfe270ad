"""The frameworks on a GPU. Inputs and outputs stay there, and what counts is the device's time from launch to launch.

Every one of PyTorch's ways is captured in a CUDA graph over inputs that stay where they are, as subtune's are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from subtune.bench.job import Job
from subtune.bench.peer import Arrays, Peer
from subtune.bench.peers import ONE_KERNEL, REFERENCE, STATIC, Peers
from subtune.bench.torch_op import torch_op

_ROW_S = 1e-3
"""Of launches in a row that make one figure: the clock's steps and the host's jitter are small against it."""
_MAX_ROW = 100
_LOOKS = 5


def artifact(job: Job, inputs: Arrays) -> Peer:
    """subtune's, tuned or with dlight's schedules: one CUDA graph, of a model of many shapes that of the inputs'."""
    from subtune.artifact import load

    loaded = load(job.path)
    first = list(loaded.run(inputs).values())
    at = (loaded.symbols_at(inputs),) if loaded.manifest.domain.symbols else ()
    program: Any = loaded.program
    replay, seconds = functools.partial(program.replay, *at), functools.partial(program.device_seconds, *at)
    return Peer(replay, lambda _: first, seconds=_in_rows(lambda runs: seconds(runs=runs)))


def torch_graph(job: Job, inputs: Arrays) -> Peer:
    """PyTorch eager, captured in a CUDA graph."""
    module, tensors, via = _on_gpu(job, inputs)
    return captured(module, tensors, via)


def torch_compiled(job: Job, inputs: Arrays, mode: str = "default") -> Peer:
    """`torch.compile`, weights frozen."""
    import torch
    from torch._inductor import config

    torch._dynamo.reset()  # of the last model in this process
    config.freezing = True
    module, tensors, via = _on_gpu(job, inputs)
    return captured(torch.compile(module, mode=mode), tensors, via)


_OF_ALL_SHAPES: dict[str, Any] = {}
"""The last compiled module, by its file: another shape of the same model finds it as it was left."""


def torch_dynamic(job: Job, inputs: Arrays) -> Peer:
    """`torch.compile` with symbolic dimensions; a CUDA graph of its own for each shape."""
    import torch
    from torch._inductor import config

    module, tensors, via = _on_gpu(job, inputs)
    if job.path not in _OF_ALL_SHAPES:
        torch._dynamo.reset()
        config.freezing = True
        _OF_ALL_SHAPES.clear()
        _OF_ALL_SHAPES[job.path] = torch.compile(module, dynamic=True)
    return captured(_OF_ALL_SHAPES[job.path], tensors, via)


def tensorrt(job: Job, inputs: Arrays) -> Peer:
    from subtune.bench.peers_tensorrt import engine  # which captures as the others here

    run, tensors = engine(job, inputs)
    return captured(run, tensors, "")


def reference(job: Job, inputs: Arrays) -> Peer:
    """A case of the coverage suite in float64, once."""
    from subtune.bench.coverage.torch_dialect import reference as computed

    found = computed(job.path, [inputs[name] for name in job.names], "cuda", job.threads)
    return Peer(lambda: found)


def captured(run: Callable[..., Any], tensors: list[Any], via: str) -> Peer:
    """Calls of `run` on these tensors, as launches of one graph."""
    import torch

    from subtune.bench.torch_arrays import as_array

    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                run(*tensors)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run(*tensors)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    # A graph holds addresses: what lies there has to live as long.
    def call(_held: Any = (run, tensors)) -> Any:
        graph.replay()
        torch.cuda.synchronize()
        return result

    def row(runs: int) -> float:
        graph.replay()
        begin.record()
        for _ in range(runs):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / runs

    def outputs(found: Any) -> list[np.ndarray]:
        return [as_array(tensor) for tensor in ([found] if hasattr(found, "cpu") else found)]

    return Peer(call, outputs, _in_rows(row), via)


def _in_rows(row: Callable[[int], float]) -> Callable[[int], list[float]]:
    """Figures that each are the mean of as many launches in a row as take `_ROW_S`."""

    @functools.cache
    def runs() -> int:
        once = min(row(1) for _ in range(_LOOKS))
        return max(1, min(_MAX_ROW, int(_ROW_S / max(once, 1e-9))))

    return lambda calls: [row(runs()) for _ in range(-(-calls // runs()))]


def _on_gpu(job: Job, inputs: Arrays) -> tuple[Any, list[Any], str]:
    """The module, its inputs, what made it; products in TF32 where the artifact's are."""
    import torch

    from subtune.bench.torch_source import prepared

    _without_torchvision()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.allow_tf32
    torch.backends.cudnn.benchmark = True
    return prepared(job, inputs, "cuda")


def _without_torchvision() -> None:
    """onnx2torch imports it for operators on boxes, which few models have."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        stand_in = ModuleType("torchvision")
        stand_in.ops = ModuleType("torchvision.ops")  # type: ignore[attr-defined]
        sys.modules["torchvision"], sys.modules["torchvision.ops"] = stand_in, stand_in.ops


OPERATOR = "torch-op"
"""One operator of a GPU suite in PyTorch, whose description is the job's path."""
AGAINST = ("torch-graph", "torch-compile", "torch-dynamic", "torch-max-autotune", "tensorrt", "dlight")
INSTALLED = tuple(name for name in AGAINST if name != "torch-dynamic" and (name != "tensorrt" or find_spec("tensorrt")))
LIBRARIES = ("torch-graph", "torch-compile", "torch-max-autotune", "tensorrt")
"""What others ship: those that a suite's bar may be about."""
PEERS = Peers(
    {
        OPERATOR: torch_op,
        REFERENCE: reference,
        "subtune": artifact,
        "dlight": artifact,
        STATIC: artifact,
        ONE_KERNEL: artifact,
        "torch-dynamic": torch_dynamic,
        "torch-graph": torch_graph,
        "torch-compile": torch_compiled,
        # its own graphs would copy the inputs: the graph here has them in place
        "torch-max-autotune": functools.partial(torch_compiled, mode="max-autotune-no-cudagraphs"),
        "tensorrt": tensorrt,
    },
    AGAINST,
    INSTALLED,
    is_gpu=True,
)

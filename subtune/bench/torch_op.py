"""One operator in PyTorch on a GPU: cuBLAS, cuDNN and ATen's kernels, timed as the tuner times subtune's.

Calls rotate through copies of the arguments that together exceed L2, many of them in one CUDA graph: nobody waits for
the host, and nobody finds the last call's data. Where PyTorch has several ways to one result, the fastest one counts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subtune.bench.gpu_op import GpuOp
from subtune.bench.job import BenchError, Job
from subtune.bench.peer import Arrays, Peer
from subtune.measure.clock import CONTINUOUS_S, LONG_CALL_S

_MAX_COPIES = 32
_MAX_CALLS = 256
_GRAPH_S = 400e-6
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Way:
    """How PyTorch computes an operator: tensors made anew for every copy, and the call."""

    name: str
    make: Callable[[], Sequence[Any]]
    call: Callable[..., Any]


def torch_op(job: Job, inputs: Arrays) -> Peer:
    """The fastest of PyTorch's ways for the operator whose description is in the file `job.path`."""
    import torch

    op = GpuOp.from_json(Path(job.path).read_text())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.allow_tf32
    torch.backends.cudnn.benchmark = True
    found: list[_Graph] = []
    reasons = []
    with torch.inference_mode():
        for way in _ways(op):
            try:
                found.append(_Graph(way))
            except RuntimeError as e:  # a dtype or an extent that this function does not take
                reasons.append(f"{way.name}: {str(e).splitlines()[0]}")
    if not found:
        raise BenchError("; ".join(reasons) or f"PyTorch has no {op.kind} of {op.dtype}")
    best = min(found, key=lambda graph: min(graph.seconds() for _ in range(_LOOKS)))
    return Peer(lambda: best.way.name, list, lambda calls: [best.seconds() for _ in range(calls)])


class _Graph:
    """Many calls of one way, captured once."""

    def __init__(self, way: Way) -> None:
        import torch

        self.way = way
        first = way.make()
        result = way.call(*first)
        nbytes = sum(t.nbytes for t in (*first, result) if isinstance(t, torch.Tensor))
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        copies = max(1, min(_MAX_COPIES, math.ceil(2 * l2 / max(1, nbytes))))
        self._sets = [first, *(way.make() for _ in range(copies - 1))]
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        once = self._timed(lambda: [way.call(*tensors) for tensors in self._sets]) / copies
        self._count = copies * math.ceil(min(_MAX_CALLS, max(1.0, _GRAPH_S / once)) / copies)
        self._graph = torch.cuda.CUDAGraph()
        held: list[Any] = [None] * copies  # results rotate like the arguments
        with torch.cuda.graph(self._graph):
            for i in range(self._count):
                held[i % copies] = way.call(*self._sets[i % copies])
        self._held = held
        graph_s = self._timed(self._graph.replay)
        is_long = graph_s / self._count > LONG_CALL_S
        self._replays = math.ceil(CONTINUOUS_S / graph_s) if is_long else 1

    def seconds(self) -> float:
        """Of one call, from launches of the graph without a pause."""
        return self._timed(self._replay_all) / self._count / self._replays

    def _replay_all(self) -> None:
        for _ in range(self._replays):
            self._graph.replay()

    def _timed(self, run: Callable[[], Any]) -> float:
        self._begin.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e-3


def _ways(op: GpuOp) -> list[Way]:
    """With the epilogue: fused where PyTorch has a function for it, else as kernels of their own."""
    import torch

    def tensor(*shape: int) -> Any:
        if op.dtype == "int8":
            return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
        if op.dtype.startswith("float8"):  # which PyTorch draws no random numbers of
            return torch.randn(shape, device="cuda", dtype=torch.float16).to(getattr(torch, op.dtype))
        return torch.randn(shape, device="cuda", dtype=getattr(torch, op.dtype))

    if op.kind == "copy":
        return [Way("copy", lambda: [tensor(*op.dims)], torch.clone)]
    if op.kind == "add":
        return [Way("add", lambda: [tensor(*op.dims), tensor(*op.dims)], torch.add)]
    if op.kind == "sum":
        return [Way("sum", lambda: [tensor(*op.dims)], lambda x: x.sum(-1))]
    if op.kind == "max":
        return [Way("amax", lambda: [tensor(*op.dims)], lambda x: x.amax(-1))]
    if op.kind == "softmax":
        return [Way("softmax", lambda: [tensor(*op.dims)], lambda x: x.softmax(-1))]
    if op.kind == "product":
        return _products(op, tensor)
    if op.kind == "conv":
        return _convolutions(op, tensor)
    return []


def _products(op: GpuOp, tensor: Callable[..., Any]) -> list[Way]:
    import torch

    *lead, m, n, k = op.dims

    def make() -> list[Any]:
        a = tensor(*lead, m, k) if op.layout[0] == "n" else tensor(*lead, k, m).mT
        b = tensor(*lead, n, k).mT if op.layout[1] == "t" else tensor(*lead, k, n)
        return [a, b, tensor(n)] if op.epilogue else [a, b]

    if op.epilogue:
        return [] if lead else _with_epilogue(op, make)
    if op.dtype == "int8":
        return [] if lead else _int_products(make)
    if op.dtype.startswith("float8"):
        one, out = torch.ones((), device="cuda"), getattr(torch, op.out_dtype)
        return [Way("cublas", make, lambda a, b: torch._scaled_mm(a, b, one, one, out_dtype=out))]
    return [Way("cublas", make, torch.matmul)]


def _with_epilogue(op: GpuOp, make: Callable[[], Sequence[Any]]) -> list[Way]:
    """cuBLAS's own epilogue, and PyTorch's operators one after the other."""
    import torch

    activation = {"bias+relu": torch.relu, "bias+gelu": torch.nn.functional.gelu}.get(op.epilogue)
    if activation is None:
        return []
    fused = functools.partial(torch._addmm_activation, use_gelu=op.epilogue.endswith("gelu"))
    return [
        Way("cublaslt", make, lambda a, b, bias: fused(bias, a, b)),
        Way("cublas", make, lambda a, b, bias: activation(torch.addmm(bias, a, b))),
    ]


def _int_products(make: Callable[[], Sequence[Any]]) -> list[Way]:
    """Both ways round: the function wants more than 16 rows of its first argument."""
    import torch

    return [Way("cublas", make, torch._int_mm), Way("cublas^T", make, lambda a, b: torch._int_mm(b.mT, a.mT))]


def _convolutions(op: GpuOp, tensor: Callable[..., Any]) -> list[Way]:
    import torch

    images, size, cin, cout, kernel, stride, pad = op.dims
    is_product = kernel == 1 and stride == 1 and not pad
    nhwc = torch.channels_last

    def make() -> list[Any]:
        x, w = tensor(images, cin, size, size), tensor(cout, cin, kernel, kernel)
        return [x.to(memory_format=nhwc), w.to(memory_format=nhwc)]

    conv = torch.nn.functional.conv2d
    if op.epilogue:
        return _fused_convolutions(op, make, tensor)
    ways = []
    if op.dtype != "int8":
        ways.append(Way("cudnn", make, lambda x, w: conv(x, w, stride=stride, padding=pad)))
    if is_product:  # what cuDNN would be asked for as a matrix product

        def flat() -> list[Any]:
            return [tensor(images * size * size, cin), tensor(cout, cin).mT]

        if op.dtype == "int8":
            ways += _int_products(flat)
        else:
            ways.append(Way("cublas", flat, torch.matmul))
    return ways


def _fused_convolutions(op: GpuOp, make: Callable[[], list[Any]], tensor: Callable[..., Any]) -> list[Way]:
    """cuDNN's convolutions with an epilogue, and PyTorch's operators one after the other."""
    import torch

    images, size, _, cout, kernel, stride, pad = op.dims
    out = (size + 2 * pad - kernel) // stride + 1
    where = ([stride] * 2, [pad] * 2, [1, 1], 1)
    conv = torch.nn.functional.conv2d
    if op.epilogue == "bias+relu":
        return [
            Way("cudnn fused", lambda: [*make(), tensor(cout)],
                lambda x, w, b: torch.cudnn_convolution_relu(x, w, b, *where)),
            Way("cudnn", lambda: [*make(), tensor(cout)],
                lambda x, w, b: torch.relu_(conv(x, w, b, stride, pad))),
        ]  # fmt: skip
    if op.epilogue != "bias+residual+relu":
        return []

    def added() -> list[Any]:
        residual = tensor(images, cout, out, out).to(memory_format=torch.channels_last)
        return [*make(), tensor(cout), residual]

    return [
        Way("cudnn fused", added,
            lambda x, w, b, z: torch.cudnn_convolution_add_relu(x, w, z, 1.0, b, *where)),
        Way("cudnn", added, lambda x, w, b, z: torch.relu_(conv(x, w, b, stride, pad).add_(z))),
    ]  # fmt: skip

"""Kernels of float32 on CUDA cores and on tensor cores: workloads, each with a candidate that fits it."""

from __future__ import annotations

from typing import Any

from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from tests.backends import workloads
from tests.backends.cuda.gemm_workloads import convolution, product

FP32: dict[str, Any] = {"dtype": "float32", "acc": "float32"}
EPILOGUE: dict[str, Any] = {"bias": True, "residual": True, "relu": True, **FP32}


def tiled(template: str, bm: int, bn: int, bk: int, tm: int, tn: int, stages: int = 4, **more: int) -> Candidate:
    knobs = {"bm": bm, "bn": bn, "bk": bk, "tm": tm, "tn": tn, "stages": stages, "blocks": 2, "slices": 1}
    return Candidate.make(f"cuda.{template}", **knobs | more)


CASES: dict[str, tuple[Workload, Candidate]] = {
    "3x3": (convolution(2, 28, 32, 64, 3, **EPILOGUE), tiled("fma", 128, 64, 16, 8, 8)),
    "strided": (convolution(2, 28, 32, 64, 3, 2, **FP32), tiled("fma", 64, 64, 16, 4, 8)),
    "1x1 strided": (convolution(2, 28, 32, 64, 1, 2, bias=True, **FP32), tiled("fma", 128, 64, 8, 16, 8)),
    "few channels": (convolution(1, 56, 3, 64, 7, 2, bias=True, **FP32), tiled("fma", 128, 64, 8, 8, 8)),
    "few channels, unpadded": (convolution(2, 21, 5, 32, 3, pad=0, **FP32), tiled("fma", 32, 32, 8, 4, 4)),
    "HWIO": (convolution(1, 14, 16, 32, 3, weights="HWIO", **FP32), tiled("fma", 32, 32, 8, 4, 4)),
    "tails": (convolution(1, 13, 20, 36, 3, pad=0, **EPILOGUE), tiled("fma", 64, 64, 16, 4, 8, 3)),
    "wide padding": (convolution(1, 9, 8, 32, 3, pad=2, **FP32), tiled("fma", 32, 32, 8, 4, 4)),
    "dense nn": (product(100, 72, 52, "nn", constant=True, bias=True, **FP32), tiled("fma", 32, 64, 16, 4, 8)),
    "dense nt": (product(200, 64, 64, "nt", constant=True, **FP32), tiled("fma", 64, 64, 16, 4, 8)),
    "batch": (product(33, 64, 32, "nn", batch=3, constant=True, **FP32), tiled("fma", 32, 32, 8, 4, 4)),
    "sliced": (convolution(2, 14, 12, 64, 3, **EPILOGUE), tiled("fma", 64, 64, 16, 8, 8, 3, slices=4)),
    "given nn": (product(100, 72, 52, "nn", **EPILOGUE), tiled("fma", 32, 64, 16, 4, 8)),
    "given nt": (product(100, 72, 52, "nt", **EPILOGUE), tiled("fma", 32, 64, 16, 4, 8)),
    "given nt, odd k": (product(70, 132, 27, "nt", bias=True, relu=True, **FP32), tiled("fma", 64, 128, 8, 8, 8)),
    "given nn, 2 slices": (
        product(70, 68, 102, "nn", bias=True, relu=True, **FP32),
        tiled("fma", 64, 64, 16, 4, 8, slices=2),
    ),
    "given nn, 4 slices": (
        product(130, 132, 84, "nn", **EPILOGUE),
        tiled("fma", 64, 128, 32, 8, 8, 3, slices=4, blocks=1),
    ),
    "given nt, 2 slices": (product(90, 40, 44, "nt", batch=2, **EPILOGUE), tiled("fma", 64, 32, 32, 4, 4, 3, slices=2)),
    "given nt, 4 slices": (
        product(130, 132, 84, "nt", **EPILOGUE),
        tiled("fma", 64, 128, 32, 8, 8, 3, slices=4, blocks=1),
    ),
    "split": (product(36, 32, 1536, "nt", constant=True, **EPILOGUE), tiled("fma", 32, 32, 8, 4, 4, split=16)),
    "split, given nn": (
        product(20, 36, 96, "nn", batch=2, **EPILOGUE),
        tiled("fma", 32, 64, 16, 4, 8, slices=2, split=4),
    ),
    "split, given nt": (product(33, 64, 96, "nt", batch=3, bias=True, **FP32), tiled("fma", 32, 64, 8, 4, 8, split=2)),
    "split, the last part shorter": (
        product(36, 32, 1541, "nt", constant=True, **EPILOGUE),
        tiled("fma", 32, 32, 32, 4, 4, slices=2, split=4),
    ),
    "split, given nt, the last part shorter": (
        product(33, 64, 100, "nt", batch=3, bias=True, **FP32),
        tiled("fma", 32, 64, 8, 4, 8, split=4),
    ),
    "split, given nn, the last part shorter": (
        product(20, 36, 90, "nn", batch=2, **FP32),
        tiled("fma", 32, 64, 16, 4, 8, slices=2, split=2),
    ),
    "odd columns": (product(70, 53, 36, "nn", constant=True, **EPILOGUE), tiled("fma", 32, 64, 16, 4, 8)),
    "sixteen rows": (product(13, 64, 100, "nn", constant=True, **EPILOGUE), tiled("fma", 16, 64, 16, 4, 4)),
    "odd columns, split": (
        product(20, 30, 96, "nt", batch=2, constant=True, **EPILOGUE),
        tiled("fma", 32, 64, 16, 4, 8, slices=2, split=4),
    ),
    "odd columns, 3x3": (convolution(1, 9, 8, 29, 3, **EPILOGUE), tiled("fma", 32, 32, 8, 4, 4)),
    "given nt, odd columns": (product(37, 41, 28, "nt", bias=True, **FP32), tiled("fma", 32, 64, 16, 4, 8)),
    "given nn, batch": (product(33, 64, 32, "nn", batch=3, **FP32), tiled("fma", 32, 32, 8, 4, 4)),
    "tensor, 3x3": (convolution(2, 14, 32, 64, 3, **EPILOGUE), tiled("fma", 128, 64, 16, 4, 16, tensor=True)),
    "tensor, 64 x 64": (
        product(130, 72, 52, "nn", constant=True, bias=True, **FP32),
        tiled("fma", 128, 128, 16, 8, 16, 3, tensor=True, blocks=1),
    ),
    "tensor, few channels": (
        convolution(1, 30, 3, 64, 7, 2, bias=True, **FP32),
        tiled("fma", 64, 64, 8, 4, 8, tensor=True),
    ),
    "tensor, few columns": (convolution(2, 9, 16, 8, 3, **EPILOGUE), tiled("fma", 64, 8, 32, 4, 2, tensor=True)),
    "tensor, odd columns": (convolution(2, 9, 16, 5, 3, **EPILOGUE), tiled("fma", 64, 8, 32, 4, 2, tensor=True)),
    "tensor, 16 columns": (
        product(70, 14, 100, "nn", constant=True, **EPILOGUE),
        tiled("fma", 64, 16, 32, 4, 4, tensor=True, slices=2),
    ),
    "tensor, 16 rows": (
        product(13, 128, 100, "nn", constant=True, **EPILOGUE),
        tiled("fma", 16, 128, 32, 2, 8, tensor=True),
    ),
    "tensor, given nt": (
        product(100, 72, 52, "nt", batch=2, **EPILOGUE),
        tiled("fma", 64, 64, 32, 4, 8, tensor=True, slices=2),
    ),
    "tensor, given nn, 4 slices": (
        product(70, 68, 102, "nn", bias=True, relu=True, **FP32),
        tiled("fma", 64, 64, 32, 4, 16, tensor=True, slices=4, blocks=1),
    ),
    "tensor, split": (
        product(36, 32, 1541, "nt", constant=True, **EPILOGUE),
        tiled("fma", 32, 32, 32, 4, 8, tensor=True, split=4),
    ),
    "odd, 3x3x3": (workloads.conv3d((4, 7, 5), 8, 20, (3, 3, 3), batch=2), tiled("fma", 32, 32, 8, 4, 4)),
    "tensor, 3x3x3": (
        workloads.conv3d((5, 9, 6), 8, 32, (3, 3, 3), 2, batch=2),
        tiled("fma", 32, 32, 16, 4, 8, tensor=True),
    ),
    "tensor, few channels in 3x5x3": (
        workloads.conv3d((5, 6, 9), 4, 16, (3, 5, 3)),
        tiled("fma", 64, 32, 8, 4, 8, tensor=True),
    ),
    "tensor, 1x3x3": (workloads.conv3d((3, 6, 5), 16, 8, (1, 3, 3)), tiled("fma", 64, 8, 32, 4, 2, tensor=True)),
    "tensor, F(4)": (convolution(2, 14, 16, 32, 3, **EPILOGUE), tiled("winograd", 64, 32, 16, 4, 8, m=4, tensor=True)),
    "F(4)": (convolution(2, 14, 16, 32, 3, **EPILOGUE), tiled("winograd", 32, 32, 8, 4, 4, m=4)),
    "F(2)": (convolution(1, 7, 8, 16, 3, **FP32), tiled("winograd", 32, 32, 8, 4, 4, m=2)),
    "F(4), unpadded": (convolution(1, 9, 8, 36, 3, pad=0, bias=True, **FP32), tiled("winograd", 32, 64, 8, 4, 8, m=4)),
    "F(2), tails": (convolution(3, 13, 12, 20, 3, **EPILOGUE), tiled("winograd", 64, 64, 16, 4, 8, 3, m=2)),
    "F(2), sliced": (convolution(1, 7, 20, 36, 3, **FP32), tiled("winograd", 32, 64, 16, 4, 8, 3, m=2, slices=2)),
}

"""The rows of the GPU suites: the two documents' own, with the figures that they print, and those of `gpu-ops`.

Sources: the FastDlight RFC (TVM discussion forum, 2024; A100 80 GB, CUDA 12.1) and apache/tvm#4105 (V100 with CUDA 9.0
for float16, T4 with CUDA 10.1 for int8). `gpu-ops` has what neither prints: epilogues, the shapes of real networks, and
ragged ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from subtune.backends.base import Device
from subtune.bench.gpu_op import GpuOp


@dataclass(frozen=True, slots=True)
class Published:
    """What a document prints of a row, in seconds; 0.0 where it prints nothing.

    Attributes:
        rival: what `rival_s` is of: the default dlight, or NVIDIA's library.
        first_s: of the candidate that its model had first.
    """

    device: str
    rival: str
    rival_s: float
    best_s: float
    first_s: float = 0.0
    tune_s: float = 0.0

    @property
    def speedup(self) -> float:
        return self.rival_s / self.best_s


@dataclass(frozen=True, slots=True)
class GpuCase:
    """An operator, or a model of the zoo with its precision.

    Attributes:
        bar: the least latency of PyTorch's libraries over subtune's that is asked for.
        tf32: whether float32 products may be rounded to it.
        arch: to build for, where it is not the GPU's own: `sm_90` is Hopper without wgmma.
    """

    name: str
    op: GpuOp | None = None
    model: str = ""
    precision: str = ""
    published: Published | None = None
    bar: float = 1.0
    tf32: bool = False
    arch: str = ""

    def on(self, device: Device) -> Device:
        """`device` as this case wants it."""
        model = replace(device.model, arch=self.arch) if self.arch else device.model  # type: ignore[type-var]
        return replace(device, model=model, numerics=replace(device.numerics, tf32=self.tf32 or device.numerics.tf32))


def _dlight(best_ms: float, first_ms: float, default_ms: float, tune_s: float) -> Published:
    return Published("A100", "dlight", default_ms * 1e-3, best_ms * 1e-3, first_ms * 1e-3, tune_s)


def _network(best_ms: float, default_ms: float, tune_s: float) -> Published:
    return Published("A100", "dlight", default_ms * 1e-3, best_ms * 1e-3, tune_s=tune_s)


def _gemm(layout: str, n: int, dtype: str, published: Published) -> GpuCase:
    return GpuCase(f"matmul_{layout}-{n}-{dtype}", GpuOp("product", (n, n, n), dtype, layout=layout), "", "", published)


def _case(name: str, op: GpuOp, published: Published, bar: float = 1.0) -> GpuCase:
    return GpuCase(name, op, published=published, bar=bar)


FASTDLIGHT = (
    _case("copy-128-8192", GpuOp("copy", (128, 8192)), _dlight(0.005, 0.01, 0.006, 2.547)),
    _case("copy-16384-16384", GpuOp("copy", (16384, 16384)), _dlight(0.664, 0.826, 1.097, 7.405)),
    _case("add-16384-16384", GpuOp("add", (16384, 16384)), _dlight(1.02, 1.528, 1.278, 9.787)),
    _case("reduce_sum-16384-1024", GpuOp("sum", (16384, 1024)), _dlight(0.021, 0.024, 0.765, 1.386), 1.5),
    _case("reduce_max-16384-1024", GpuOp("max", (16384, 1024)), _dlight(0.022, 0.023, 0.766, 1.085), 1.5),
    _case("softmax-128-10", GpuOp("softmax", (128, 10)), _dlight(0.004, 0.01, 0.005, 0.949), 1.5),
    _gemm("nt", 1024, "float16", _dlight(0.025, 0.029, 0.036, 5.094)),
    _gemm("nt", 8192, "float16", _dlight(4.872, 15.645, 7.704, 6.301)),
    _gemm("nt", 16384, "float16", _dlight(39.06, 232.311, 78.313, 18.823)),
    _gemm("nn", 1024, "float16", _dlight(0.024, 0.044, 0.037, 3.544)),
    _gemm("nn", 8192, "float16", _dlight(4.631, 5.58, 7.498, 6.116)),
    _gemm("nn", 16384, "float16", _dlight(37.944, 86.931, 67.279, 16.838)),
    _gemm("nt", 1024, "float32", _dlight(0.258, 0.78, 0.256, 3.082)),
    _gemm("nt", 8192, "float32", _dlight(67.28, 162.054, 118.725, 35.129)),
    _gemm("nn", 1024, "float32", _dlight(0.225, 0.346, 0.229, 3.028)),
    _gemm("nn", 8192, "float32", _dlight(59.723, 61.582, 104.809, 33.267)),
    _case("conv2d-7x7-float16", GpuOp("conv", (128, 224, 3, 64, 7, 2, 3)), _dlight(0.749, 0.749, 1.565, 5.287)),
    _case("conv2d-1x1-float16", GpuOp("conv", (128, 224, 64, 64, 1, 2, 3)), _dlight(0.294, 0.33, 0.662, 8.236)),
    _case(
        "conv2d-7x7-float32",
        GpuOp("conv", (128, 224, 3, 64, 7, 2, 3), "float32"),
        _dlight(2.984, 4.716, 3.346, 3.337),
    ),
    _case("gemv-1024", GpuOp("product", (1, 1024, 1024)), _dlight(0.005, 0.011, 0.006, 1.275)),
    _case("gemv-8192", GpuOp("product", (1, 8192, 8192)), _dlight(0.082, 0.114, 0.096, 1.762)),
    _case("gemv-16384", GpuOp("product", (1, 16384, 16384)), _dlight(0.304, 0.36, 0.345, 3.649)),
    _case("gemv_i4-16384", GpuOp("gemv_i4", (16384, 16384)), _dlight(0.082, 0.13, 0.143, 2.072)),
    GpuCase("MLP-float32", None, "zoo:mlp?batch=128", "fp32", _network(2.688503265, 13.29352856, 43.726)),
    GpuCase("MLP-float16", None, "zoo:mlp?batch=128", "fp16", _network(1.77359581, 3.119468689, 29.25)),
    GpuCase("resnet-18-float32", None, "zoo:resnet18?batch=128", "fp32", _network(34.41455364, 48.52347374, 298.521)),
    GpuCase("resnet-18-float16", None, "zoo:resnet18?batch=128", "fp16", _network(5.837249756, 25.78620911, 226.363)),
)


def _library(device: str, library_us: float, tvm_us: float) -> Published:
    return Published(device, "library", library_us * 1e-6, tvm_us * 1e-6)


_NMT = {
    "float16": ((64, _library("V100", 9.05, 7.34)), (32, _library("V100", 8.30, 6.84)),
                (16, _library("V100", 7.88, 6.60))),
    "int8": ((64, _library("T4", 23.163, 22.603)), (32, _library("T4", 22.551, 14.263)),
             (16, _library("T4", 22.510, 11.015))),
}  # fmt: skip
_MOBILENET = (
    (56, 64, 128, _library("V100", 8.5220, 6.9320)),
    (28, 128, 256, _library("V100", 10.787, 8.3490)),
    (28, 256, 256, _library("V100", 15.188, 14.136)),
)
_SKINNY_BAR = {"float16": 1.3, "int8": 1.0}
_HEADS = 16


def _tensorcore() -> tuple[GpuCase, ...]:
    """Every row of the document in both dtypes and, of the products, in its three layouts and batched."""
    cases = []
    for dtype, rows in _NMT.items():
        for n, published in rows:
            for layout in ("nt", "nn", "tn"):
                op = GpuOp("product", (512, n, 512), dtype, layout=layout)
                # the document does not say which layout its rows are of
                cases.append(_case(f"nmt-512-{n}-512-{dtype}-{layout}", op, published, _SKINNY_BAR[dtype]))
    for dtype in _NMT:
        for size, cin, cout, published in _MOBILENET:
            op = GpuOp("conv", (1, size, cin, cout, 1, 1, 0), dtype)
            found = GpuCase(f"mobilenet-{size}-{cin}-{cout}-{dtype}", op, published=published)
            cases.append(found if dtype == "float16" else replace(found, published=None))
    for dtype in _NMT:
        op = GpuOp("product", (_HEADS, 512, 64, 512), dtype)
        cases.append(GpuCase(f"batch_matmul-{_HEADS}-512-64-512-{dtype}", op))
    return tuple(cases)


TENSORCORE = _tensorcore()

_FUSED_BAR = 1.1
_FP8 = "float8_e4m3fn"


def _gpu_ops() -> tuple[GpuCase, ...]:
    """GEMMs, plain and with the epilogue that ships, and ResNet's convolutions with theirs."""
    cases = []
    for epilogue, bar in (("", 1.0), ("bias+relu", _FUSED_BAR)):
        for layout in ("nt", "nn"):
            for n in (1024, 4096, 8192, 16384):
                cases.append(_product(f"gemm-{layout}-{n}", (n, n, n), layout, epilogue, bar=bar))
    cases += [
        # 0.58 of cuBLAS is what mma.sync is asked for on Hopper
        _product("gemm-nt-8192-mma", (8192,) * 3, bar=0.58, arch="sm_90"),
        _product("gemm-nt-1000", (1000,) * 3),
        _product("gemm-nt-333-1000-544", (333, 1000, 544)),
        _product("gemm-nt-4095-4097-4104", (4095, 4097, 4104)),
        _product("gemm-nt-2048-2048-1003", (2048, 2048, 1003)),
        _product("gemm-nt-64-1024-8192", (64, 1024, 8192)),
        _product("gemm-nt-16-4096-4096", (16, 4096, 4096)),
        _product("gemm-nt-4096-bfloat16", (4096,) * 3, dtype="bfloat16"),
        _product("gemm-nt-4096-int8", (4096,) * 3, dtype="int8"),
        _product("gemm-nt-4096-float8", (4096,) * 3, dtype=_FP8, out="bfloat16"),
        _product("gemm-nt-4096-tf32", (4096,) * 3, dtype="float32", tf32=True),
        _product("gemm-nt-4096-float32", (4096,) * 3, dtype="float32", bar=0.85),
        _product("gemm-nt-8192-float32", (8192,) * 3, dtype="float32", bar=0.85),
    ]
    for dtype in ("float16", "float32"):
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
            dims = (128, size, channels, channels, 3, 1, 1)
            for epilogue in ("bias+relu", "bias+residual+relu"):
                op = GpuOp("conv", dims, dtype, epilogue=epilogue)
                cases.append(GpuCase(f"conv-{size}-{channels}-{dtype}-{epilogue}", op))
        stem = GpuOp("conv", (128, 224, 3, 64, 7, 2, 3), dtype, epilogue="bias+relu")
        cases.append(GpuCase(f"conv-stem-{dtype}-bias+relu", stem))
    for name, kind, shape in (
        ("copy-1GB", "copy", (16384, 32768)),
        ("sum-65536-4096", "sum", (65536, 4096)),
        ("sum-512-262144", "sum", (512, 262144)),
        ("softmax-16384-4096", "softmax", (16384, 4096)),
        ("softmax-128-32000", "softmax", (128, 32000)),
    ):
        cases.append(GpuCase(name, GpuOp(kind, shape)))
    return tuple(cases)


def _product(
    name: str,
    dims: tuple[int, ...],
    layout: str = "nt",
    epilogue: str = "",
    dtype: str = "float16",
    out: str = "",
    bar: float = 1.0,
    tf32: bool = False,
    arch: str = "",
) -> GpuCase:
    op = GpuOp("product", dims, dtype, out, layout, epilogue)
    return GpuCase(f"{name}-{epilogue}" if epilogue else name, op, bar=bar, tf32=tf32, arch=arch)


GPU_OPS = _gpu_ops()

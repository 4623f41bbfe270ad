"""Convolutions and poolings: 1D to 3D, grouped, dilated, strided, transposed, depthwise; channels first and last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from subtune.bench.coverage.case import Sizes
from subtune.bench.coverage.dialect import Dialect, Value, Window
from subtune.bench.coverage.family import Draw, Family


def conv(d: Dialect, s: Sizes) -> Value:
    window, cin, cout = _window(s), s["cin"], s["cout"]
    is_transposed = s["transposed"]
    first, second = (cin, cout) if is_transposed else (cout, cin)
    shape = (first, second // window.groups, *window.kernel)
    fan_in = cin // window.groups * math.prod(window.kernel)
    x = _image(d, s, cin)
    weight = d.weight(shape, f"normal:{1 / math.sqrt(fan_in)}")
    y = d.conv(x, weight, d.weight((cout,)) if s["bias"] else None, window, is_transposed)
    return _last(d, y, s)


def pool(d: Dialect, s: Sizes) -> Value:
    return _last(d, d.pool(s["kind"], _image(d, s, s["cin"]), _window(s)), s)


def _image(d: Dialect, s: Sizes, channels: int) -> Value:
    """The input, channels first for what follows."""
    spatial, rank = s["size"], len(s["size"])
    if s["layout"] == "first":
        return d.input((s["batch"], channels, *spatial))
    return d.transpose(d.input((s["batch"], *spatial, channels)), (0, rank + 1, *range(1, rank + 1)))


def _last(d: Dialect, y: Value, s: Sizes) -> Value:
    rank = len(s["size"])
    return y if s["layout"] == "first" else d.transpose(y, (0, *range(2, rank + 2), 1))


def _window(s: Sizes) -> Window:
    return Window(s["kernel"], s["stride"], s["pad"], s["dilation"], s.get("groups", 1), s.get("output_pad", ()))


def _drawn(
    draw: Draw,
    rank: int,
    kernels: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1, 2),
    dilations: tuple[int, ...] = (1,),
) -> dict[str, Any]:
    """An image and a window of it that pads so that stride 1 keeps the size, or pads nothing."""
    most = {1: draw.larger(4096), 2: draw.larger(112, 2), 3: draw.larger(28, 2)}[rank]
    size, kernel, dilation = draw.extent(5, most), draw.pick(*kernels), draw.pick(*dilations)
    sizes = (size,) * rank if draw.chance(0.7) else tuple(max(5, draw.extent(5, most)) for _ in range(rank))
    reach = dilation * (kernel - 1) // 2
    pad = reach if draw.chance(0.85) else 0
    return {
        "batch": draw.extent(1, draw.larger(8, 8)) if draw.chance(0.6) else 1, "size": sizes,
        "kernel": (kernel,) * rank, "stride": (draw.pick(*strides),) * rank,
        "pad": (pad,) * rank, "dilation": (dilation,) * rank,
        "layout": draw.pick("first", "first", "last"), "transposed": False, "bias": draw.chance(0.7),
    }  # fmt: skip


def _plain(rank: int, kernels: tuple[int, ...], **more: Any) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        most = {1: 512, 2: 512, 3: 96}[rank]
        found = _drawn(draw, rank, kernels, **more)
        return {**found, "cin": draw.extent(3, most), "cout": draw.extent(3, most)}

    return drawn


def _grouped(draw: Draw) -> dict[str, Any]:
    groups = draw.pick(2, 3, 4, 8, 16, 32)
    each = (draw.extent(2, 64), draw.extent(2, 64))
    return {**_drawn(draw, 2, (1, 3, 3, 5)), "cin": groups * each[0], "cout": groups * each[1], "groups": groups}


def _depthwise(rank: int, kernels: tuple[int, ...]) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        channels = draw.extent(8, 1024 if rank < 3 else 128)
        times = draw.pick(1, 1, 1, 2)
        found = _drawn(draw, rank, kernels, (1, 1, 2, 3), (1, 1, 1, 2))
        return {**found, "cin": channels, "cout": channels * times, "groups": channels}

    return drawn


def _rectangular(draw: Draw) -> dict[str, Any]:
    kernel = draw.pick((1, 3), (3, 1), (1, 7), (7, 1), (3, 5), (2, 3), (1, 9))
    pad = tuple(extent // 2 for extent in kernel)
    return {**_plain(2, (3,))(draw), "kernel": kernel, "pad": pad, "stride": draw.pick((1, 1), (1, 2), (2, 1))}


def _stem(draw: Draw) -> dict[str, Any]:
    found = _drawn(draw, 2, (3, 4, 7, 8, 16), (1, 2, 4))
    size = draw.extent(64, draw.larger(256, 1))
    return {**found, "size": (size, size), "cin": draw.pick(1, 3, 3, 4), "cout": draw.extent(8, 128)}


def _transposed(rank: int) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        stride = draw.pick(1, 2, 2, 3)
        kernel = stride * draw.pick(1, 2) if draw.chance(0.6) else stride + draw.pick(0, 1, 2)
        pad = max(0, (kernel - stride) // 2)
        output_pad = 1 if stride > 1 and (kernel - stride) % 2 and draw.chance(0.5) else 0
        most = 256 if rank < 3 else 48
        size = draw.extent(4, {1: 1024, 2: draw.larger(40, 2), 3: 14}[rank])
        return {
            "batch": draw.extent(1, draw.larger(4)), "size": (size,) * rank, "kernel": (kernel,) * rank,
            "stride": (stride,) * rank, "pad": (pad,) * rank, "dilation": (1,) * rank,
            "layout": draw.pick("first", "first", "last"), "transposed": True, "bias": draw.chance(0.7),
            "cin": draw.extent(4, most), "cout": draw.extent(3, most),
            **({"output_pad": (output_pad,) * rank} if output_pad else {}),
        }  # fmt: skip

    return drawn


def _pooled(kind: str, rank: int) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        kernel = draw.pick(2, 2, 3, 3, 5, 7)
        size = max(kernel, draw.extent(6, {1: 4096, 2: draw.larger(112, 2), 3: 32}[rank]))
        return {
            "kind": kind, "batch": draw.extent(1, draw.larger(8, 8)), "cin": draw.extent(3, 256 if rank < 3 else 64),
            "size": (size,) * rank, "kernel": (kernel,) * rank, "stride": (draw.pick(1, 2, 2, 3, kernel),) * rank,
            "pad": (draw.pick(0, kernel // 2),) * rank, "dilation": (1,) * rank,
            "layout": draw.pick("first", "first", "last"),
        }  # fmt: skip

    return drawn


FAMILIES = (
    Family("conv", _plain(2, (3, 3, 5)), conv),
    Family("conv-pointwise", _plain(2, (1,)), conv),
    Family("conv-strided", _plain(2, (1, 2, 3, 4, 5), strides=(2, 2, 3, 4)), conv),
    Family("conv-dilated", _plain(2, (3, 3, 5), strides=(1,), dilations=(2, 3, 4)), conv),
    Family("conv-grouped", _grouped, conv),
    Family("conv-rectangular", _rectangular, conv),
    Family("conv-stem", _stem, conv),
    Family("conv1d", _plain(1, (1, 3, 5, 7, 9, 15), dilations=(1, 1, 2, 4)), conv),
    Family("conv3d", _plain(3, (1, 3, 3)), conv),
    Family("conv-transposed", _transposed(2), conv),
    Family("conv1d-transposed", _transposed(1), conv),
    Family("depthwise", _depthwise(2, (3, 3, 5, 7, 9, 11)), conv),
    Family("depthwise1d", _depthwise(1, (3, 4, 7, 31)), conv),
    Family("max-pool", _pooled("max", 2), pool),
    Family("avg-pool", _pooled("avg", 2), pool),
    Family("max-pool1d", _pooled("max", 1), pool, takes_epilogue=False),
    Family("avg-pool3d", _pooled("avg", 3), pool, takes_epilogue=False),
)

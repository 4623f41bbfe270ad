"""Relay's quantised operators with what follows them: exact, products of bytes, and bytes between the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import subtune
from subtune.core.graph import InFloats
from subtune.frontends import Parameters
from subtune.pipeline import Prepared, prepare
from tests.frontends.relay.agree import RNG, floats, ints
from tests.frontends.relay.np_quantised import Quantum, dequantised, requantised, saturated
from tests.frontends.relay.np_windows import conv, pool, relaid

Arrays = dict[str, np.ndarray]
KERNEL = {"NCHW": "OIHW", "NHWC": "HWIO"}


def text_of(arrays: Arrays, body: str) -> str:
    """A module whose parameters are the arrays."""
    kinds = ", ".join(f"%{name}: Tensor[({', '.join(map(str, a.shape))}), {a.dtype}]" for name, a in arrays.items())
    return f'#[version = "0.0.5"]\ndef @main({kinds}) {{\n{body}\n}}\n'


def check(text: str, feeds: Arrays, params: Arrays, wanted: np.ndarray, folder: Path) -> Prepared:
    """The same numbers as NumPy; and what the model was prepared to."""
    artifact = subtune.compile(text, output=folder / "a", tune=False, verify=False, params=params)
    (got,) = artifact.run(feeds).values()
    assert got.dtype == wanted.dtype
    assert np.ptp(wanted.astype(float)) > 0
    np.testing.assert_array_equal(got, wanted)
    return prepare(text, parameters=Parameters(params))


def stored(prepared: Prepared) -> set[str]:
    """The types of what the subgraphs store, but for the sums that correct zero points: one number a row or column."""
    outputs = [arg for s in prepared.subgraphs for arg in s.workload.args if arg.is_output]
    return {arg.dtype for arg in outputs if not (arg.dtype == "int32" and 1 in arg.shape[-2:])}


def convolution(
    layout: str, x: np.ndarray, w: np.ndarray, zeros: tuple[int, int], attrs: str = "", after: str = ""
) -> tuple[str, Arrays, Arrays, np.ndarray, dict[str, Any]]:
    """A convolution, its bias, its requantisation to x's type; x and w are NCHW and OIHW."""
    channels, axis = w.shape[0], layout.index("C")
    scales = (0.001 * (1 + RNG.random(channels))).astype("float32")
    params = {
        "w": np.ascontiguousarray(relaid(w, "OIHW", KERNEL[layout])),
        "b": RNG.integers(-3000, 3000, channels).astype("int32"),
        "s": (scales * np.float32(0.02)).astype("float32"),
    }
    feeds = {"x": np.ascontiguousarray(relaid(x, "NCHW", layout))}
    target = (0.01, 7)
    body = f"""
  %0 = qnn.conv2d(%x, %w, {zeros[0]}, {zeros[1]}, 0.02f, 0.001f, padding=[1, 1, 1, 1], channels={channels},
    kernel_size=[3, 3], data_layout="{layout}", kernel_layout="{KERNEL[layout]}", out_dtype="int32");
  %1 = nn.bias_add(%0, %b, axis={axis});
  %2 = qnn.requantize(%1, %s, 0, {target[0]}f, {target[1]}, axis={axis}, out_dtype="{x.dtype}"{attrs});
  {after or "%2"}"""
    wide = w.astype("int64") - zeros[1]
    acc = conv(x.astype("int64") - zeros[0], wide, [1, 1], [1] * 4, [1, 1], 1, "int64")
    acc = relaid(acc, "NCHW", layout) + (params["b"] if axis == 3 else params["b"].reshape(-1, 1, 1))
    about = {"axis": axis, "source": (params["s"], 0), "target": target, "to": str(x.dtype)}
    return text_of({**feeds, **params}, body), feeds, params, acc, about


def finished(acc: np.ndarray, about: dict[str, Any], **how: str) -> np.ndarray:
    return requantised(acc, about["source"], about["target"], about["to"], about["axis"], **how)


@pytest.mark.parametrize("compute", ["float32", "int64"])
@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST"])
@pytest.mark.parametrize("layout", KERNEL)
def test_convolutions_round_as_they_are_told(layout: str, rounding: str, compute: str, tmp_path: Path) -> None:
    x, w = ints("uint8", 2, 8, 9, 10), ints("int8", 12, 8, 3, 3)
    attrs = f', rounding="{rounding}", compute_dtype="{compute}"'
    text, feeds, params, acc, about = convolution(layout, x, w, (120, 0), attrs)
    wanted = finished(acc, about, rounding=rounding, compute=compute)
    prepared = check(text, feeds, params, wanted, tmp_path)
    assert prepared.graph.products() == {"uint8": 1}
    assert stored(prepared) == {"uint8"}
    assert prepared.in_floats == ()
    assert sum("conv2d" in s.name for s in prepared.subgraphs) == 1


@pytest.mark.parametrize(
    ("x_type", "w_type", "zeros"),
    [("int8", "int8", (0, 0)), ("int8", "int8", (5, 0)), ("uint8", "uint8", (9, 128)), ("uint8", "uint8", (9, 90)),
     ("uint8", "int8", (300, 3))],
)  # fmt: skip
@pytest.mark.parametrize("layout", KERNEL)
@pytest.mark.grid
def test_convolutions_of_any_bytes(layout: str, x_type: str, w_type: str, zeros: Any, tmp_path: Path) -> None:
    """A zero point beyond the type, which padding cannot hold, leaves int32."""
    x, w = ints(x_type, 1, 8, 7, 6), ints(w_type, 12, 8, 3, 3)
    text, feeds, params, acc, about = convolution(layout, x, w, zeros)
    prepared = check(text, feeds, params, finished(acc, about), tmp_path)
    if zeros[0] > 255:
        assert [one.reason for one in prepared.in_floats] == ["its input is padded, with a zero point beyond uint8"]
        return
    assert prepared.graph.products()[x_type] == 1
    assert prepared.in_floats == ()


@pytest.mark.parametrize("layout", KERNEL)
def test_a_clip_is_part_of_the_epilogue(layout: str, tmp_path: Path) -> None:
    """As importers of quantised models write an activation."""
    x, w = ints("uint8", 1, 8, 7, 6), ints("int8", 12, 8, 3, 3)
    text, feeds, params, acc, about = convolution(layout, x, w, (3, 0), after="clip(%2, a_min=20f, a_max=200f)")
    prepared = check(text, feeds, params, np.clip(finished(acc, about), 20, 200), tmp_path)
    assert stored(prepared) == {"uint8"}
    (kernel,) = (s for s in prepared.subgraphs if "conv2d" in s.name)
    assert "maximum" in kernel.ops or "clip" in "".join(kernel.ops)


@pytest.mark.parametrize(
    ("x_type", "w_type", "zeros"),
    [("uint8", "int8", (128, 0)), ("int8", "int8", (4, 0)), ("uint8", "uint8", (120, 200))],
)
def test_dense(x_type: str, w_type: str, zeros: tuple[int, int], tmp_path: Path) -> None:
    x, params = ints(x_type, 7, 48), {"w": ints(w_type, 24, 48), "b": RNG.integers(-3000, 3000, 24).astype("int32")}
    body = f"""
  %0 = qnn.dense(%x, %w, {zeros[0]}, {zeros[1]}, 0.02f, 0.0015f, units=24, out_dtype="int32");
  qnn.requantize(nn.bias_add(%0, %b, axis=1), 0.00003f, 0, 0.02f, 100, out_dtype="uint8")"""
    acc = (x.astype("int64") - zeros[0]) @ (params["w"].astype("int64") - zeros[1]).T + params["b"]
    wanted = requantised(acc, (np.float32(0.00003), 0), (0.02, 100), "uint8")
    prepared = check(text_of({"x": x, **params}, body), {"x": x}, params, wanted, tmp_path)
    assert prepared.graph.products() == {x_type: 1}
    assert stored(prepared) == {"uint8"}


@pytest.mark.parametrize(
    ("types", "zeros"), [(("uint8", "uint8"), (128, 100)), (("int8", "int8"), (4, -7)), (("uint8", "int8"), (3, 0))]
)
def test_products_of_activations(types: tuple[str, str], zeros: tuple[int, int], tmp_path: Path) -> None:
    x, y = ints(types[0], 3, 7, 48), ints(types[1], 3, 24, 48)
    body = f"""
  %0 = qnn.batch_matmul(%x, %y, {zeros[0]}, {zeros[1]}, 0.02f, 0.03f, out_dtype="int32");
  qnn.requantize(%0, 0.0006f, 0, 0.4f, 100, out_dtype="uint8")"""
    acc = (x.astype("int64") - zeros[0]) @ np.swapaxes(y.astype("int64") - zeros[1], 1, 2)
    wanted = requantised(acc, (np.float32(0.0006), 0), (0.4, 100), "uint8")
    prepared = check(text_of({"x": x, "y": y}, body), {"x": x, "y": y}, {}, wanted, tmp_path)
    assert prepared.graph.products() == {types[0]: 1}
    assert stored(prepared) <= {"uint8", "int8"}


@pytest.mark.parametrize("op", ["add", "subtract", "mul"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_elementwise(op: str, dtype: str, tmp_path: Path) -> None:
    """One kernel from bytes to bytes."""
    x, y = ints(dtype, 2, 5, 6), ints(dtype, 2, 5, 6)
    first, second, target = (0.1, 3), (0.07, 20), (0.13 if op != "mul" else 0.9, 11)
    scales = ", ".join(f"{scale}f, {zero}" for scale, zero in (first, second, target))
    if op == "mul":
        wide = (x.astype("int64") - first[1]) * (y.astype("int64") - second[1])
        wanted = requantised(wide, (np.float32(first[0]) * np.float32(second[0]), 0), target, dtype)
    else:
        p, q = (requantised(v, s, target, "int32").astype("int64") for v, s in ((x, first), (y, second)))
        wanted = saturated(p + q - target[1] if op == "add" else p - q + target[1], dtype)
    text = text_of({"x": x, "y": y}, f"  qnn.{op}(%x, %y, {scales})")
    prepared = check(text, {"x": x, "y": y}, {}, wanted, tmp_path)
    assert stored(prepared) == {dtype}
    assert len(prepared.subgraphs) == 1
    assert prepared.in_floats == ()


def test_concatenation(tmp_path: Path) -> None:
    x, y = ints("uint8", 2, 8, 5, 6), ints("uint8", 2, 4, 5, 6)
    body = """
  %0 = (%x, %y);
  %1 = (0.1f, 0.25f);
  %2 = (3, 10);
  qnn.concatenate(%0, %1, %2, 0.25f, 10, axis=1)"""
    wanted = np.concatenate([requantised(x, (0.1, 3), (0.25, 10), "uint8"), y], 1)
    prepared = check(text_of({"x": x, "y": y}, body), {"x": x, "y": y}, {}, wanted, tmp_path)
    assert stored(prepared) == {"uint8"}


def test_a_network_passes_bytes_on(tmp_path: Path) -> None:
    """As TFLite's importer writes one: residual, concatenation, pools, a classifier; float32 is the result alone."""
    x = ints("uint8", 1, 8, 8, 8)
    params = {
        "w": ints("int8", 3, 3, 8, 8), "v": ints("int8", 3, 3, 8, 8), "b": RNG.integers(-3000, 3000, 8).astype("int32"),
        "s": (2e-5 * (1 + RNG.random(8))).astype("float32"), "d": ints("int8", 5, 16),
    }  # fmt: skip
    about = 'padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3], data_layout="NHWC", kernel_layout="HWIO"'
    body = f"""
  %0 = qnn.conv2d(%x, %w, 128, 0, 0.02f, 0.001f, {about}, out_dtype="int32");
  %1 = qnn.requantize(nn.bias_add(%0, %b, axis=3), %s, 0, 0.02f, 3, axis=3, out_dtype="uint8");
  %2 = clip(%1, a_min=3f, a_max=255f);
  %3 = qnn.conv2d(%2, %v, 3, 0, 0.02f, 0.001f, {about}, out_dtype="int32");
  %4 = qnn.requantize(nn.bias_add(%3, %b, axis=3), %s, 0, 0.03f, 110, axis=3, out_dtype="uint8");
  %5 = qnn.add(%4, %x, 0.03f, 110, 0.02f, 128, 0.04f, 100);
  %6 = (%5, %2);
  %7 = (0.04f, 0.02f);
  %8 = (100, 3);
  %9 = qnn.concatenate(%6, %7, %8, 0.04f, 90, axis=3);
  %10 = cast(nn.max_pool2d(%9, pool_size=[2, 2], strides=[2, 2], layout="NHWC"), dtype="int32");
  %11 = cast(nn.avg_pool2d(%10, pool_size=[4, 4], layout="NHWC"), dtype="uint8");
  %12 = qnn.dense(reshape(%11, newshape=[1, 16]), %d, 90, 0, 0.04f, 0.01f, units=5, out_dtype="int32");
  qnn.dequantize(%12, 0.0004f, 0)"""
    prepared = check(text_of({"x": x, **params}, body), {"x": x}, params, network(x, params), tmp_path)
    assert prepared.graph.products() == {"uint8": 3}
    assert stored(prepared) == {"uint8", "float32"}
    assert prepared.in_floats == ()


def network(x: np.ndarray, params: Arrays) -> np.ndarray:
    def layer(v: np.ndarray, w: np.ndarray, zero: int, target: Quantum) -> np.ndarray:
        wide = relaid(v.astype("int64") - zero, "NHWC", "NCHW")
        acc = conv(wide, relaid(w, "HWIO", "OIHW").astype("int64"), [1, 1], [1] * 4, [1, 1], 1, "int64")
        return requantised(relaid(acc, "NCHW", "NHWC") + params["b"], (params["s"], 0), target, "uint8", 3)

    y = np.maximum(layer(x, params["w"], 128, (0.02, 3)), 3)
    z = layer(y, params["v"], 3, (0.03, 110))
    p, q = (requantised(v, s, (0.04, 100), "int32") for v, s in ((z, (0.03, 110)), (x, (0.02, 128))))
    total = saturated(p.astype("int64") + q - 100, "uint8")
    parts = [requantised(v, s, (0.04, 90), "uint8") for v, s in ((total, (0.04, 100)), (y, (0.02, 3)))]
    largest = pool(
        relaid(np.concatenate(parts, 3), "NHWC", "NCHW"), "max", [2, 2], [2, 2], [0] * 4, [1, 1], False, True
    )
    mean = np.trunc(largest.astype("int64").sum((2, 3)) / 16).astype("int64")
    acc = (mean.reshape(1, 16) - 90) @ params["d"].astype("int64").T
    return dequantised(acc, (0.0004, 0))


def test_what_stays_in_floats_is_found_in_the_text() -> None:
    """Relay has no names: the operator and its place."""
    x, w, y = ints("uint8", 4, 8), ints("int8", 6, 8), floats(4, 6)
    body = """  %0 = qnn.dense(%x, %w, 3, 0, 0.1f, 0.1f, units=6, out_dtype="int32");
  %1 = qnn.dequantize(qnn.requantize(%0, 0.01f, 0, 0.1f, 3, out_dtype="int8"), 0.1f, 3);
  add(%1, %y)"""
    text = text_of({"x": x, "w": w, "y": y}, body)
    (found,) = prepare(text, parameters=Parameters({"w": w}, inputs=("x", "y"))).in_floats
    assert found == InFloats("add at 5:3", "add", "its second operand is not quantised")

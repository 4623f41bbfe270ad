"""Products for GPU templates, straight from tensor expressions: any dtype, layout and epilogue."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from subtune.core.workload import CONSTANT_ARGS_ATTR, Workload


def product(
    m: int, n: int, k: int, layout: str = "nt", dtype: str = "float16", acc: str = "float32", out: str = "",
    batch: int = 0, bias: bool = False, residual: bool = False, relu: bool = False, scale: bool = False,
    constant: bool = False, mask: bool = False,
) -> Workload:  # fmt: skip
    """C[m, n] = epilogue(A @ B). `layout`: n or t for A, then for B; nt is A[m, k], B[n, k]."""
    lead = (batch,) if batch else ()
    a = te.placeholder((*lead, m, k) if layout[0] == "n" else (*lead, k, m), dtype, name="a")
    b = te.placeholder((*lead, n, k) if layout[1] == "t" else (*lead, k, n), dtype, name="b")
    left = a
    if scale:
        left = te.compute(a.shape, lambda *i: a(*i) * tirx.const(2, dtype), name="scaled")
    kk = te.reduce_axis((0, k), name="kk")

    def cast(value: Any) -> Any:
        return value if dtype == acc else value.astype(acc)

    def value(*index: Any) -> Any:
        *s, i, j = index
        x = left(*s, i, kk) if layout[0] == "n" else left(*s, kk, i)
        y = b(*s, j, kk) if layout[1] == "t" else b(*s, kk, j)
        return te.sum(cast(x) * cast(y), axis=kk)

    c = te.compute((*lead, m, n), value, name="c")
    return _finish([a, b], c, acc, out or dtype, dtype, bias, residual, relu, constant, mask)


def convolution(
    batch: int, size: int, cin: int, cout: int, kernel: int, stride: int = 1, dtype: str = "float16",
    acc: str = "float32", out: str = "", bias: bool = False, residual: bool = False, relu: bool = False,
    weights: str = "OHWI", pad: int = -1,
) -> Workload:  # fmt: skip
    """NHWC convolution of square images, padded to keep the size at stride 1 (or by `pad`)."""
    p = kernel // 2 if pad < 0 else pad
    extent = (size + 2 * p - kernel) // stride + 1
    x = te.placeholder((batch, size, size, cin), dtype, name="x")
    shape = {"OHWI": (cout, kernel, kernel, cin), "HWIO": (kernel, kernel, cin, cout)}[weights]
    w = te.placeholder(shape, dtype, name="w")
    padded = x
    if p:
        padded = te.compute(
            (batch, size + 2 * p, size + 2 * p, cin),
            lambda n, h, v, c: tirx.if_then_else(
                tirx.all(h >= p, h < size + p, v >= p, v < size + p), x[n, h - p, v - p, c], tirx.const(0, dtype)
            ),
            name="padded",
        )
    rh, rw = te.reduce_axis((0, kernel), name="rh"), te.reduce_axis((0, kernel), name="rw")
    rc = te.reduce_axis((0, cin), name="rc")

    def cast(value: Any) -> Any:
        return value if dtype == acc else value.astype(acc)

    def value(n: Any, h: Any, v: Any, o: Any) -> Any:
        weight = w[o, rh, rw, rc] if weights == "OHWI" else w[rh, rw, rc, o]
        return te.sum(cast(padded[n, h * stride + rh, v * stride + rw, rc]) * cast(weight), axis=[rh, rw, rc])

    c = te.compute((batch, extent, extent, cout), value, name="c")
    return _finish([x, w], c, acc, out or dtype, dtype, bias, residual, relu, True)


def _finish(
    args: list[Any], c: Any, acc: str, out: str, dtype: str, bias: bool, residual: bool, relu: bool, constant: bool,
    mask: bool = False,
) -> Workload:  # fmt: skip
    def stage(name: str, what: Any, source: Any) -> Any:
        return te.compute(source.shape, lambda *i: what(source(*i), *i), name=name)

    n = int(c.shape[-1])
    if bias:
        d = te.placeholder((n,), acc if acc == "int32" else dtype, name="bias")
        args.append(d)
        c = stage("biased", lambda value, *i: value + d[i[-1]].astype(acc), c)
    if residual:
        r = te.placeholder(c.shape, out, name="residual")
        args.append(r)
        c = stage("added", lambda value, *i: value + r(*i).astype(acc), c)
    if relu:
        c = stage("activated", lambda value, *i: te.max(value, tirx.const(0, acc)), c)
    if mask:
        seen = te.placeholder(c.shape[-2:], "bool", name="seen")
        args.append(seen)
        c = stage("masked", lambda value, *i: tirx.Select(seen(*i[-2:]), value, tirx.const(-1, acc)), c)
    if out != acc:
        c = stage("rounded", lambda value, *i: value.astype(out), c)
    func = te.create_prim_func([*args, c])
    constants = [1] if constant else []
    return Workload.of(func.with_attr(CONSTANT_ARGS_ATTR, constants), 1)

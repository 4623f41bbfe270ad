"""Products with constant weights of 4 or 8 bits, as `passes/packed_weights` makes them, straight from expressions."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from subtune.core.workload import CONSTANT_ARGS_ATTR, Workload


def weight_only(
    m: int, n: int, k: int, group: int = 128, bits: int = 4, dtype: str = "float16", scale: str = "",
    zeros: bool = False, zero: int = 8, packed: str = "uint8", epilogue: str = "", out: str = "",
    is_constant: bool = True, rounds: bool = False,
) -> Workload:  # fmt: skip
    """x[m, k] times ((weights[n, k] - zero) * scale[n, k // group])^T, summed in float32.

    Args:
        zeros: zero points of every group, in place of `zero`.
        epilogue: joined by +: bias, relu, residual.
        rounds: x is float32, and rounded to `dtype`.
    """
    scale, blocks = scale or dtype, -(-k // group)
    x, q = (
        te.placeholder((m, k), "float32" if rounds else dtype, "x"),
        te.placeholder((n, -(-k * bits // 8)), packed, "packed"),
    )
    s = te.placeholder((n, blocks), scale, "scale")
    args, constants = [x, q, s], [1, 2]
    if zeros:
        args.append(te.placeholder((n, blocks), "uint8", "zero"))
        constants.append(3)

    def weight(j: Any, i: Any) -> Any:
        block = tirx.floordiv(i, group) if group < k else tirx.const(0, i.ty)
        shift = (tirx.floormod(i, 2) * 4).astype("uint8")
        whole = q[j, i] if bits == 8 else (q[j, tirx.floordiv(i, 2)] >> shift) & tirx.const(15, "uint8")
        whole = whole.astype(scale)
        if zeros:
            whole = whole - args[3][j, block].astype(scale)
        elif zero:
            whole = whole - tirx.const(float(zero), scale)
        return (whole * s[j, block]).astype(dtype)

    weights, r = te.compute((n, k), weight, "weight"), te.reduce_axis((0, k), "r")
    y = te.compute((m, n), lambda i, j: te.sum(
        x[i, r].astype(dtype).astype("float32") * weights[j, r].astype("float32"), axis=r), "product")  # fmt: skip
    for step in filter(None, epilogue.split("+")):
        y = _finished(step, y, args, dtype)
    out = out or dtype
    if out != "float32":
        y = te.compute((m, n), lambda i, j: y[i, j].astype(out), "rounded")
    func = te.create_prim_func([*args, y]).with_attr(CONSTANT_ARGS_ATTR, constants if is_constant else [])
    return Workload.of(func, 1)


def _finished(step: str, y: Any, args: list[Any], dtype: str) -> Any:
    if step == "relu":
        return te.compute(y.shape, lambda i, j: tirx.max(y[i, j], tirx.const(0.0, "float32")), "relu")
    other = te.placeholder(y.shape[1:] if step == "bias" else y.shape, dtype, step)
    args.append(other)
    if step == "bias":
        return te.compute(y.shape, lambda i, j: y[i, j] + other[j].astype("float32"), "biased")
    return te.compute(y.shape, lambda i, j: y[i, j] + other[i, j].astype("float32"), "added")

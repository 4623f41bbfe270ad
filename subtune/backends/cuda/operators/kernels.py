"""A function of kernels that are written by hand, for an operator that the partition left in main."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from subtune.backends.cuda.source.calls import address, end
from subtune.backends.cuda.source.emit import const, prim_func

Written: TypeAlias = Any
"""A `tirx.PrimFunc`, scheduled."""
Tensor = tuple[tuple[int, ...], str]
"""Shape and dtype."""
_NULL = tirx.reinterpret("handle", tirx.const(0, "uint64"))
NOTHING = (_NULL, _NULL)
"""In place of a `span`."""


def span(buffer: Any) -> tuple[Any, Any]:
    """The addresses of the first and the last element of a buffer of the function's own."""
    return address(buffer, const(0)), end(buffer)


def written(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], body: Callable[..., tuple[list[Any], list[Any]]]
) -> Written:
    """A function of `inputs`, then `outputs`, in destination-passing style.

    Args:
        body: of their buffers, the kernels in the order of their launches, and the buffers between them.
    """
    buffers = [
        tirx.decl_buffer([const(extent) for extent in shape], dtype, f"p{index}")
        for index, (shape, dtype) in enumerate((*inputs, *outputs))
    ]
    root = SBlockRealize([], True, SBlock([], [], [], "root", tirx.Evaluate(const(0))))
    kernels, between = body(*buffers)
    func = tirx.PrimFunc(buffers, root).with_attrs({"tirx.noalias": True, "op_pattern": 8})
    return prim_func(func, kernels, between)

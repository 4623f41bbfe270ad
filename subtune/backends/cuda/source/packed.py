"""Constants in the order of dims that a kernel reads them in: the innermost axis of its lanes last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.core.kernel import Kernel, Packing
from subtune.patterns.axes import Operand


@dataclass(frozen=True, slots=True)
class Packed:
    """`buffers`: a constant's new buffer and the order of its dims, by the one that it replaces."""

    buffers: dict[Any, tuple[Any, tuple[int, ...]]]
    packings: tuple[tuple[int, Packing], ...]

    @classmethod
    def of(cls, func: PrimFunc, operands: Sequence[Operand], axis: int) -> Packed:
        """The constants `operands` of `func` with the dim that `axis` of the anchor indexes innermost."""
        buffers, packings = {}, []
        for operand in operands:
            order = tuple(sorted(range(len(operand.axes)), key=lambda dim: operand.axes[dim] == axis))
            param = func.params[operand.param]
            dims = [operand.shape[dim] for dim in order]
            buffers[param] = tirx.decl_buffer(dims, str(param.dtype), f"{param.name}_packed"), order
            packings.append((operand.param, Packing(tuple((extent,) for extent in operand.shape), order)))
        return cls(buffers, tuple(packings))

    def moved(self, expr: Any) -> Any:
        """Loads of the constants in `expr`, from where they are packed."""

        def of_load(found: Any) -> Any:
            if found.source not in self.buffers:
                return found
            buffer, order = self.buffers[found.source]
            return tirx.BufferLoad(buffer, [found.indices[dim] for dim in order])

        return tvm_ffi.structural_map(expr, (ir.TensorLoad, of_load))

    def kernel(self, written: PrimFunc) -> Kernel:
        """`written`, a PrimFunc with the parameters of `func`, with the packed ones."""
        params = [self.buffers[param][0] if param in self.buffers else param for param in written.params]
        return Kernel(tirx.PrimFunc(params, written.body, written.ret_type, written.attrs), self.packings)

"""The unit that is tuned: one fused subgraph as a frozen, unscheduled PrimFunc in destination-passing style."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

CONSTANT_ARGS_ATTR = "layout_free_buffers"
"""PrimFunc attribute (TVM's name): indices of the parameters that are constants of the model.

Their layout belongs to the candidate: a template may ask for them packed, once, at compile time.
"""
SUM_BITS_ATTR = "subtune.sum_bits"
"""PrimFunc attribute of a convolution of bytes: differences of bytes, times its constant weights, have sums below 2 to
this power. Said where the number of channels alone does not say so much."""


@dataclass(frozen=True, slots=True)
class Arg:
    """One buffer parameter of a workload. Dims are ints; a symbolic dim is its name."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    is_constant: bool
    is_output: bool

    @property
    def nbytes(self) -> int:
        """Size in bytes of the whole buffer; all dims must be static."""
        return prod(int(dim) for dim in self.shape) * dtype_bits(self.dtype) // 8


@dataclass(frozen=True)
class Workload:
    """A subgraph's mathematical essence: what is computed, on which shapes and dtypes; no schedule, no names.

    `func` is the PrimFunc as outlined from the graph: the anchor's sblock, the prologue's and the epilogue's,
    unscheduled; inputs first, then `num_outputs` outputs. Two workloads are one when their keys are equal.
    """

    func: PrimFunc = field(compare=False, repr=False)
    num_outputs: int
    key: str

    @classmethod
    def of(cls, func: PrimFunc, num_outputs: int) -> Workload:
        """Freeze `func` under the canonical symbol `main`; the key is TVM's structural hash, names left out."""
        from tvm_ffi import structural_hash

        func = func.with_attr("global_symbol", "main")
        return cls(func, num_outputs, f"{structural_hash(func) & (2**64 - 1):016x}")

    def without_constants(self, indices: Collection[int]) -> Workload:
        """Where these arguments, of those that are constants, are written in every run."""
        if not indices:
            return self
        rest = [i for i, arg in enumerate(self.args) if arg.is_constant and i not in indices]
        return Workload.of(self.func.with_attr(CONSTANT_ARGS_ATTR, rest), self.num_outputs)

    @cached_property
    def args(self) -> tuple[Arg, ...]:
        constants = {int(i) for i in self.func.attrs.get(CONSTANT_ARGS_ATTR, ())} if self.func.attrs else set()
        first_output = len(self.func.params) - self.num_outputs
        return tuple(
            Arg(param.name, tuple(_dim(d) for d in param.shape), str(param.dtype), i in constants, i >= first_output)
            for i, param in enumerate(self.func.params)  # in this TVM a buffer is a Var with a shape and a dtype
        )

    @cached_property
    def nbytes(self) -> int:
        """Compulsory traffic in bytes: every argument read or written once."""
        return sum(arg.nbytes for arg in self.args)

    @cached_property
    def flops(self) -> int:
        """Arithmetic of one run, in floating point or integer operations, as TVM counts them."""
        from tvm import IRModule
        from tvm.s_tir.analysis import estimate_tir_flops

        return int(estimate_tir_flops(IRModule({"main": self.func})))

    def to_json(self) -> str:
        """The PrimFunc in TVM's JSON, for worker processes and the database."""
        return self._json

    @cached_property
    def _json(self) -> str:  # asked for with everything that is stored
        import tvm

        return str(tvm.ir.save_json(self.func))

    @classmethod
    def from_json(cls, text: str, num_outputs: int) -> Workload:
        import tvm

        return cls.of(tvm.ir.load_json(text), num_outputs)


@cache
def dtype_bits(dtype: str) -> int:
    """Bits of one element; `bool` is stored in eight."""
    if dtype == "bool":
        return 8
    digits = "".join(ch for ch in dtype.split("_")[0] if ch.isdigit())
    return int(digits)


def _dim(dim: Any) -> int | str:
    return int(dim) if hasattr(dim, "value") else str(dim)

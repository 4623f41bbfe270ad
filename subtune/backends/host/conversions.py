"""A candidate's module without TVM's conversions from and to float16, where its kernel has no such value.

TVM puts both functions into every module that LLVM compiles, and compiling them takes a sixth of what a contraction
takes there. They are weak: what is linked into the module before it is optimised replaces them, and an alias costs
nothing. The kernel's own code is the same.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

ATTRIBUTE = "subtune.no_float16"
"""Of a PrimFunc that is compiled alone: no value of it is a float16."""

_ALIASES = """\
@subtune_unused = private constant i8 0
@__truncsfhf2 = hidden alias i8, ptr @subtune_unused
@__extendhfsf2 = hidden alias i8, ptr @subtune_unused
"""


def without_conversions(func: PrimFunc) -> PrimFunc:
    """`func`, scheduled, marked for `drop_conversions` if it may be: it must be its module's only function."""
    return func if _has_float16(func) else func.with_attr(ATTRIBUTE, True)


def drop_conversions(func: PrimFunc) -> PrimFunc:
    """Lowered TIR that brings the aliases with it."""
    text = ir.StringImm(_ALIASES)
    return func.with_body(tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", text, func.body))


def _has_float16(func: PrimFunc) -> bool:
    """A float16 comes from memory, or from what makes one of something else."""
    found: list[str] = []
    note = lambda node: found.append(str(node.ty))  # noqa: E731
    tvm_ffi.structural_walk(func, ((ir.TensorLoad, tirx.Cast, ir.Call), note))
    return any("float16" in name.replace("bfloat16", "") for name in found)

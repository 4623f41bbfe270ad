"""Asynchronous copies of bytes with zeros around them, as TVM makes them of floats only (apache-tvm 0.27.0.post1).

    shared[i:i + 16] = if_then_else(condition, x[j:j + 16], 0)   ->   cp_async_raw(shared, i, x, j, 16 bytes, condition)

Of an integer 0, InjectPTXAsyncCopy does not see that the instruction itself fills in zeros: a padded image of bytes
would be loaded to registers, waited for, and stored.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from subtune.core.numerics import BYTES

_SCOPE = "async_scope"
_SIZES = (4, 8, 16)
"""Bytes that one `cp.async` copies."""


@tvm.transform.module_pass(opt_level=0, name="subtune.AsyncBytes")  # type: ignore[untyped-decorator]
def async_bytes(mod: IRModule, _context: PassContext) -> IRModule:
    """Run before InjectPTXAsyncCopy, on flat buffers and vectors."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            func = func.with_body(tvm_ffi.structural_map(func.body, (tirx.AttrStmt, _copied)))
        result[var] = func
    return result


def _copied(stmt: Any) -> Any:
    if str(stmt.attr_key) != _SCOPE:
        return stmt
    body = tvm_ffi.structural_map(stmt.body, (tirx.BufferStore, _copy))
    return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)


def _copy(store: Any) -> Any:
    value, dtype = store.value, str(store.buffer.dtype)
    if dtype not in BYTES or not str(store.buffer.scope()).startswith("shared"):
        return store
    if not isinstance(value, ir.Call) or not str(value.op.name).endswith("if_then_else"):
        return store
    condition, load, zero = value.args
    if not isinstance(load, ir.TensorLoad) or str(load.source.dtype) != dtype or not _is_zero(zero):
        return store
    (to,), (origin,) = store.indices, load.indices
    if not _is_run(to) or not _is_run(origin) or int(to.lanes) not in _SIZES:
        return store
    places = store.buffer.data, to.base, load.source.data, origin.base
    return tirx.Evaluate(tirx.call_intrin(dtype, "tirx.s_tir.cp_async_raw", *places, int(to.lanes), condition))


def _is_zero(vector: Any) -> bool:
    value = vector.value if isinstance(vector, tirx.Broadcast) else None
    return isinstance(value, tirx.IntImm) and int(value) == 0


def _is_run(index: Any) -> bool:
    return isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1

"""`mma.sync` that are more than an instruction: calls of device functions in their place.

2xtf32: operands of float32 are sums of two numbers of tf32 each (`source.split_tf32`).
e4m3:   products of float8e4m3fn are added to their sums in float32 (`source.float8_sums`).
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cuda.source.float8_sums import FLOAT8_SUMS
from subtune.backends.cuda.source.split_tf32 import SPLIT_TF32
from subtune.core.numerics import FLOAT8

SPLIT_TYPE = "2xtf32"
"""What a schedule's `mma.sync` of m16n8k8 says in place of PTX's type of A and B."""
FLOAT8_TYPE = "e4m3"
_FUNCTIONS = {
    SPLIT_TYPE: ("subtune::add_mma_split", "float32", SPLIT_TF32),
    FLOAT8_TYPE: ("subtune::add_mma_float8", FLOAT8, FLOAT8_SUMS),
}
"""By the type: the function, what its operands are of, and its source."""
_A_TYPE, _A, _B, _SUMS = 3, 6, 8, 10
"""Arguments of TVM's `ptx_legacy.mma`: a type, and the pairs of a buffer and an element."""
_READ_AND_WRITTEN = 3


@tvm.transform.module_pass(opt_level=0, name="subtune.CalledMma")  # type: ignore[untyped-decorator]
def called_mma(mod: IRModule, _context: PassContext) -> IRModule:
    """After LowerWarpMemory, which knows which registers an `mma.sync` is given."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _replaced(func) if isinstance(func, PrimFunc) else func
    return result


def _replaced(func: PrimFunc) -> PrimFunc:
    from tvm.backend.cuda.op import cuda_func_call

    def called(node: Any) -> Any:
        kind = getattr(node.args[_A_TYPE], "value", None) if len(node.args) > _SUMS + 1 else None
        if not isinstance(kind, str) or kind not in _FUNCTIONS:
            return node
        name, dtype, source = _FUNCTIONS[kind]
        pointers = [
            tirx.tvm_access_ptr(of, node.args[at], node.args[at + 1], 1, _READ_AND_WRITTEN)
            for at, of in ((_SUMS, "float32"), (_A, dtype), (_B, dtype))
        ]
        return cuda_func_call(name, *pointers, source_code=source)

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, called)))

"""`mma.sync` of float32 whose operands are sums of two numbers of tf32 each (`source.split_tf32`)."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cuda.source.split_tf32 import SPLIT_TF32

SPLIT_TYPE = "2xtf32"
"""What a schedule's `mma.sync` of m16n8k8 says in place of PTX's type of A and B."""
_FUNCTION = "subtune::add_mma_split"
_A_TYPE, _A, _B, _SUMS = 3, 6, 8, 10
"""Arguments of TVM's `ptx_legacy.mma`: a type, and the pairs of a buffer and an element."""
_READ_AND_WRITTEN = 3


@tvm.transform.module_pass(opt_level=0, name="subtune.SplitTF32")  # type: ignore[untyped-decorator]
def split_tf32(mod: IRModule, _context: PassContext) -> IRModule:
    """After LowerWarpMemory, which knows which registers an `mma.sync` is given."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _replaced(func) if isinstance(func, PrimFunc) else func
    return result


def _replaced(func: PrimFunc) -> PrimFunc:
    from tvm.backend.cuda.op import cuda_func_call

    def called(node: Any) -> Any:
        if len(node.args) <= _A_TYPE or getattr(node.args[_A_TYPE], "value", None) != SPLIT_TYPE:
            return node
        pointers = [
            tirx.tvm_access_ptr("float32", node.args[at], node.args[at + 1], 1, _READ_AND_WRITTEN)
            for at in (_SUMS, _A, _B)
        ]
        return cuda_func_call(_FUNCTION, *pointers, source_code=SPLIT_TF32)

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, called)))

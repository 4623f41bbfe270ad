"""What is computed of one byte, and stored as a byte again, is looked up.

    quantize(f(dequantize(q)))  ->  take(table, q)      table[i] = quantize(f(dequantize(i))), 256 bytes

`f` is any chain of elementwise operators of `q` and of single numbers, with further roundings to bytes between them: a
GELU that an exporter wrote as five operators is one table. Worth it where `f` has an operator that is costly, or rounds
more than once. The table is computed as constants are folded, each operator rounded as the model says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import Call

from subtune.core.numerics import BYTES
from subtune.passes.elementwise import BINARY, UNARY, is_lookup
from subtune.passes.exprs import Expr, array_of, dtype_of, make_const, op_name, shape_of
from subtune.passes.fold_constants import evaluated, operand_of
from subtune.passes.fold_table import TABLE
from subtune.passes.integer_operands import quantises
from subtune.passes.opkind import COSTLY
from subtune.passes.rewriter import Walk, rewrite

_MOST_OPS = 40
_STEPS = UNARY | BINARY


def byte_tables(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with functions of single bytes as tables."""
    return rewrite(mod, {"relax.quantize": (_as_table,)}) if quantises(mod) else mod


def legalize_take(bb: Any, call: Call) -> Any:
    """As TVM does, but a lookup, of which every index is within the table, clips none."""
    if not is_lookup(call):
        return call.op.get_attr("FLegalize")(bb, call)

    def te_lookup(table: Any, index: Any) -> Any:
        return te.compute(index.shape, lambda *at: table(index(*at).astype("int32")), name="lookup")

    return bb.call_te(te_lookup, *call.args, primfunc_name_hint="lookup")


def _as_table(walk: Walk, call: Call) -> Expr | None:
    if dtype_of(call) not in BYTES or not shape_of(call):
        return None
    chain = _Chain(walk, call)
    leaf = chain.find_leaf()
    if leaf is None:
        return None
    limits = np.iinfo(dtype_of(leaf))
    table = chain.value(call, leaf, np.arange(limits.min, limits.max + 1).astype(dtype_of(leaf)))
    if table is None:
        return None
    if limits.min:
        shifted = relax.op.add(relax.op.astype(leaf, "int16"), relax.const(-limits.min, "int16"))
        return relax.op.take(make_const(table), shifted, axis=0, mode="clip")
    return relax.op.take(make_const(table), leaf, axis=0, mode="clip")


class _Chain:
    """The elementwise operators between one tensor of bytes and `result`, which has the same shape."""

    def __init__(self, walk: Walk, result: Call) -> None:
        self._walk, self._result, self._shape = walk, result, shape_of(result)
        self._made: dict[Any, Call] = {}
        self._costly = self._roundings = 0

    def find_leaf(self) -> Expr | None:
        """The tensor of bytes that all is made of, as far back as there is a single one; None where it is not worth it.

        Of several that are read, the last one made is replaced by what it is made of.
        """
        found, read = None, self._read_by(self._result)
        while read:
            if len(read) == 1:
                (leaf,) = read
                found = leaf if self._costly or self._roundings > 1 else found
            last = next((var for var in reversed(self._walk.defs) if var in read), next(iter(read)))
            made = self._walk.definition(last)
            if not _is_rounding(made):
                break
            before = self._read_by(made)
            if before is None:
                break
            self._made[last] = made
            read = (read - {last}) | before
        return found if found is not None and dtype_of(found) in BYTES else None

    def _read_by(self, rounding: Call) -> set[Any] | None:
        """The tensors of bytes from which a rounding's result is computed; None where it needs more."""
        read: set[Any] = set()
        floats: dict[Any, Call] = {}
        costly, pending = int(is_lookup(rounding)), [rounding]
        while pending:
            call = pending.pop()
            for arg in (arg for arg in call.args if isinstance(arg.ty, relax.TensorType)):
                numbers = array_of(arg)
                if numbers is not None and (numbers.size == 1 or is_lookup(call)):
                    continue
                if numbers is not None or shape_of(arg) != self._shape:
                    return None
                if dtype_of(arg) in BYTES:
                    read.add(arg)
                elif arg not in floats:
                    made = self._walk.definition(arg)
                    if op_name(made) not in _STEPS or op_name(made) not in TABLE or len(floats) > _MOST_OPS:
                        return None
                    floats[arg] = made
                    costly += op_name(made).removeprefix("relax.") in COSTLY
                    pending.append(made)
        self._made.update(floats)
        self._costly += costly
        self._roundings += 1
        return read

    def value(self, call: Call, leaf: Expr, numbers: np.ndarray) -> Any:
        """What `call` makes where the leaf is `numbers`; None where an operator is left to the compiler."""
        known: dict[Any, Any] = {leaf: numbers}

        def of(made: Call) -> Any:
            operands = []
            for arg in made.args:
                if arg not in known and arg in self._made:
                    known[arg] = of(self._made[arg])
                found = known[arg] if arg in known else operand_of(self._walk, arg)
                if isinstance(found, np.ndarray) and found.size == 1:
                    found = found.reshape(())
                operands.append(found)
            if any(operand is None for operand in operands):
                return None
            return evaluated(TABLE[op_name(made)], made, operands)

        return of(call)


def _is_rounding(made: Expr) -> bool:
    return op_name(made) == "relax.quantize" or is_lookup(made)

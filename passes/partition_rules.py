"""The rules of the partition, each a question with a reason as answer: None says yes, a sentence says why not."""

from __future__ import annotations

from subtune.core.graph import Kind, OpNode, Origin
from subtune.core.numerics import HALVES, OF_8_BITS
from subtune.passes.opkind import CHEAP, COSTLY, DUPLICATING

MAX_OUTPUTS = 2
"""Outputs of an anchored group: its last value and one intermediate (a pre-activation residual)."""

MAX_ELEMENTWISE_OUTPUTS = 4
"""Outputs of an elementwise group: more streams than this exhaust a core's write-combining buffers."""

MAX_COPIES = 64
"""Times that one op may be computed for an element: schedules write every op where it is read, and what is read twice
by what is read twice doubles the text, and the time to compile it, with every op of a chain."""


CASTS = frozenset({"astype", "dequantize"})


def refuses_epilogue(anchor: OpNode, op: OpNode) -> str | None:
    """Why `op` cannot be computed at `anchor`'s output tile."""
    if op.kind is Kind.VIEW:
        return f"{op.name} is a view: it costs nothing and ends the tile"
    if op.kind is Kind.OPAQUE:
        return f"{op.name} is opaque: TVM runs it its own way"
    if op.kind.is_anchor:
        return f"{op.name} is an anchor of its own"
    if op.kind is Kind.MOVEMENT:
        return f"{op.name} moves data: not computable at the tile"
    if len(anchor.outputs) != 1:
        return f"{anchor.name} has {len(anchor.outputs)} outputs"
    if anchor.kind is Kind.OTHER:
        return f"{anchor.name} is lowered alone"
    if is_widening(op):
        return f"{op.name} widens {op.inputs[0].tensor.dtype}: done where it is read, it costs half the bytes"
    if op.output.shape != anchor.output.shape:
        return f"{op.name} makes {op.output}, another shape than the tile's {anchor.output}"
    return None


def refuses_prologue(anchor: OpNode, producer: OpNode) -> str | None:
    """Why `producer` cannot be computed where `anchor` reads it."""
    if anchor.kind is Kind.CONTRACTION:
        return _into_contraction(anchor, producer)
    if anchor.kind is Kind.POOLING:
        if anchor.op.startswith("tir.") and not is_widening(producer):
            return _stays(producer, f"{anchor.short} may read an element any number of times")
        if producer.op == "nn.pad" or is_cheap(producer):
            return None
        return _stays(producer, f"{anchor.short} reads an element several times")
    if anchor.kind in (Kind.REDUCTION, Kind.NORMALIZATION):
        if producer.kind is not Kind.ELEMENTWISE:
            return _stays(producer, "it moves data")
        reads_once = anchor.kind is Kind.REDUCTION and anchor.op not in ("std", "variance")
        if is_costly(producer) and not reads_once:
            return _stays(producer, f"it is costly and {anchor.short} reads its input several times")
        return None
    if anchor.kind is Kind.GATHER and is_widening(producer):
        return None  # few elements of a table may be read, and each is half as long before the cast
    return _stays(producer, f"{anchor.short} reads from memory")


def refuses_inline(consumer: OpNode, producer: OpNode, is_epilogue: bool) -> str | None:
    """Why the injective `producer` cannot be computed where the injective `consumer` reads it."""
    if producer.kind is Kind.MOVEMENT:
        return _stays(producer, "it moves data") if is_epilogue else None
    if consumer.op in DUPLICATING and is_costly(producer):
        return _stays(producer, f"it is costly and {consumer.short} reads an element several times")
    times = consumer.output.numel // max(producer.output.numel, 1)
    if times > 1 and consumer.kind is Kind.ELEMENTWISE and not is_widening(producer):
        return _stays(producer, f"it would be computed {times} times for each element")
    return None


def refuses_copies(op: OpNode, copies: int) -> str | None:
    """Why `op` cannot join a group where one op would then be computed `copies` times."""
    return _stays(op, f"an op would be computed {copies} times for each element") if copies > MAX_COPIES else None


def is_widening(op: OpNode) -> bool:
    """Whether `op` casts a half to float32, which costs less than the bytes it saves where it is read."""
    return op.op == "astype" and op.inputs[0].tensor.dtype in HALVES and op.output.dtype == "float32"


def is_dequantizing(op: OpNode) -> bool:
    """Whether `op` makes 32 bits of each byte, which is a quarter of that where nothing else follows in the tile."""
    return op.op in CASTS and op.inputs[0].tensor.dtype in OF_8_BITS and op.output.dtype in ("float32", "int32")


def is_expanding(op: OpNode) -> bool:
    """Whether `op` makes floats of constants that are smaller: of weights' bits, which are kept for that."""
    given = sum(value.tensor.nbytes for value in op.inputs)
    is_constant = all(value.origin is Origin.CONSTANT for value in op.inputs)
    return is_constant and op.op.startswith("tir.") and given < op.output.nbytes


def is_rounding(op: OpNode) -> bool:
    """Whether `op` casts float32 to a half."""
    return op.op == "astype" and op.inputs[0].tensor.dtype == "float32" and op.output.dtype in HALVES


def is_cheap(op: OpNode) -> bool:
    return op.op.removeprefix("tir.") in CHEAP


def is_costly(op: OpNode) -> bool:
    return op.op.removeprefix("tir.") in COSTLY


def _into_contraction(anchor: OpNode, producer: OpNode) -> str | None:
    if producer.op in CASTS or is_expanding(producer):
        return None
    if producer.op == "nn.pad" and "conv" in anchor.op:
        is_of_pixels = producer.output.shape[-1] == producer.inputs[0].tensor.shape[-1]  # channels are last
        return None if is_of_pixels else _stays(producer, "its channels are to lie so in memory")
    if producer.op == "permute_dims" and anchor.op == "matmul":
        return None
    if producer.kind is Kind.MOVEMENT:
        return _stays(producer, "it moves data")
    # templates block a contraction of loads, or casts of loads: with anything else in its innermost loop it would lose
    # far more than one pass over memory costs
    return _stays(producer, f"{anchor.short} would compute it for each of its multiplications")


def _stays(op: OpNode, reason: str) -> str:
    return f"{op.name} stays out: {reason}"

"""What a reduction combines: one value, or several at once (an ArgMax: the largest, and where it is)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from subtune.backends.cuda.source.axes import dtype_of, substituted
from subtune.backends.cuda.source.emit import Code, const, load
from subtune.backends.cuda.source.lanes import Unsupported, rounded, wide, widened_constant
from subtune.tir.expressions import is_load_of, is_same
from subtune.tir.substitute import substitute

_COMBINERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True, slots=True)
class Combiner:
    """`buffers[i] = steps[i](what they hold, elements)`, each begun at `first[i]`, in registers of `dtypes`.

    `steps` are expressions of the variables `held` and `given`, one of each for every buffer.
    """

    buffers: tuple[Any, ...]
    dtypes: tuple[str, ...]
    elements: tuple[Any, ...]
    first: tuple[Any, ...]
    steps: tuple[Any, ...]
    held: tuple[Any, ...]
    given: tuple[Any, ...]

    def combined(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        """One step: the values `a`, and `b` added to them."""
        values = dict(zip((*self.held, *self.given), (*a, *b), strict=True))
        return [substituted(step, values) for step in self.steps]

    def begin(self, code: Code, count: int, name: str) -> list[Any]:
        """Registers for `count` of each value, with what they begin with."""
        made = [code.local(dtype, count, name) for dtype in self.dtypes]
        with code.unrolled(count) as i:
            for registers, first, dtype in zip(made, self.first, self.dtypes, strict=True):
                code.store(registers, i, rounded(widened_constant(first), dtype))
        return made

    def add(self, code: Code, registers: Sequence[Any], index: Any, values: Sequence[Any]) -> None:
        """`registers[index]` become what they are together with `values`, each of which is computed once."""
        if len(registers) == 1:
            code.store(registers[0], index, self.combined([load(registers[0], index)], values)[0])
            return
        given = _kept(code, values, self.dtypes)
        made = _kept(code, self.combined([load(r, index) for r in registers], given), self.dtypes)
        for register, value in zip(registers, made, strict=True):
            code.store(register, index, value)


def _kept(code: Code, values: Sequence[Any], dtypes: Sequence[str]) -> list[Any]:
    kept = []
    for value, dtype in zip(values, dtypes, strict=True):
        register = code.local(dtype, 1, "next")
        code.store(register, const(0), value)
        kept.append(load(register, const(0)))
    return kept


def combiner_of(block: Any) -> Combiner:
    """Of a reduction. Raises Unsupported where it is none of one value, and none of choices between several."""
    if block.init is None:
        raise Unsupported("a reduction that begins nowhere")
    if isinstance(block.body, tirx.BufferStore):
        return _of_one(block)
    defined, stores = _statements(block.body)
    begins = {store.buffer: store.value for store in _statements(block.init)[1]}
    own = [store.buffer for store in stores]
    values = [substitute(store.value, defined) for store in stores]
    if not own or any(buffer not in begins for buffer in own):
        raise Unsupported("a block stores more than one value")
    elements = [_element(value, buffer) for value, buffer in zip(values, own, strict=True)]
    dtypes = tuple(wide(str(buffer.dtype)) for buffer in own)
    held, given = _variables(dtypes)
    steps = tuple(_abstracted(value, own, elements, held, given) for value in values)
    return Combiner(tuple(own), dtypes, tuple(elements), tuple(begins[buffer] for buffer in own), steps, held, given)


def addition(dtype: str) -> Combiner:
    """Sums of nothing in particular."""
    held, given = _variables([dtype])
    return Combiner((), (dtype,), (), (tirx.const(0, dtype),), (held[0] + given[0],), held, given)


def indices_of(block: Any) -> dict[Any, Any]:
    """Where the block stores, by buffer."""
    if isinstance(block.body, tirx.BufferStore):
        return {block.body.buffer: block.body.indices}
    return {store.buffer: store.indices for store in _statements(block.body)[1]}


def _of_one(block: Any) -> Combiner:
    value, buffer = block.body.value, block.body.buffer
    if not isinstance(value, _COMBINERS) or not is_load_of(value.a, buffer):
        raise Unsupported("a reduction that is no sum, product, maximum or minimum")
    dtype = wide(str(buffer.dtype))
    held, given = _variables([dtype])
    step = type(value)(held[0], given[0])
    return Combiner((buffer,), (dtype,), (value.b,), (block.init.value,), (step,), held, given)


def _variables(dtypes: Sequence[str]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What is held and what is given, for each type."""
    held, given = (tuple(tirx.Var(f"{name}{i}", dtype) for i, dtype in enumerate(dtypes)) for name in "ab")
    return held, given


def _statements(body: Any) -> tuple[dict[Any, Any], list[Any]]:
    """What variables are bound to, those before them put in, and the stores."""
    defined: dict[Any, Any] = {}
    stores = []
    for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if isinstance(stmt, tirx.Bind):
            defined[stmt.var] = substitute(stmt.value, defined)
        elif isinstance(stmt, tirx.BufferStore):
            stores.append(stmt)
        else:
            raise Unsupported(f"a reduction with a statement of {type(stmt).__name__}")
    return defined, stores


def _element(value: Any, buffer: Any) -> Any:
    """What is chosen where the buffer's own value is not."""
    if not isinstance(value, tirx.Select) or not is_load_of(value.true_value, buffer):
        raise Unsupported("a reduction of several values that are no choices")
    return value.false_value


def _abstracted(
    value: Any, own: Sequence[Any], elements: Sequence[Any], held: Sequence[Any], given: Sequence[Any]
) -> Any:
    """`value` over variables in place of what the buffers hold, and of the elements."""

    def walk(expr: Any) -> Any:
        for element, variable in zip(elements, given, strict=True):
            if is_same(expr, element):
                return variable
        for buffer, variable in zip(own, held, strict=True):
            if is_load_of(expr, buffer):
                return variable
        return _over_parts(expr, walk)

    return walk(value)


def _over_parts(expr: Any, walk: Callable[[Any], Any]) -> Any:
    """`expr` with `walk` applied to its operands."""
    if isinstance(expr, tirx.Select):
        return tirx.Select(*(walk(part) for part in (expr.condition, expr.true_value, expr.false_value)))
    if hasattr(expr, "a") and hasattr(expr, "b"):
        return type(expr)(walk(expr.a), walk(expr.b))
    if isinstance(expr, tirx.Not):
        return tirx.Not(walk(expr.a))
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(dtype_of(expr), walk(expr.value))
    if isinstance(expr, ir.TensorLoad | ir.Call):
        raise Unsupported("a choice by more than the values")
    return expr

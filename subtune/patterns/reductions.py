"""Several reductions read as expressions: axes with known ranges, blocks' values in place of loads."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.tir.blocks import is_reduction, root_stages
from subtune.tir.expressions import is_load_of, is_same, loads
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a function by the buffer they write, in program order."""

    made: dict[Any, Any]
    params: tuple[Any, ...]
    constants: frozenset[int]

    @classmethod
    def of(cls, func: PrimFunc) -> Blocks | NotApplicable:
        made: dict[Any, Any] = {}
        for stage in root_stages(func):
            found: list[Any] = []
            tvm_ffi.structural_walk(stage, (SBlock, found.append), order="pre")
            if len(found) != 1 or not isinstance(found[0].body, tirx.BufferStore):
                return NotApplicable("a stage is more than one block with one store")
            block = found[0]
            if any(not isinstance(iv.dom.extent, tirx.IntImm) for iv in block.iter_vars):
                return NotApplicable("symbolic extents")
            spatial = {iv.var for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar}
            if set(block.body.indices) != spatial or len(block.body.indices) != len(spatial):
                return NotApplicable("a block does not store at its own axes")
            made[block.body.buffer] = block
        constants = frozenset(int(i) for i in func.attrs.get("layout_free_buffers", ()))
        return cls(made, tuple(func.params), constants)

    def needed_for(self, result: Any, known: Any | None = None) -> frozenset[Any]:
        """Of the buffers that are made, `result` and all that it is computed from; but for what makes `known` alone."""
        found: set[Any] = set()
        wanted = [result]
        while wanted:
            buffer = wanted.pop()
            if buffer in self.made and buffer not in found and not buffer.same_as(known):
                found.add(buffer)
                wanted += [load.source for load in loads(self.made[buffer].body.value)]
        return frozenset(found)

    def until(self, func: PrimFunc, result: Any) -> PrimFunc:
        """The part of `func` that makes `result`, as a function of the same inputs."""
        inputs = [p for p in func.params if self.is_param(p)]
        return self.part(func, self.needed_for(result), [*inputs, result])

    def after(self, func: PrimFunc, result: Any) -> PrimFunc:
        """The rest of `func`, of which `result` is the first input."""
        rest = frozenset(self.made) - self.needed_for(result)
        return self.part(func, rest, [result, *(p for p in func.params if not p.same_as(result))])

    def part(self, func: PrimFunc, made: Set[Any], params: list[Any]) -> PrimFunc:
        """The stages of `func` that make `made`, as a function of `params`."""
        stages = [stage for stage, buffer in zip(root_stages(func), self.made, strict=True) if buffer in made]
        inside = [b for b in self.made if b in made and not any(b.same_as(p) for p in params)]
        root = SBlock([], [], [], "root", stages[0] if len(stages) == 1 else tirx.SeqStmt(stages), None, inside)
        attrs: Mapping[str, Any] = func.attrs
        return tirx.PrimFunc(params, SBlockRealize([], True, root), func.ret_type, attrs)

    def is_param(self, buffer: Any) -> bool:
        return any(p.same_as(buffer) for p in self.params) and buffer not in self.made


@dataclass(frozen=True, slots=True)
class Scope:
    """Axes with known ranges, and the blocks whose values may be put in place of loads."""

    blocks: Blocks
    analyzer: Any

    def enter(self, block: Any) -> tuple[list[Any], list[Any]]:
        """Bind the block's axes; its spatial and its reduced axes that are longer than one."""
        kinds: tuple[list[Any], list[Any]] = [], []
        for iv in block.iter_vars:
            self.analyzer.bind(iv.var, iv.dom)
            if int(iv.dom.extent) > 1:
                kinds[int(int(iv.iter_type) == tirx.IterVar.CommReduce)].append(iv.var)
        return kinds

    def extent(self, expr: Any) -> int:
        return int(self.analyzer.const_int_bound(expr).max_value) + 1

    def expand(self, expr: Any) -> Any:
        """`expr` with every load of what an injective block makes replaced by that block's expression."""

        def follow(load: ir.TensorLoad) -> Any:
            block = self.blocks.made.get(load.source)
            if block is None or is_reduction(block):
                return load
            inlined = substitute(block.body.value, dict(zip(block.body.indices, load.indices, strict=True)))
            return tvm_ffi.structural_map(inlined, (ir.TensorLoad, follow))

        return self.analyzer.simplify(tvm_ffi.structural_map(expr, (ir.TensorLoad, follow)))


def product(block: Any) -> tuple[Any, Any] | None:
    """The two factors of `C[...] = C[...] + x * y`."""
    value = block.body.value
    if not is_reduction(block) or not isinstance(value, tirx.Add) or not is_load_of(value.a, block.body.buffer):
        return None
    term = value.b
    return (term.a, term.b) if isinstance(term, tirx.Mul) and str(term.ty.dtype) == "float32" else None


def reductions_of(
    func: PrimFunc, num_outputs: int, counts: tuple[int, ...], what: str
) -> tuple[Blocks, list[SBlock]] | NotApplicable:
    """The stages of a function with one output, and its reductions, as many as one of `counts`.

    Args:
        what: such a function is, for saying that this one is none.
    """
    if num_outputs != 1:
        return NotApplicable("several outputs")
    blocks = Blocks.of(func)
    if isinstance(blocks, NotApplicable):
        return blocks
    found = [block for block in blocks.made.values() if is_reduction(block)]
    return (blocks, found) if len(found) in counts else _no(what, found)


def sums_of_products(
    func: PrimFunc, num_outputs: int, counts: tuple[int, ...], what: str
) -> tuple[Blocks, list[SBlock]] | NotApplicable:
    """As `reductions_of`, where all of them are sums of products."""
    found = reductions_of(func, num_outputs, counts, what)
    if isinstance(found, NotApplicable) or all(product(block) is not None for block in found[1]):
        return found
    return _no(what, found[1])


def _no(what: str, found: list[SBlock]) -> NotApplicable:
    return NotApplicable(f"{len(found)} reductions are no {what}")


def common_indices(expr: Any, source: Any) -> tuple[Any, ...] | None:
    """The indices at which `expr` reads `source`, when they are the same everywhere."""
    found = [tuple(load.indices) for load in loads(expr) if load.source.same_as(source)]
    same = all(is_same(i, j) for at in found[1:] for i, j in zip(at, found[0], strict=True))
    return found[0] if found and same else None

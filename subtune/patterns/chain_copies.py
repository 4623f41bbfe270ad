"""A chain and copies of what it reads, in one function: attention in a model that gives its keys and values back.

    out            the chain, one of the results
    copy[axes]  =  operand[index map of the axes]       every other result: elements of a parameter, moved; of halves
                                                        perhaps as float32

Which operand a copy is of, and whether it has all of it, is for those to find out who make it beside the chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.patterns.chain import Chain, ChainExpressions, chain_expressions
from subtune.patterns.copies import Copy, copy_of
from subtune.patterns.reductions import Blocks
from subtune.tir.blocks import is_reduction


@dataclass(frozen=True, slots=True)
class ChainWithCopies:
    """`copies` results beside that of `chain`."""

    chain: Chain
    copies: int


@dataclass(frozen=True, slots=True)
class CopyingChain:
    """The chain as expressions, whose result is stored in `out`, and the copies."""

    form: ChainExpressions
    out: Any
    copies: tuple[Copy, ...]

    @property
    def pattern(self) -> Chain | ChainWithCopies:
        chain = self.form.pattern
        return ChainWithCopies(chain, len(self.copies)) if self.copies else chain


def copying_chain(func: PrimFunc, num_outputs: int) -> CopyingChain | NotApplicable:
    """An unscheduled PrimFunc that is a chain and any number of copies, or why it is none."""
    if num_outputs == 1:
        form = chain_expressions(func, 1)
        return form if isinstance(form, NotApplicable) else CopyingChain(form, func.params[-1], ())
    blocks = Blocks.of(func)
    if isinstance(blocks, NotApplicable):
        return blocks
    outputs = list(func.params[-num_outputs:])
    computed = [out for out in outputs if any(is_reduction(blocks.made[b]) for b in blocks.needed_for(out))]
    if len(computed) != 1:
        return NotApplicable(f"{len(computed)} results of reductions")
    (result,) = computed
    form = chain_expressions(blocks.until(func, result), 1)
    if isinstance(form, NotApplicable):
        return form
    found = [copy_of(blocks, out) for out in outputs if not out.same_as(result)]
    refused = next((one for one in found if isinstance(one, NotApplicable)), None)
    copies = tuple(one for one in found if isinstance(one, Copy))
    return refused or CopyingChain(form, result, copies)

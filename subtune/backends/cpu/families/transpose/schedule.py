"""Transposes and elementwise subgraphs that read an operand transposed: square tiles, turned in vector registers.

    for outer axes, tiles along one axis (parallel):  for tiles along the other:
      16 vectors of the operand, turned by four rounds of shuffles, make 16 vectors of the output

Loads and stores are whole vectors, so that memory is the limit; loops over scalars issue one element a cycle. The last
tile overlaps its neighbour where the extent is no multiple: it writes the same values. An axis shorter than a vector
(the three channels of an image) is taken as a whole: its vectors are interleaved, or taken apart; or tiles are smaller.

With the knob `rows`, operands that come from memory are read as memory likes it, along their rows:

    for parts of the blocks of rows x lanes^2 elements (parallel):  for blocks:  for tiles of the block:
      ask for a row to come;  a row of the next block -> staged;  staged tile of this block, turned -> output

Lines a power of two apart share a few sets of every cache: tiles read in place evict one another, those of the staged
block, whose rows lie a line further apart, do not.

With `columns` as well, for operands in L3, a block is staged as a whole, and then turned in tiles half as wide:

    for parts of the blocks of rows x columns elements (parallel):  for blocks:
      rows of the block -> staged
      for tiles of lanes x lanes / 2 elements, along the output's rows:  staged tile, turned -> output

Sixteen rows of the output a power of two apart are more than the 12 ways of the set of L1 in which their lines lie:
written along, they evict one another at every vector. Eight stay. And runs of `columns` elements, one row after the
other, are what hardware prefetchers recognise: L3 is so near that asking for a block ahead costs more than it brings.

The function is written, not scheduled: no schedule primitive makes shuffles.
"""

from __future__ import annotations

from tvm.s_tir import Schedule

from subtune.backends.cpu.families.transpose.blocks import in_blocks
from subtune.backends.cpu.families.transpose.candidates import Knobs
from subtune.backends.cpu.families.transpose.tiles import TileWriter
from subtune.backends.cpu.family import CPUProblem
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.elementwise import transposed_access
from subtune.patterns.stages import inline
from subtune.tir.blocks import with_stages

_FEWEST = 4
"""Lanes of vectors that are shorter than the processor's."""


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    if bool(knobs.inner) == bool(knobs.rows) or (knobs.columns and not knobs.rows):
        return NotApplicable("needs either inner, or rows")
    sch = Schedule(problem.workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers or len(stages.outputs) != 1:
        return NotApplicable("not an elementwise workload with one output")
    block = sch.get(stages.outputs[0])
    info = transposed_access(block)
    if isinstance(info, NotApplicable):
        return info
    dtypes = {str(region.source.dtype) for region in (*block.reads, *block.writes)}
    if any(dtype_bits(dtype) not in (16, 32) for dtype in dtypes):
        return NotApplicable(f"turns elements of 16 or 32 bits, not {', '.join(sorted(dtypes))}")
    lanes = problem.device.lanes()
    writer = TileWriter(block, info, lanes, knobs.serial)
    if knobs.rows:
        body = in_blocks(writer, knobs.rows, knobs.columns or 0, problem.device.threads)
    else:
        body = writer.body(str(knobs.inner))
        shorter = min(info.extents[info.a], info.extents[info.b])
        if isinstance(body, NotApplicable) and _FEWEST <= shorter < lanes:
            body = TileWriter(block, info, 1 << (shorter.bit_length() - 1), knobs.serial).body(str(knobs.inner))
    if isinstance(body, NotApplicable):
        return body
    return Kernel(with_stages(sch.mod["main"], [body], []))

"""Steps the templates share: where paddings are computed, how an epilogue's tile becomes vectors."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule


def place_pad(
    sch: Schedule, pad: Any, at: Any | None, lanes: int, is_serial: bool, is_ragged: bool = False
) -> None:  # fmt: skip
    """Compute a padding's rows per tile inside the parallel loop `at`, or once, in parallel, at the root.

    Args:
        is_ragged: vectors are `lanes` wide, and the last one goes past the end of what it copies.
    """
    if at is not None:
        sch.compute_at(pad, at)
    loops = sch.get_loops(pad)
    if at is None and not is_serial and len(loops) > 1:
        sch.parallel(sch.fuse(*loops[:2]) if len(loops) > 2 else loops[0])
    extent = extent_of(sch, loops[-1])
    width = lanes if is_ragged and extent > lanes else vector_width(extent, lanes)
    if width > 1:
        _, vec = sch.split(loops[-1], [None, width])
        sch.vectorize(vec)


def vectorize_tile(sch: Schedule, output: Any, depth: int, lanes: int) -> None:
    """Vectorise the innermost loop of the epilogue's tile (the loops from `depth` on), unroll the others."""
    loops = sch.get_loops(output)[depth:]
    if not loops:
        return
    *rows, last = loops
    for row in rows:
        sch.unroll(row)
    if extent_of(sch, last) % lanes == 0:
        nv, vec = sch.split(last, [None, lanes])
        sch.unroll(nv)
        sch.vectorize(vec)
    elif extent_of(sch, last) <= 2 * lanes:
        sch.vectorize(last)


def vector_width(extent: int, lanes: int) -> int:
    """The widest power-of-two vector, up to `lanes` elements, that divides `extent`."""
    width = lanes
    while width > 1 and extent % width:
        width //= 2
    return width


def extent_of(sch: Schedule, loop: Any) -> int:
    return int(sch.get(loop).extent)


def names_equal(sch: Schedule, a: Any, b: Any) -> bool:
    return bool(sch.get(a).name_hint == sch.get(b).name_hint)


def place_in_registers(sch: Schedule, stage: Any, loop: Any) -> None:
    """A stage computed where it is used: its three inner loops two unrolled ones round a vector."""
    sch.set_scope(stage, 0, "local")
    sch.compute_at(stage, loop)
    *unrolled, last = sch.get_loops(stage)[-3:]
    sch.vectorize(last)
    for inner in unrolled:
        sch.unroll(inner)

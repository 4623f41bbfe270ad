"""Candidates for contractions of bfloat16, of float32 in parts, or of bytes, on AMX.

Blocks of C come from the tile registers, outer tiles from the caches.

Cycles of one thread. A tile product starts every sixteen cycles, and sooner where tiles have fewer rows; its operands
are loaded meanwhile, a row a load. What is copied, and the epilogue, are vectors that come on top.
Sources: Intel, Optimization Reference Manual, 248966, chapter 20; measured on Emerald Rapids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, prod

from subtune.backends.base import OUTER
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import bytes_per_cycle
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.amx.tiles import COPIED_CYCLES, Run
from subtune.backends.cpu.families.contraction.candidates import of_groups
from subtune.backends.cpu.family import MODE, REGISTERS, CPUProblem
from subtune.backends.cpu.math.amx_tiles import COLUMNS, DEPTH, PARTS, PRODUCTS_OF_PARTS, ROWS, STEP_BYTES, fits
from subtune.backends.many_shapes import TileShape
from subtune.core.candidate import Candidate
from subtune.core.numerics import BYTES
from subtune.core.workload import Workload
from subtune.patterns.axes import Role
from subtune.patterns.contraction import Contraction

_PRODUCT_CYCLES = 6.4  # of a tile product, and of each of its rows: 16 rows take 16, 4 take 9
_ROW_CYCLES = 0.6
_HIDDEN = 0.1
_LOADS_PER_CYCLE = 2.0  # rows of tiles
START_CYCLES = 80.0  # of a block: registers to zero, the last product's latency, rows stored and read again
_SLOWER_CLOCK = 1.4  # times the products of float32 in parts: nothing but tiles is multiplied
_EPILOGUE_CYCLES = 3.0  # per vector and operand
NAMES = {"bfloat16": "amx", "float32": "amx_parts", "int8": "amx_int8"}
"""By the type of the right operand."""
_BLOCKS = ((2, 2), (1, 3), (3, 1), (4, 1), (1, 2), (2, 1), (1, 1))
_USUAL = (2, 4, 6, 8, 12, 16)
"""Blocks of rows that share a panel, beside the divisors of how many there are."""
_FEWEST_ROWS = 4  # for fewer, B is read from memory or from L2 as fast by `vdpbf16ps`


@dataclass(frozen=True, slots=True)
class _Costs:
    """Cycles: `copied` of a vector of A, `gathered` of an element that is copied by itself, `start` of a block.

    `packed`: of 64 bytes of B, two rows of it woven into one; `turned`: where they lie the other way.
    `waited`: times what bytes from L3 take at its bandwidth, where products wait for them.
    """

    copied: float
    gathered: float
    packed: float
    turned: float
    start: float
    waited: float


_OF_HALVES = _Costs(COPIED_CYCLES, 2.0, 6.0, 32.0, START_CYCLES, 1.0)
_IN_PARTS = _Costs(20.0, 4.0, 20.0, 72.0, 1000.0, 3.0)
"""A vector becomes three, nothing is multiplied while sums are stored, and few loads are under way: fitted to twelve
products on a Xeon that hides its model, with 480 MB of L3 (2026-11-28)."""


_LINES_AHEAD = 8
"""Of B that a step asks for: of more some wait for others. Of 20 to 128 rows of 768 columns, in halves and in parts,
with 5 to 9 lines the fastest or within 2 %, and with 16 to 144 up to 1.4 times as long (2026-11-29)."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """A block of `mr` x `nr` tiles, each of `rows` rows; `mt` of them share a panel of B.

    `passes`: over so many blocks of rows the next columns of B are asked for; 0: over all that there are, or, of few
    blocks, as many of them as are asked for without waiting.
    """

    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    rows: int = field(metadata=REGISTERS)
    mt: int = field(metadata=OUTER)
    order: str = field(metadata=OUTER)
    serial: bool = field(default=False, metadata=MODE)
    passes: int = field(default=0, metadata=MODE)

    def least_passes(self, parts: int) -> int:
        """Over fewer the columns of B, which are so many `parts`, are asked for faster than they come."""
        return ceil(parts * self.nr * ROWS / _LINES_AHEAD)

    @property
    def tile_shape(self) -> TileShape:
        return TileShape(self.mr * self.rows)


def accepts(problem: CPUProblem) -> str:
    return _refuses(problem, "bfloat16")


def accepts_in_parts(problem: CPUProblem) -> str:
    return "rounds otherwise than the model says" if problem.numerics.exact else _refuses(problem, "float32")


def accepts_bytes(problem: CPUProblem) -> str:
    anchor = problem.pattern
    if isinstance(anchor, Contraction) and anchor.a.dtype not in BYTES:
        return f"needs operands of bytes, not {anchor.a.dtype}"
    return _refuses(problem, "int8", "int32")


def _refuses(problem: CPUProblem, operands: str, sums: str = "float32") -> str:
    anchor, device = problem.pattern, problem.device
    if not isinstance(anchor, Contraction):
        return "no contraction"
    if not (device.has_byte_tiles if sums == "int32" else device.has_tiles):
        what = "bytes" if sums == "int32" else "bfloat16"
        return f"the processor, or its operating system, has no AMX for {what}"
    if (anchor.b.dtype, anchor.acc_dtype) != (operands, sums):
        return f"needs {operands} operands and {sums} accumulators"
    if -1 in anchor.b.axes or len(set(anchor.b.axes)) != len(anchor.b.axes):
        return "B is not indexed by axes of its own"
    if prod(axis.extent for axis in anchor.of_role(Role.M)) < _FEWEST_ROWS:
        return "too few rows for tiles"
    if anchor.per_group and not anchor.b.is_constant:
        return "groups of weights that are no constant"
    return ""


def parts_of(anchor: Contraction) -> int:
    """Numbers of bfloat16 for an element of an operand."""
    return PARTS if anchor.b.dtype == "float32" else 1


def depth_of(anchor: Contraction) -> int:
    """Elements along k of a step."""
    return 2 * DEPTH if anchor.b.dtype in BYTES else DEPTH


def obstacle(knobs: Knobs, parts: int = 1) -> str:
    """Why knobs are illegal; "" where they are legal."""
    if not fits(knobs.mr, knobs.nr, parts) or not 1 <= knobs.rows <= ROWS:
        return f"{knobs.mr} x {knobs.nr} tiles of {knobs.rows} rows do not fit the registers"
    return ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    anchor, device = problem.pattern, problem.device
    if anchor.per_group:
        anchor = of_groups(anchor)
    rows = prod(axis.extent for axis in anchor.of_role(Role.M))
    found = {}
    for knobs in _knobs(anchor, rows, device):
        found[knobs] = Candidate.of(
            NAMES[anchor.b.dtype], knobs, _predict(anchor, problem.workload, device, rows, knobs)
        )
    return list(found.values())


def _knobs(anchor: Contraction, rows: int, device: CPUModel) -> Iterator[Knobs]:
    packs_batches = not anchor.b.is_constant and bool(anchor.of_role(Role.BATCH))
    columns = ceil(anchor.n.extent / COLUMNS)
    axes = [axis.extent for axis in anchor.of_role(Role.M)]
    are_images = sum(extent > 1 for extent in axes) > 1 and not anchor.per_group
    may_pad = len(axes) == 1 or are_images  # whose pixels become rows of one axis
    for mr, nr in _BLOCKS:
        if not fits(mr, nr, parts_of(anchor)) or (mr > 1 and (mr - 1) * ROWS >= rows) or nr > columns:
            continue
        for height in _heights(rows, mr):
            tiles = ceil(rows / (mr * height))
            for mt in _shared(tiles, may_pad):
                for order in _orders(mt, tiles, packs_batches):
                    yield Knobs(mr, nr, height, mt, order)


def _shared(tiles: int, may_pad: bool) -> list[int]:
    """How many of `tiles` blocks of rows may share a panel: divisors, and others where the last may be fewer."""
    return [d for d in range(1, tiles + 1) if tiles % d == 0 or (may_pad and d in _USUAL)]


def _heights(rows: int, mr: int) -> list[int]:
    """Rows of a tile: all of them, and as few as the same number of blocks needs, or one block more."""
    blocks = ceil(rows / (mr * ROWS))
    return sorted({ROWS, *(ceil(rows / (count * mr)) for count in (blocks, blocks + 1))} - {0})


def _orders(mt: int, tiles: int, packs_batches: bool) -> tuple[str, ...]:
    if packs_batches:
        return ("m",) if mt == tiles else ()
    if mt == 1:
        return ("m", "n", "nm")
    return ("m",) if mt == tiles else ("m", "mn", "nm")


def row_bytes(anchor: Contraction) -> int:
    """Of a row of A in tiles, with all its parts."""
    return parts_of(anchor) * Run.of(anchor.of_role(Role.K), COLUMNS, depth_of(anchor)).steps * STEP_BYTES


def block_cycles(mr: int, nr: int, rows: int, parts: int = 1) -> float:
    """Of one step of a block; what is loaded meanwhile costs a little, too."""
    products = mr * nr * (_PRODUCT_CYCLES + _ROW_CYCLES * rows)
    loads = (mr * rows + nr * DEPTH / 2) / _LOADS_PER_CYCLE
    if parts > 1:
        products *= len(PRODUCTS_OF_PARTS) * _SLOWER_CLOCK
        loads *= parts
    return max(products, loads) + _HIDDEN * loads


def _with_a_shorter_one(blocks: int, each: int, threads: int) -> float:
    """As `imbalance`, of pieces of so many blocks `each`, where what is left is one more."""
    rounds, others = divmod(blocks // each, threads)
    return (rounds * each + (each if others else blocks % each)) * threads / blocks


def _predict(anchor: Contraction, workload: Workload, device: CPUModel, rows: int, knobs: Knobs) -> float:
    """Seconds of one run on all threads."""
    height, width = knobs.mr * knobs.rows, knobs.nr * COLUMNS
    batch = prod(axis.extent for axis in anchor.of_role(Role.BATCH))
    m_blocks, n_blocks = ceil(rows / height), ceil(anchor.n.extent / width)
    outer = ceil(m_blocks / knobs.mt)
    depth = depth_of(anchor)
    run = Run.of(anchor.of_role(Role.K), n_blocks * width, depth)
    steps = run.steps
    parts = parts_of(anchor)
    costs = _OF_HALVES if parts == 1 else _IN_PARTS
    row_bytes = parts * STEP_BYTES  # of a step
    a_bytes, b_bytes = m_blocks * height * steps * row_bytes, n_blocks * width * steps * row_bytes
    shares_rows = knobs.order == "m"
    # B's panel stays for the rows that share it, A's rows for all panels
    panel = width * steps * row_bytes
    streamed = (outer if knobs.order != "n" else 1) * b_bytes
    a_held = knobs.mt * height * steps * row_bytes if shares_rows else a_bytes
    step = block_cycles(knobs.mr, knobs.nr, knobs.rows, parts)
    fetched = knobs.mr * knobs.rows * row_bytes / bytes_per_cycle(a_held + panel, device)
    operands = sum(1 for arg in workload.args if not arg.is_constant)
    epilogue = height * knobs.nr * (1 + _EPILOGUE_CYCLES * operands)
    if a_held + panel > device.l2_bytes:
        fetched *= costs.waited
    total = m_blocks * n_blocks * (steps * max(step, fetched) + costs.start + epilogue)
    exposed = 0.3 if b_bytes <= device.l2_bytes else costs.waited
    total += streamed / bytes_per_cycle(b_bytes, device) * exposed
    is_along_k = anchor.a.axes[-1] in (anchor.of_role(Role.K)[-1].index, -1)
    total += m_blocks * height * (run.vectors * costs.copied if is_along_k else steps * depth * costs.gathered)
    if not anchor.b.is_constant:
        total += b_bytes / STEP_BYTES * (costs.packed if anchor.b.axes[-1] == anchor.n.index else costs.turned)
    grains = {"m": outer, "n": n_blocks, "mn": outer * n_blocks, "nm": outer * n_blocks}[knobs.order]
    packs_batches = not anchor.b.is_constant and batch > 1
    uneven = imbalance(batch if packs_batches else batch * grains, device)
    if shares_rows and not packs_batches and m_blocks % knobs.mt:
        uneven = _with_a_shorter_one(m_blocks, knobs.mt, device.threads)
    return batch * total * uneven / device.threads / device.cycles_per_s

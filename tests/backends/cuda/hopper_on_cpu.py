"""Instructions of Hopper's as calls of `hopper_on_cpu.h`, and tensor maps as it reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

TYPES = {
    "f16": "__half", "bf16": "__nv_bfloat16", "s8": "int8_t", "u8": "uint8_t", "e4m3": "__nv_fp8_e4m3",
}  # fmt: skip
_NOTHING = ("setmaxnreg", "fence.", "prefetch.tensormap", "wgmma.fence", "wgmma.commit_group")
_ARGUMENTS = 23


def statement(instruction: str, operands: Sequence[str]) -> str | None:
    """C++ that does the same; None for what older devices have as well."""
    if instruction.startswith(_NOTHING):
        return ";"
    if instruction.startswith("wgmma.wait_group"):  # nobody goes on before all have multiplied
        return "emu::give_way(emu::AT_GROUP);"
    if found := re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.(\w+)\.(\w+)\.(\w+) ", instruction):
        columns, total = int(found[1]), {"f32": "float", "s32": "int"}[found[2]]
        sums, (*a, b, adds) = operands[: columns // 2], operands[columns // 2 :]
        words = f"uint32_t words[] = {{{', '.join(a)}}};" if len(a) == 4 else ""
        flags = re.search(r"%\d+, ps0((?:, [01])*);", instruction)
        assert flags, instruction
        across = flags[1].split(", ")[3:]  # behind the signs: A, where it is in memory, and B
        assert len(a) == 4 or across[:1] != ["1"], "rows along k only"
        pointers = ", ".join(f"({total}*)&({one})" for one in sums)
        types = f"{TYPES[found[3]]}, {TYPES[found[4]]}, {str(across[-1:] == ['1']).lower()}"
        rows = "words" if words else a[0]
        return f"{{ {total}* d[] = {{{pointers}}}; {words} emu::wgmma<{types}>({columns}, d, {rows}, {b}, {adds}); }}"
    if instruction.startswith("cp.async.bulk.tensor"):
        assert "multicast" not in instruction, "no clusters"
        to, map_, *at, barrier = operands
        return f"emu::bulk_copy({to}, {map_}, {{{', '.join(at)}}}, {barrier});"
    if "mbarrier.try_wait.parity" in instruction:
        barrier, phase, _ = operands
        return f"emu::barrier_wait({barrier}, {phase});"
    if instruction.startswith("mbarrier.init"):
        return f"emu::barrier_init({', '.join(operands)});"
    if instruction.startswith("mbarrier.arrive.expect_tx"):
        barrier, nbytes = operands
        return f"emu::barrier_arrive({barrier}, 1, {nbytes});"
    if instruction.startswith("mbarrier.arrive.shared.b64"):
        barrier, count = operands
        return f"emu::barrier_arrive({barrier}, {count}, 0);"
    if found := re.match(r"bar\.(sync|arrive) %0, %1;", instruction):
        return f"emu::named_{'wait' if found[1] == 'sync' else 'arrive'}({', '.join(operands)});"
    return None


def tensor_map(base: np.ndarray, arguments: Sequence[int]) -> np.ndarray:
    """A `CUtensorMap` of an array: the arguments of `cuTensorMapEncodeTiled` behind its address."""
    rank = next(r for r in range(2, 6) if 4 * r + 3 == len(arguments))
    padded = [*arguments, *[0] * (_ARGUMENTS - len(arguments))]
    return np.array([base.ctypes.data, rank, base.itemsize, *padded], "int64")

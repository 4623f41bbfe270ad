"""How far results on a GPU may be from what is right."""

from __future__ import annotations

import re
from collections.abc import Callable

from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from subtune.measure.verdict import TOLERANCE, TOLERANCE_OTHER, TOLERANCE_SUMS_OF_FLOAT8, TOLERANCE_TF32

_ROUNDING = re.compile(r'[Cc]ast\("(b?float16|float8_e4m3fn)"')


def tolerances(workload: Workload, numerics: Numerics) -> Callable[[str], float]:
    """By an output's type, or by the coarsest that the workload rounds to on the way."""
    rounded = frozenset(_ROUNDING.findall(workload.func.script()))
    sums_float8 = any(arg.dtype.startswith("float8") for arg in workload.args if not arg.is_output)

    def tolerance(dtype: str) -> float:
        least = TOLERANCE_TF32 if numerics.tf32 and dtype == "float32" else 0.0
        if sums_float8:
            least = TOLERANCE_SUMS_OF_FLOAT8
        return max(least, *(TOLERANCE.get(one, TOLERANCE_OTHER) for one in (dtype, *rounded)))

    return tolerance

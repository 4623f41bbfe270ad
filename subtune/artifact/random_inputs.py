"""Random arrays for a model's inputs, sane for what the names and dtypes say, the same for the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from subtune.core.tensor_spec import NARROW, TensorSpec
from subtune.runtime import numpy_dtype


def random_inputs(
    specs: Sequence[TensorSpec],
    seed: int = 0,
    limits: Mapping[str, int] | None = None,
    values: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """One array per input: floats uniform in [-1, 1), booleans and masks 0 or 1, integers in [0, limit).

    Integers of less than 8 bits, which index nothing, have all their values.

    Args:
        limits: exclusive upper bound of integer inputs by name (a vocabulary's size); 2 where nothing is known, which
            any table with two rows bears.
        values: of the symbols, where shapes have some.
    """
    rng = np.random.default_rng(seed)
    out = {}
    for spec in specs:
        dtype = numpy_dtype(spec.dtype)
        shape = spec.at(values or {}).sizes
        if spec.dtype in NARROW and "int" in spec.dtype:
            out[spec.name] = rng.integers(0, 1 << int(spec.dtype[-1]), shape, np.uint8).view(dtype)
        elif dtype.kind in "iub":
            high = (limits or {}).get(spec.name, 2)
            low = -high if spec.dtype == "int8" and high > 2 else 0
            out[spec.name] = rng.integers(low, max(high, 1), shape).astype(dtype)
        else:
            out[spec.name] = np.asarray(rng.random(shape, dtype=np.float32) * 2 - 1).astype(dtype)
    return out

"""The arithmetic of a sum of two tensors of bytes that is rounded to bytes again."""

from __future__ import annotations

from typing import Any

import numpy as np


def rest_of_sum(first: tuple[Any, Any], second: tuple[Any, Any], zero: Any) -> np.float32:
    """What is added to multiples of the two tensors: z - (ra * za + rb * zb), in float32.

    In the order in which ONNX Runtime's kernel rounds it (qladd_avx2.cpp), the first product inside of an FMA: float64
    holds the product of a byte and 24 bits.

    Args:
        first, second: the scale in steps of the result's, and the zero point.
        zero: the result's zero point.
    """
    (ra, za), (rb, zb) = first, second
    total = np.float64(ra) * np.float64(za) + np.float64(np.float32(rb) * np.float32(zb))
    return np.float32(zero) - np.float32(total)

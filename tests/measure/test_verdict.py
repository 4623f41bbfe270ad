"""What counts as a wrong output, and which writes outside an array are seen."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from subtune.measure.guarded import Guarded
from subtune.measure.verdict import TOLERANCE, disagreement, is_rounding

REF = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)


def changed(value, where=(3, 7), ref=REF):
    out = ref.copy()
    out[where] = value
    return out


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_rounding_is_allowed_and_ten_times_the_tolerance_is_not(dtype):
    ref = REF.astype(dtype)
    tolerance = TOLERANCE[ref.dtype.name]
    assert disagreement(ref.copy(), ref, False) == ""
    # The tolerances of the narrow types are a few steps of their own rounding.
    close = (ref.astype(np.float64) * (1 + tolerance / 2)).astype(dtype)
    assert disagreement(close, ref, False) == ""
    far = ref.copy()
    far[3, 7] = far[3, 7] + dtype(20 * tolerance)
    assert "[3, 7]" in disagreement(far, ref, False)


def test_what_is_masked_excuses_nothing():
    """GPT-2's scores: -3.4e38 where a token may not look. The root mean square would be that of the mask."""
    ref = REF.copy()
    ref[:, 25:] = np.finfo(np.float32).min
    assert disagreement(ref.copy(), ref, False) == ""
    assert "[3, 7]" in disagreement(changed(9.0, ref=ref), ref, False)
    assert "[3, 30]" in disagreement(changed(0.0, (3, 30), ref), ref, False)
    zeros = np.where(ref < -1e18, ref, np.float32(0))
    assert disagreement(changed(1e-3, ref=zeros), zeros, False) == ""


def test_one_wrong_element_is_named_with_both_values():
    text = disagreement(changed(9.0), REF, False)
    assert text.startswith("1 of 2000 elements are wrong, the first at [3, 7]: 9.0 where the default schedule gives")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_wrong_where_the_reference_is(value):
    assert disagreement(changed(value), REF, False)
    assert disagreement(changed(value), REF, True)


def test_nan_and_infinity_must_match_on_random_inputs():
    ref = changed(np.nan)
    assert disagreement(ref.copy(), ref, False) == ""
    assert disagreement(REF, ref, False)
    ref = changed(np.inf)
    assert disagreement(ref.copy(), ref, False) == ""
    assert disagreement(changed(-np.inf), ref, False)
    assert disagreement(changed(np.nan), ref, False)


def test_overflow_in_another_order_is_allowed_on_adversarial_inputs():
    assert disagreement(changed(np.nan), changed(np.inf), True) == ""
    assert disagreement(changed(1e30), changed(np.nan), True) == ""


def test_nan_may_spread_but_not_vanish():
    assert disagreement(changed(np.nan), REF, False, nan_spreads=True) == ""
    assert disagreement(REF, changed(np.nan), False, nan_spreads=True)
    assert disagreement(changed(1e3), REF, False, nan_spreads=True)


def test_integers_and_booleans_are_compared_bit_for_bit():
    ref = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert disagreement(ref.copy(), ref, False) == ""
    assert "[2, 3]" in disagreement(changed(12, (2, 3), ref), ref, False)
    flags = ref % 2 == 0
    assert disagreement(~flags, flags, True)


def test_scalars_and_empty_outputs():
    assert disagreement(np.float32(1), np.float32(1), False) == ""
    assert disagreement(np.float32(2), np.float32(1), False)
    empty = np.zeros((0, 3), np.float32)
    assert disagreement(empty, empty, False) == ""


@pytest.mark.parametrize(("shape", "dtype"), [((5, 3), "float32"), ((7,), "bfloat16"), ((9,), "bool"), ((), "int64")])
def test_guarded_arrays_are_aligned_typed_and_surrounded(shape, dtype):
    width = {"float32": 4, "bfloat16": 2, "bool": 1, "int64": 8}[dtype]
    guarded = Guarded(int(np.prod(shape, dtype=int)) * width, shape, dtype)
    assert guarded.bytes.ctypes.data % 64 == 0
    assert tuple(guarded.tensor.shape) == shape
    assert str(guarded.tensor.dtype) == dtype
    guarded.fill(0)
    assert guarded.overwritten() == ""


@pytest.mark.parametrize("offset", [0, 1, 63, 1000])
def test_a_single_byte_outside_is_seen(offset):
    guarded = Guarded(100, (100,), "uint8")
    behind = guarded._after
    behind[offset] ^= 0xFF
    assert guarded.overwritten() == f"{offset} bytes behind its end"
    behind[offset] ^= 0xFF
    assert guarded.overwritten() == ""
    guarded._before[-1 - offset] ^= 0xFF
    assert guarded.overwritten() == f"{offset + 1} bytes before its start"


def test_errors_of_a_large_row_are_relative_to_what_it_holds():
    """Causal attention: means of few values, then of thousands."""
    ref = REF * np.where(np.arange(40) < 2, 1.0, 1e-2)[:, None].astype(np.float32)
    ref[0, 3] = ref[9, 3] = 0.0
    close = changed(0.9 * TOLERANCE["float32"], (0, 3), ref)
    assert disagreement(close, ref, False) == ""
    assert "[9, 3]" in disagreement(changed(0.9 * TOLERANCE["float32"], (9, 3), ref), ref, False)
    assert "[0, 3]" in disagreement(changed(2 * TOLERANCE["float32"], (0, 3), ref), ref, False)


def test_a_rounding_to_8_bits_may_go_the_other_way() -> None:
    """One of a thousand, by an eighth of itself."""
    want = np.linspace(1, 448, 2000).astype(np.float32)
    got = want.copy()
    got[-1] *= 1.125
    assert is_rounding(got, want, to_float8=True)
    assert not is_rounding(got, want)
    got[-1] *= 1.05
    assert not is_rounding(got, want, to_float8=True)
    assert not is_rounding(want * np.float32(1.125), want, to_float8=True)


def test_no_rounding_explains_what_lies_beside_an_infinity() -> None:
    """Wherever it stands: it makes every step of what floats span infinite."""
    want = np.linspace(0, 1, 1 << 19).astype(np.float32)
    want[0] = np.inf
    got = want.copy()
    got[-1] = 5.0
    assert not is_rounding(got, want)

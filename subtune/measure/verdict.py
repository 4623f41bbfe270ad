"""Is an output right? Integers and booleans bit for bit, floats within what a different order of sums may change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1.6e-2}
"""Relative to |reference| + the output's scale. A few times what Winograd F(4x4) and long sums lose; of bfloat16 two
steps of up to 7.8e-3: sums in another order may round the other way, and once more inside the kernel."""
TOLERANCE_OTHER = 0.25  # float8
TOLERANCE_TF32 = 5e-3
"""Of float32 where its products may be rounded to tf32: tensor cores drop 13 bits of an operand, 1e-3 of it at most."""
TOLERANCE_SUMS_OF_FLOAT8 = 2e-2
"""Hopper's tensor cores keep about 14 bits of a sum of float8 products: measured 8e-2 over 4096 positive ones. Kernels
add up 128 at a time."""

ROW = 4096
"""Elements of a row at most that say how large its own are."""
_MOVED, _STEP, _FLOAT8_STEP = 1e-3, 1e-2, 0.126
"""Of elements that may be rounded the other way, of what floats span, and of a number with four digits."""
_PART = 1 << 18
"""Elements that are compared at a time."""
MASKED = 1e18
"""Magnitudes that masks put where nothing is to be seen (-3.4e38): errors elsewhere do not count against them."""


def disagreement(
    out: np.ndarray,
    ref: np.ndarray,
    is_adversarial: bool,
    tolerance: float = 0.0,
    scale: float | None = None,
    nan_spreads: bool = False,
) -> str:
    """What is wrong with `out`, in words; empty when it agrees with `ref`.

    |out - ref| <= tolerance * (|ref| + scale), the tolerance that of the dtype unless one is given, the scale
    `scale_of(ref, is_adversarial)`, or the root mean square of the element's row (last axis) if that is larger: the
    first rows of causal attention are means of few values, and a hundred times as large as the last ones. Where the
    reference is NaN the output must be NaN, and where it is infinite equally infinite; on adversarial inputs, whose
    sums may overflow in one order and not in another, it may there be anything. With `nan_spreads` it may be NaN
    everywhere.
    """
    if ref.dtype.kind in "iub":
        return _first(np.atleast_1d(out != ref), out, ref)
    tolerance = tolerance or TOLERANCE.get(ref.dtype.name, TOLERANCE_OTHER)
    scale = scale_of(ref, is_adversarial) if scale is None else scale
    wide = _wide(ref)
    if out is ref or _is_near(out, ref, wide(tolerance * scale)):  # most often it is
        return ""
    with np.errstate(all="ignore"):
        got, want = np.atleast_1d(out.astype(wide, copy=False)), np.atleast_1d(ref.astype(wide, copy=False))
        error = np.abs(got - want)
        wrong = ~(error <= tolerance * (np.abs(want) + wide(scale)))
        finite = np.isfinite(want)
        if not is_adversarial and (wrong & finite).any():
            wrong &= ~(error <= tolerance * (np.abs(want) + np.maximum(_of_rows(want, wrong), wide(scale))))
        if is_adversarial:
            wrong &= finite
        else:
            same_nan = np.isnan(got) & np.isnan(want)
            wrong = np.where(finite, wrong, ~(same_nan | (got == want)))
        if nan_spreads:
            wrong &= ~np.isnan(got)
    return _first(wrong, got, want)


def tolerated(ref: np.ndarray, scale: float) -> float:
    """How far from `ref`, of floats, every element of an output may be, whatever it is: see `disagreement`."""
    return TOLERANCE.get(ref.dtype.name, TOLERANCE_OTHER) * scale


def is_rounding(out: np.ndarray, ref: np.ndarray, to_float8: bool = False) -> bool:
    """Whether a last bit on the way to a rounding explains it: few elements differ, by one step each.

    A step of integers is 1; one of floats that were integers in between is at most a hundredth of what they span; of
    those that were floats of 8 bits (`to_float8`) an eighth of themselves.
    """
    got, want = (np.atleast_1d(array).reshape(-1) for array in (out, ref))
    span = 0.0 if want.dtype.kind in "iu" or not want.size else float(want.max()) - float(want.min())
    if not np.isfinite(span):
        return False
    moved = 0
    for begin in range(0, want.size, _PART):  # of a hundred million, all at once take seconds
        part = slice(begin, begin + _PART)
        if np.array_equal(got[part], want[part]):
            continue
        with np.errstate(all="ignore"):
            right = want[part].astype(np.float64)
            apart = np.abs(got[part].astype(np.float64) - right)
        step = 1.0 if want.dtype.kind in "iu" else span * _STEP
        steps = np.maximum(step, _FLOAT8_STEP * np.abs(right)) if to_float8 else step
        moved += int(np.count_nonzero(apart))
        if not (apart <= steps).all():
            return False
    return moved <= max(1.0, _MOVED * want.size)


def scale_of(ref: np.ndarray, is_adversarial: bool) -> float:
    """What errors of `ref`'s elements are relative to, beside the element itself.

    The root mean square of the finite ones (without what is masked, if there is more); on adversarial inputs, whose
    magnitudes differ by many decades so that sums cancel, the largest.
    """
    if ref.dtype.kind in "iub":
        return 0.0
    magnitudes = [_Magnitudes.of(part, MASKED) for part in _parts(ref)]
    if is_adversarial:
        return max((part.largest for part in magnitudes), default=0.0)
    seen = _Magnitudes.together(magnitudes)
    if seen.squares == 0.0:  # all that is not zero is masked
        seen = _Magnitudes.together([_Magnitudes.of(part, math.inf) for part in _parts(ref)])
    return seen.unit * math.sqrt(seen.squares / seen.count) if seen.count else 0.0


@dataclass(frozen=True, slots=True)
class _Magnitudes:
    """Of `count` elements: the sum of their `squares`, each divided by `unit` before; and the `largest` finite one."""

    count: int
    squares: float
    unit: float
    largest: float

    @classmethod
    def of(cls, part: np.ndarray, limit: float) -> _Magnitudes:
        """Of those that are finite and not above `limit`."""
        with np.errstate(all="ignore"):
            magnitude = np.abs(part.astype(_wide(part), copy=False))
            finite = np.isfinite(magnitude)
            largest = float(magnitude.max(where=finite, initial=0.0))
            counted = finite & (magnitude <= limit)
            seen = magnitude if counted.all() else magnitude[counted]
            unit = float(seen.max(initial=0.0)) or 1.0
            return cls(seen.size, float(np.square(seen / unit).sum(dtype=np.float64)), unit, largest)

    @classmethod
    def together(cls, parts: Sequence[_Magnitudes]) -> _Magnitudes:
        unit = max((part.unit for part in parts if part.squares), default=1.0)
        squares = sum(part.squares * (part.unit / unit) ** 2 for part in parts if part.squares)
        return cls(sum(part.count for part in parts), squares, unit, max((part.largest for part in parts), default=0.0))


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """The elements, as many at a time as stay in a cache: arrays of gigabytes cost page faults at every step."""
    flat = array.reshape(-1)
    return (flat[begin : begin + _PART] for begin in range(0, flat.size, _PART))


def _is_near(out: np.ndarray, ref: np.ndarray, limit: np.floating) -> bool:
    """Whether no element is further away than `limit`; a NaN is."""
    wide = _wide(ref)
    with np.errstate(all="ignore"):
        return all(
            np.abs(got.astype(wide, copy=False) - want.astype(wide, copy=False)).max() <= limit
            for got, want in zip(_parts(out), _parts(ref), strict=True)
        )


def _of_rows(want: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """The root mean square of each row (what is masked apart) that holds something `wrong`, and else 0: [..., 1]."""
    hit = wrong.any(axis=-1)
    rows = want[hit][:, :ROW]
    counted = np.isfinite(rows) & (np.abs(rows) <= MASKED)
    squares = np.square(np.where(counted, rows, 0), dtype=np.float64).sum(axis=-1)
    found = np.zeros(hit.shape, want.dtype)
    found[hit] = np.sqrt(squares / np.maximum(counted.sum(axis=-1), 1))
    return found[..., None]


def _wide(ref: np.ndarray) -> type[np.floating]:
    return np.float64 if ref.dtype == np.float64 else np.float32


def _first(wrong: np.ndarray, out: np.ndarray, ref: np.ndarray) -> str:
    count = int(np.count_nonzero(wrong))
    if count == 0:
        return ""
    where = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    values = f"{np.atleast_1d(out)[where]} where the default schedule gives {np.atleast_1d(ref)[where]}"
    return f"{count} of {wrong.size} elements are wrong, the first at {list(where)}: {values}"

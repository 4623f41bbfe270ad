"""Does the compiled model compute what the model says? Compared on random inputs with an independent reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from subtune.artifact.random_inputs import random_inputs
from subtune.core.errors import VerificationError
from subtune.core.reference import Run

if TYPE_CHECKING:
    from subtune.artifact import Artifact

_TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}

_HALF_LIMITS = {"bf16": (5e-2, 0.99), "fp16": (1e-2, 0.9999)}
"""By precision: the largest error, of the largest value, and the least cosine. In bf16 mode outputs lose what hundreds
of roundings to eight bits lose: few percent of the largest value at worst, and next to nothing of the direction. A
wrong kernel loses both. float16 has three bits more."""

_BORNE = (0.1, 0.99)
"""Up to where a model's own sensitivity excuses an error of a half precision. A deep network of convolutions and norms
loses more than the limits above with the best of kernels (the zoo's U-Net 1.3e-2 in float16, 8e-2 in bfloat16): it is
then compared with what default schedules lose in the same precision. Beyond a tenth of the largest value the precision
is not for the model."""
_FLUSHED = dict.fromkeys(("float32", "bfloat16"), float(np.finfo(np.float32).tiny))
"""By type. Smaller differences are none: what is no normal number one library takes for zero, and the other computes
with."""
_ORDER = 2.0
"""Times that: two correct orders of summation round differently, and their largest errors are draws of one kind."""


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far one output is from the reference.

    `max_rel` is the largest |a - b| / (|b| + scale), scale being the root mean square of b: an element near zero
    among large ones counts by what it means to the whole. In bf16 mode it is the largest |a - b| / max |b|, and the
    cosine of the angle between a and b counts as well.
    """

    name: str
    dtype: str
    max_abs: float
    max_rel: float
    tolerance: float
    cosine: float = 1.0
    min_cosine: float = 0.0
    own_rel: float = 0.0
    """What the precision loses by itself, with default schedules; 0.0 where nobody had to ask."""

    @property
    def is_within(self) -> bool:
        return self.max_rel <= self.tolerance and self.cosine >= self.min_cosine

    def __str__(self) -> str:
        text = f"{self.name}: max abs error {self.max_abs:.3g}, max rel error {self.max_rel:.3g}"
        return f"{text}, cosine similarity {self.cosine:.4f}" if self.min_cosine else text


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`reference` says what the outputs were compared with."""

    reference: str
    outputs: tuple[OutputError, ...]

    @property
    def wrong(self) -> tuple[OutputError, ...]:
        return tuple(output for output in self.outputs if not output.is_within)

    @property
    def max_rel(self) -> float:
        return max((o.max_rel for o in self.outputs), default=0.0)

    @property
    def min_cosine(self) -> float:
        """The least cosine similarity of an output; measured in bf16 mode only."""
        return min((o.cosine for o in self.outputs), default=1.0)

    @property
    def own_rel(self) -> float:
        """The largest error of the precision itself, where an output was compared with that; else 0.0."""
        return max((o.own_rel for o in self.outputs), default=0.0)


class Disagrees(VerificationError):
    """An output of the compiled model is further from the reference's than its type's tolerance."""

    def __init__(self, report: VerifyReport) -> None:
        detail = "; ".join(f"{error} (tolerance {error.tolerance:g})" for error in report.wrong)
        super().__init__(f"the compiled model disagrees with {report.reference}: {detail}")
        self.report = report


def output_error(name: str, got: np.ndarray, expected: np.ndarray, precision: str = "fp32") -> OutputError:
    """The error of `got`; infinite if shapes differ or one has a NaN or an infinity where the other has none.

    Args:
        precision: "bf16" and "fp16" judge floating-point outputs as what these modes compute.
    """
    dtype = str(expected.dtype)
    tolerance = _TOLERANCES.get(dtype, 0.0)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return OutputError(name, dtype, np.inf, np.inf, tolerance)
    if expected.size == 0:
        return OutputError(name, dtype, 0.0, 0.0, tolerance)
    if tolerance == 0.0:  # integers, booleans, floats of 8 bits: the same numbers
        a, b = got.astype(np.float64), expected.astype(np.float64)
        wrong = (a != b) & ~(np.isnan(a) & np.isnan(b))
        worst = float(np.nan_to_num(np.abs(a[wrong] - b[wrong]), nan=np.inf).max(initial=0.0))
        return OutputError(name, dtype, worst, worst and max(worst, 1.0), tolerance)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return OutputError(name, dtype, np.inf, np.inf, tolerance)
    if not finite.any():
        return OutputError(name, dtype, 0.0, 0.0, tolerance)
    a, b = a[finite], b[finite]
    if precision in _HALF_LIMITS:
        return _half_error(name, dtype, a, b, *_HALF_LIMITS[precision])
    scale = float(np.sqrt(np.mean(b * b))) or 1.0
    difference = np.abs(a - b)
    difference[difference < _FLUSHED.get(dtype, 0.0)] = 0.0
    return OutputError(name, dtype, float(difference.max()), float((difference / (np.abs(b) + scale)).max()), tolerance)


def _half_error(
    name: str, dtype: str, a: np.ndarray, b: np.ndarray, tolerance: float, least_cosine: float
) -> OutputError:
    worst, largest = float(np.abs(a - b).max()), float(np.abs(b).max())
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(np.dot(a, b)) / lengths if lengths else float(worst == 0.0)
    return OutputError(name, dtype, worst, worst / (largest or 1.0), tolerance, cosine, least_cosine)


def _excused(error: OutputError, own: OutputError) -> OutputError:
    """`error` with limits that follow from what default schedules lose; the cosine falls with the error's square."""
    if not error.min_cosine or not own.min_cosine:  # an integer, or no number at all
        return error
    most, least = _BORNE
    tolerance = max(error.tolerance, min(most, _ORDER * own.max_rel))
    cosine = min(error.min_cosine, max(least, 1 - _ORDER**2 * (1 - own.cosine)))
    return replace(error, tolerance=tolerance, min_cosine=cosine, own_rel=own.max_rel)


def verify(
    artifact: Artifact,
    reference: Run,
    reference_name: str,
    *,
    limits: Mapping[str, int] | None = None,
    seeds: tuple[int, ...] = (0,),
    precision: str = "fp32",
    own: Run | None = None,
) -> VerifyReport:
    """Run both on the same random inputs, once per seed, and report the largest error of each output.

    Args:
        reference: it may raise CannotRun, which the caller answers with another one.
        own: the model in the same half precision with default schedules; called where an output is above its limit.

    Raises Disagrees naming every output above its tolerance (1e-4 float32, 2e-2 float16, integers exact;
    in bf16 mode 5e-2 of the largest value and a cosine similarity of 0.99, in fp16 mode 1e-2 and 0.9999, in both up to
    twice what `own` loses, but never above 0.1).
    """
    worst: dict[str, OutputError] = {}
    for seed in seeds:
        inputs = random_inputs(artifact.inputs, seed, limits, artifact.manifest.domain.greatest)
        got, expected = artifact.run(inputs), reference(inputs)
        plain: Mapping[str, np.ndarray] | None = None
        for spec in artifact.outputs:
            if spec.name not in expected:
                raise VerificationError(f"{reference_name} has no output {spec.name}: it is not the same model")
            error = output_error(spec.name, got[spec.name], expected[spec.name], precision)
            if own and not error.is_within:
                plain = plain or own(inputs)
                error = _excused(error, output_error(spec.name, plain[spec.name], expected[spec.name], precision))
            known = worst.get(spec.name)
            if known is None or (error.is_within, -error.max_rel) < (known.is_within, -known.max_rel):
                worst[spec.name] = error
    report = VerifyReport(reference_name, tuple(worst.values()))
    if report.wrong:
        raise Disagrees(report)
    return report

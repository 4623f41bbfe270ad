"""How far a model's own rounding moves its results, and what error that excuses.

Any right implementation of a model computes the exact results of a model whose weights and inputs are slightly others:
by a few units in the last place, as few as the implementation rounds (backward error analysis: Higham, Accuracy and
Stability of Numerical Algorithms, chapters 1 and 3). So the reference itself, all its weights and inputs moved by one
unit in the last place, shows what rounding does to this model. It knows nothing of how we import and compile.

What runs a quantised model may rewrite it first, and round less often or otherwise than the model says. How far its
results are then from those without, operator by operator, is rounding as well, and what agrees with either is right.

An error is excused up to `TIMES` that, its maximum and its root mean square, on each of several inputs. A chaotic model
moves as far as it pleases: what is not twice as near to the reference as the reference is to its own results on other
inputs is refused, whatever the model excuses. A fault whose effect is smaller than that of rounding passes: no
comparison of results can see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from subtune.artifact.random_inputs import random_inputs
from subtune.core.reference import CannotRun, Reference, Run, by_an_ulp
from subtune.verification.verify import output_error

if TYPE_CHECKING:
    from subtune.artifact import Artifact

TIMES = 4.0
"""Of one unit in the last place. Chaotic residual nets of dense layers and of convolutions, tuned and not, were at most
1.5 times away; sums of more products, and Winograd's and Strassen's kernels, round more often."""
_SEEDS = (0, 1, 2)
_VARIATIONS = 4
"""Two random directions, and their opposites."""
_APART = 0.5
_FLOATS = ("float16", "float32", "float64")

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Of one output, on the inputs where our error is the largest beside the model's own.

    Distances from the reference's result, of its root mean square: `error` is ours, `own` the reference's own when one
    unit in the last place moves, `apart` the least to its results on other inputs.
    """

    name: str
    error: float
    own: float
    apart: float
    unit: float
    is_excused: bool

    @property
    def amplification(self) -> float:
        """Relative change of the result by the relative change of inputs and weights."""
        return self.own / self.unit

    def __str__(self) -> str:
        text = (
            f"{self.name}: the model amplifies rounding by {self.amplification:.1e} (one unit in the last place of "
            f"inputs and weights, or to run it as it is written, moves the reference by {self.own:.1e}, ours is "
            f"{self.error:.1e} away, both rms)"
        )
        if self.is_excused:
            return text
        if self.own > _APART * self.apart:
            return f"{text}, other inputs no more than {self.apart:.1e}: nothing can be compared (--no-verify)"
        limit = min(TIMES * self.own, _APART * self.apart)
        return f"{text}, more than {limit:.1e} or too far in one element"


def sensitivities(
    artifact: Artifact, reference: Reference, threads: int, limits: Mapping[str, int], names: Sequence[str]
) -> list[Sensitivity]:
    """For each of the outputs `names`, whether the model's own sensitivity excuses how far the artifact is away.

    Args:
        limits: exclusive upper bounds of integer inputs.

    Raises CannotRun where the reference fails.
    """
    inputs = [random_inputs(artifact.inputs, seed, limits, artifact.manifest.domain.greatest) for seed in _SEEDS]
    expected = _results(reference.start(threads), inputs)
    got = [artifact.run(arrays) for arrays in inputs]
    plain = reference.as_written(threads)
    written = [] if plain is None else _results(plain, inputs)
    moved = [written] if written else []
    for variation in range(_VARIATIONS):  # one after the other: each has weights of its own
        nearby = [{name: by_an_ulp(array, variation) for name, array in arrays.items()} for arrays in inputs]
        moved.append(_results(reference.moved(threads, variation), nearby))
    return [
        _of_output(
            name,
            [a[name] for a in got],
            [b[name] for b in expected],
            [[c[name] for c in v] for v in moved],
            [d[name] for d in written],
        )
        for name in names
    ]


def _results(run: Run | None, inputs: Sequence[dict[str, np.ndarray]]) -> list[Arrays]:
    if run is None:
        raise CannotRun("it refuses the model")
    return [run(arrays) for arrays in inputs]


def _of_output(
    name: str,
    got: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    moved: Sequence[Sequence[np.ndarray]],
    written: Sequence[np.ndarray] = (),
) -> Sensitivity:
    """Judged on each of the inputs by itself: the model may be stable on some of them.

    Args:
        written: the reference's results where it runs the model as it is written, or none.
    """
    dtype = expected[0].dtype
    unit = float(np.finfo(dtype if dtype.name in _FLOATS else np.float32).eps)
    judged = []
    for index, (ours, right) in enumerate(zip(got, expected, strict=True)):
        worst, error = _distance(ours, right)
        distances = [_distance(variation[index], right) for variation in moved]
        own_worst, own = (max(filter(np.isfinite, column), default=0.0) for column in zip(*distances, strict=True))
        apart = min(_distance(other, right)[1] for at, other in enumerate(expected) if at != index)
        is_excused = worst <= TIMES * own_worst and error <= min(TIMES * own, _APART * apart)
        rights = (right, written[index]) if written else (right,)
        is_excused = is_excused or any(output_error(name, ours, one).is_within for one in rights)
        judged.append(Sensitivity(name, error, own, apart, unit, is_excused))
    return max(judged, key=lambda found: (not found.is_excused, found.error / (found.own or unit)))


def _distance(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The largest and the root of the mean square of a - b, of b's root mean square; infinite where they differ in more
    than finite numbers."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf, np.inf
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(x[finite]).all():
        return np.inf, np.inf
    if not finite.any():
        return 0.0, 0.0
    difference, scale = np.abs(x - y)[finite], float(np.sqrt(np.mean(y[finite] ** 2))) or 1.0
    return float(difference.max()) / scale, float(np.sqrt(np.mean(difference**2))) / scale

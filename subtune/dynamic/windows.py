"""Constants that are a window of a longer one: at other shapes the model reads it from another place on.

    positions[i] = table[past + i]          angles[i] = cos((past + i) * frequency)

No formula is known of their values, but an instance has all of them: the one that begins where all others do, and is
as long as the farthest goes. Its constant is kept, and each run copies its window.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te

from subtune.core.dims import Dim
from subtune.core.domain import Domain
from subtune.core.errors import ModelError
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.dynamic.fit import NO_STEPS
from subtune.dynamic.varying import Made
from subtune.dynamic.workload import dynamic_workload

Point = Mapping[str, int]
Start = Callable[[Point, int, int], int]
"""Where a window begins at an instance, of its extent there and of the table's."""

_BEYOND = 2
"""A table is so much longer than the longest window at both ends, so that none begins with the table's first row."""


class Windows:
    """Looks for windows among the constants of longer instances, each of which is imported once.

    Args:
        constants: the model's at an instance.
        points: where its constants are known.
        sums, steps: as of `Fitter`.
    """

    def __init__(
        self,
        constants: Callable[[Point], Sequence[np.ndarray]],
        points: Sequence[Point],
        domain: Domain,
        sums: Sequence[Dim] = (),
        steps: Mapping[str, int] = NO_STEPS,
    ) -> None:
        self._constants, self._points, self._domain = constants, points, domain
        self._sums, self._steps = sums, steps
        self._known: dict[tuple[int, ...], Sequence[np.ndarray]] = {}

    def of(self, arrays: Sequence[np.ndarray]) -> Made | None:
        """The window that a constant is; None where none is found.

        Args:
            arrays: its values at the points.
        """
        for longer, start in self._guesses():
            for axis in range(arrays[0].ndim):
                if all(array.shape[axis] == arrays[0].shape[axis] for array in arrays):
                    continue
                for table in self._longer(longer):
                    found = self._window(arrays, table, axis, start)
                    if found is not None:
                        return found
        return None

    def _guesses(self) -> Iterator[tuple[Point, Start]]:
        """Instances that may have all, and where in them windows begin."""
        first = {one.name: one.values[0] for one in self._domain.symbols}
        last = {name: max(most, *(p[name] for p in self._points)) for name, most in self._domain.greatest.items()}
        for skipped, kept in itertools.permutations(last, 2):
            least = first[skipped] - (first[skipped] > 0) * self._step(skipped)
            farthest = last[skipped] - least + last[kept]
            yield (
                {**self._domain.greatest, skipped: least, kept: farthest + -farthest % self._step(kept)},
                lambda point, _, __, skipped=skipped, least=least: point[skipped] - least,  # type: ignore[misc]
            )
        whole = {name: most + _BEYOND * self._step(name) for name, most in last.items()}
        yield whole, lambda _, extent, of_table: of_table - extent
        yield whole, lambda _, extent, of_table: (of_table - extent) // 2

    def _step(self, name: str) -> int:
        return self._steps.get(name, 1)

    def _longer(self, point: Point) -> Sequence[np.ndarray]:
        key = tuple(point.values())
        if key not in self._known:
            try:
                self._known[key] = self._constants(point)
            except ModelError:  # it may be longer than the model can be
                self._known[key] = ()
        return self._known[key]

    def _window(self, arrays: Sequence[np.ndarray], table: np.ndarray, axis: int, start: Start) -> Made | None:
        starts = []
        for array, point in zip(arrays, self._points, strict=True):
            if (array.ndim, array.dtype) != (table.ndim, table.dtype):
                return None
            begin = start(point, array.shape[axis], table.shape[axis])
            block = [slice(0, extent) for extent in array.shape]
            block[axis] = slice(begin, begin + array.shape[axis])
            if begin < 0 or not np.array_equal(table[tuple(block)], array, equal_nan=array.dtype.kind == "f"):
                return None
            starts.append(begin)
        copies = [
            window(table.shape, array.shape, axis, begin, str(table.dtype))
            for array, begin in zip(arrays, starts, strict=True)
        ]
        found = dynamic_workload(copies, self._points, self._domain.greatest, self._sums, self._steps)
        return None if isinstance(found, NotApplicable) else Made(found, table)


def window(whole: Sequence[int], extents: Sequence[int], axis: int, begin: int, dtype: str) -> Workload:
    """The copy of `table[:extents]`, along `axis` of `table[begin : begin + extent]`, as a workload."""
    table = te.placeholder(tuple(whole), dtype, "table")

    def value(*at: Any) -> Any:
        return table(*(index + begin if i == axis else index for i, index in enumerate(at)))

    return Workload.of(te.create_prim_func([table, te.compute(tuple(extents), value, name="window")]), 1)

"""Flat kernels of dynamic shapes called in this process: with numbers of tiles, on arrays between guard zones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from subtune.backends.base import Device
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from subtune.measure.guarded import Guarded

SAMPLES = (11, 13, 17, 19, 23, 29)


def of_rows(build: Callable[[int], Workload]) -> DynamicWorkload:
    """The dynamic workload of one symbol, `seq`."""
    found = dynamic_workload([build(rows) for rows in SAMPLES[:4]], [{"seq": rows} for rows in SAMPLES[:4]])
    assert not isinstance(found, NotApplicable), found.reason
    return found


class FlatKernel:
    """A kernel of all instances in machine code."""

    def __init__(self, kernel: Kernel, device: Device) -> None:
        self._packings = dict(kernel.packings)
        self._main = device.backend.lower(kernel.func.with_attr("global_symbol", "main"), device)["main"]

    def __call__(
        self,
        numbers: Sequence[int],
        inputs: Sequence[np.ndarray],
        shape: Sequence[int],
        rows: int = 0,
        constants: Collection[int] = (),
    ) -> np.ndarray:
        """Its output, with so many `rows` of memory behind it that it may use.

        Those behind inputs that are no `constants` hold NaN.

        Raises:
            AssertionError: it wrote anywhere else.
        """
        given = [
            Guarded.like(self._packings[i](array) if i in self._packings else array, "float32")
            if i in constants
            else Guarded.like(_longer(array, rows), "float32")
            for i, array in enumerate(inputs)
        ]
        output = Guarded.like(_longer(np.full(shape, np.nan, np.float32), rows), "float32")
        before = [one.bytes.copy() for one in given]
        self._main(*numbers, *(one.tensor for one in given), output.tensor)
        for one, bytes_before in zip((*given, output), (*before, output.bytes), strict=True):
            assert not one.overwritten(), one.overwritten()
            np.testing.assert_array_equal(one.bytes, bytes_before)
        return output.bytes.view(np.float32).reshape(-1, *shape[1:])[: shape[0]].copy()


def _longer(array: np.ndarray, rows: int) -> np.ndarray:
    more: Any = np.full((rows, *array.shape[1:]), np.nan, array.dtype)
    return np.concatenate([array, more])

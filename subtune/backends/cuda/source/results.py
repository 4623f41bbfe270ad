"""The results of an anchor, as they are stored: themselves, or the outputs that are computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx

from subtune.backends.cuda.source.emit import Code, const
from subtune.backends.cuda.source.lanes import Lanes, Unsupported, decoded


class Results:
    """Of the block `anchor`, an array of `shape`; every one of the blocks `outputs` has an element for each of them.

    Pass `known` to the `Lanes` that compute the outputs. Raises Unsupported where an output has another size.
    """

    def __init__(self, code: Code, anchor: Any, outputs: Sequence[Any], shape: tuple[int, ...]) -> None:
        self._code, self._buffer, self._outputs, self._shape = code, anchor.body.buffer, outputs, shape
        self._expected: Any = None
        self._value: Any = None
        if any(prod(int(iv.dom.extent) for iv in block.iter_vars) != prod(shape) for block in outputs):
            raise Unsupported("an output has another shape than the anchor's results")

    def store(self, reader: Lanes, place: list[Any], value: Any) -> None:
        """`value` is the result at `place`, an index for every dim."""
        self._expected, self._value = self._number(place), value
        if not self._outputs:
            reader.write(self._buffer, place, value)
        for block in self._outputs:
            extents = tuple(int(iv.dom.extent) for iv in block.iter_vars)
            same = extents == self._shape
            indices = place if same else decoded(self._expected, extents, self._code.analyzer)
            axes = {iv.var: index for iv, index in zip(block.iter_vars, indices, strict=True)}
            made = reader.compute(block.body.value, axes)
            reader.write(block.body.buffer, [axes.get(index, index) for index in block.body.indices], made)

    def known(self, source: Any, indices: list[Any]) -> Any:
        """The result in place of a load of it."""
        if not source.same_as(self._buffer):
            return None
        difference = self._code.analyzer.canonical_simplify(self._number(indices) - self._expected)
        if not (isinstance(difference, tirx.IntImm) and int(difference) == 0):
            raise Unsupported("the epilogue reads other results than it stores")
        return self._value

    def _number(self, indices: list[Any]) -> Any:
        number: Any = const(0)
        for index, extent in zip(indices, self._shape, strict=True):
            number = number * extent + index
        return number

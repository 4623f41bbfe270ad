"""The arrays of a run whose shapes vary: symbols from the inputs' shapes, outputs in the shapes that those give."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from subtune import runtime
from subtune.artifact.caches import CacheInput, CacheOutput
from subtune.artifact.slots import can_take, check_dtype, check_output, imported
from subtune.core.binding import Binder
from subtune.core.manifest import Manifest
from subtune.core.tensor_spec import TensorSpec

_REMEMBERED = 1024
"""Combinations of shapes; one takes some hundred bytes, and as many microseconds as a small kernel."""

_Shapes = tuple[tuple[int, ...], ...]
_Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Instance:
    """What a combination of inputs' shapes comes to.

    Attributes:
        symbols: their values, in the domain's order.
        outputs: each by its name, its slot, its shape and its bytes.
        caches: those of them that are kept in place.
    """

    symbols: tuple[int, ...]
    outputs: tuple[tuple[str, VaryingOutput | CacheOutput, tuple[int, ...], int], ...]
    caches: tuple[tuple[str, CacheOutput, tuple[int, ...]], ...] = ()

    def new(self) -> dict[str, np.ndarray]:
        """Arrays for all outputs."""
        return {name: slot.new(shape, nbytes) for name, slot, shape, nbytes in self.outputs}

    def arrays(self, out: Mapping[str, Any], inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
        """As `new`, but those of `out` that kernels can write to.

        Raises InputError if an array of `out` cannot take the output of its name.
        """
        for name, slot, shape, _ in self.outputs:
            if name in out:
                check_output(out[name], TensorSpec(name, shape, slot.spec.dtype), slot.dtype)
        found = {}
        for name, slot, shape, nbytes in self.outputs:
            wanted = out.get(name)
            if wanted is None or slot.slack or isinstance(slot, CacheOutput) or not can_take(wanted, inputs):
                wanted = slot.new(shape, nbytes)
            found[name] = wanted
        return found

    def written(self, made: dict[str, np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        """What kernels write to: the arrays of `made`, which gets those of caches, and for these the whole memory."""
        arrays = list(made.values())
        for name, slot, shape in self.caches:
            arrays[slot.cache.output], made[name] = slot.continued(inputs[slot.cache.input], shape)
        return arrays


@final
class DynamicSlots:
    """The slots of a model with symbols. Used by one thread at a time.

    Attributes:
        readers: by the inputs' names, what takes a caller's array and gives one that kernels can read.
    """

    def __init__(self, manifest: Manifest) -> None:
        greatest = manifest.domain.greatest
        caches, kept = {one.output: one for one in manifest.caches}, {one.input for one in manifest.caches}
        readers = [CacheInput(spec) if i in kept else VaryingInput(spec) for i, spec in enumerate(manifest.inputs)]
        self.readers = tuple((spec.name, reader.array) for spec, reader in zip(manifest.inputs, readers, strict=True))
        slack = dict(manifest.memory.slack)
        self._outputs = tuple(
            CacheOutput(spec, caches[i])
            if i in caches
            else VaryingOutput(spec, spec.at(greatest).nbytes, slack.get(i, 0))
            for i, spec in enumerate(manifest.outputs)
        )
        self._binder = Binder(manifest.inputs, manifest.domain)
        self._known: dict[_Shapes, Instance] = {}

    def instance(self, arrays: list[np.ndarray]) -> Instance:
        """Of arrays for all inputs, in their order. Raises InputError if the model has none of these shapes."""
        shapes = tuple([array.shape for array in arrays])
        known = self._known.get(shapes)
        if known is None:
            known = self._instance(shapes)
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[shapes] = known
        return known

    def _instance(self, shapes: _Shapes) -> Instance:
        values = self._binder.values(shapes)
        found = [(slot, slot.spec.at(values)) for slot in self._outputs]
        outputs = tuple((spec.name, slot, spec.sizes, spec.nbytes) for slot, spec in found)
        caches = tuple((name, slot, shape) for name, slot, shape, _ in outputs if isinstance(slot, CacheOutput))
        return Instance(tuple(values.values()), outputs, caches)


@final
class VaryingInput:
    """One input whose shape may vary from run to run, as `slots.Input`; its shape is checked with all others'."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._dtype = runtime.numpy_dtype(spec.dtype)
        self._buffer = runtime.aligned_empty(0)

    def array(self, value: Any) -> np.ndarray:
        if type(value) is _Array and value.dtype is self._dtype and value.flags.carray:
            return value
        array = imported(value, self._spec)
        check_dtype(array, self._spec, self._dtype)
        if runtime.is_direct(array):
            return array
        if self._buffer.nbytes < array.nbytes:
            self._buffer = runtime.aligned_empty(array.nbytes)
        copy = self._buffer[: array.nbytes].view(self._dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


@final
class VaryingOutput:
    """One output whose shape may vary from run to run; as `slots.Output`, memory is kept while nobody else has it.

    Args:
        greatest_nbytes: what it takes at most.
        slack: bytes behind it that kernels may write to.
    """

    def __init__(self, spec: TensorSpec, greatest_nbytes: int, slack: int = 0) -> None:
        self.spec = spec
        self.dtype = runtime.numpy_dtype(spec.dtype)
        self._greatest_nbytes = greatest_nbytes
        self.slack = slack
        self._memory = np.empty(0, np.uint8)
        self._nbytes = -1
        self._start = 0
        self._whole: np.ndarray
        self._alone = 0

    def new(self, shape: tuple[int, ...], nbytes: int) -> np.ndarray:
        """An array of that shape, which has so many bytes."""
        if nbytes > self._nbytes or sys.getrefcount(self._memory) > self._alone:
            # the next power of two: a cache that grows step by step finds the pages of its last steps
            self._nbytes = min(1 << max(nbytes - 1, 0).bit_length(), self._greatest_nbytes)
            self._memory = np.empty(self._nbytes + self.slack + runtime.ALIGNMENT, np.uint8)
            self._start = -runtime.address(self._memory) % runtime.ALIGNMENT
            self._whole = np.ndarray(shape, self.dtype, self._memory, self._start)
            self._alone = sys.getrefcount(self._memory)
        elif self._whole.shape != shape:
            self._whole = np.ndarray(shape, self.dtype, self._memory, self._start)
        return self._whole[...]

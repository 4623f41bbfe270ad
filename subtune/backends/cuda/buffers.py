"""Where the tensors of a program's memory plan lie in the GPU's memory."""

from __future__ import annotations

from subtune.backends.cuda import api as cuda_api
from subtune.core.manifest import Manifest
from subtune.core.memory_plan import Base, View


class Buffers:
    """A part of the programs of fixed and of varying shapes, which allocate the memory."""

    _manifest: Manifest
    _weights: cuda_api.Memory
    _arena: cuda_api.Memory
    _given: tuple[cuda_api.Memory, ...]
    _taken: tuple[cuda_api.Memory, ...]

    def _place(self, view: View) -> tuple[cuda_api.Memory, int]:
        """The memory that holds a tensor, and at which byte it begins."""
        if view.base is Base.WEIGHT:
            return self._weights, self._manifest.weights[view.place].offset
        if view.base is Base.ARENA:
            return self._arena, view.place
        return (self._given if view.base is Base.INPUT else self._taken)[view.place], 0

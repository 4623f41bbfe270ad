"""The module itself, run by PyTorch, as what its compiled form is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from subtune.core.reference import CannotRun, Run, by_an_ulp
from subtune.integrations.torch.signature import Signature
from subtune.integrations.torch.tensors import to_array, to_tensor


class Eager:
    """A `subtune.core.reference.Reference`. PyTorch keeps the number of threads that it has."""

    name = "PyTorch"
    is_installed = True

    def __init__(self, module: torch.nn.Module, signature: Signature, limits: Mapping[str, int] | None = None) -> None:
        self._module, self._signature = module, signature
        self._limits = dict(limits or {})
        weights = (*module.parameters(), *module.buffers())
        self._device = weights[0].device if weights else torch.device("cpu")

    def limits(self) -> Mapping[str, int]:
        return self._limits

    def start(self, threads: int) -> Run:
        return self._run({})

    def as_written(self, threads: int) -> None:
        """It is that already."""

    def moved(self, threads: int, variation: int) -> Run:
        weights = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        return self._run({name: _moved(one, variation) for name, one in weights.items() if one.dim() > 1})

    def _run(self, weights: Mapping[str, torch.Tensor]) -> Run:
        def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            tensors = {name: to_tensor(_rows(one)).to(self._device) for name, one in inputs.items()}
            args, kwargs = self._signature.call(self._signature.filled(tensors))
            try:
                with torch.no_grad():
                    result = torch.func.functional_call(self._module, dict(weights), args, kwargs)
            except Exception as e:  # of the module's own code
                raise CannotRun(" ".join(str(e).split()) or type(e).__name__) from e
            return {name: to_array(one.cpu(), name).copy() for name, one in self._signature.computed(result).items()}

        return run


def _moved(weight: torch.Tensor, variation: int) -> Any:
    array = to_array(weight.cpu(), "weight")
    return to_tensor(by_an_ulp(_rows(array), variation)).to(weight.device)


def _rows(array: np.ndarray) -> np.ndarray:
    """Contiguous; of a scalar `np.ascontiguousarray` would make a vector."""
    return array if array.flags.c_contiguous else np.array(array, order="C")

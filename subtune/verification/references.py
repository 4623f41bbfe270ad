"""What a compiled model is compared with, beside ONNX Runtime: builds of our own with default schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.assembly import compile_module
from subtune.backends import host_device
from subtune.backends.base import Device
from subtune.core.numerics import PLAIN, Numerics
from subtune.core.reference import Run, by_an_ulp
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends import Imported
from subtune.passes.byte_sums import byte_sums
from subtune.passes.extract import extract
from subtune.passes.float8 import float8_products
from subtune.passes.integer_products import integer_products
from subtune.passes.lift_constants import lift_constants
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.passes.splice import splice
from subtune.pipeline import normalize
from subtune.runtime import carried, uncarried
from subtune.tuning.winners import schedule_kernels
from subtune.verification.by_numpy import legalizations


class UntunedBuild:
    """A `subtune.core.reference.Reference`: the imported module op by op, as TVM legalises it, compiled by `beside`.

    No family has touched it and no pass of ours, but that products of what is dequantised mean products of integers.
    NumPy computes products and convolutions.
    """

    name = "the untuned build"
    is_installed = True

    def __init__(self, imported: Imported, device: Device, beside: Executor) -> None:
        # Relax's Python builders keep global state: only what runs in C++ may leave this thread.
        with device.model.target():
            mod = integer_products(byte_sums(float8_products(imported.mod)))
            mod = relax.transform.LegalizeOps(legalizations())(relax.backend.DispatchSortScan()(mod))
        mod, self._weights = lift_constants(mod)
        self._compiled = beside.submit(compile_module, mod, device)
        self._inputs, self._outputs = imported.inputs, imported.outputs

    def limits(self) -> dict[str, int]:
        return {}

    def start(self, threads: int) -> Run:
        return lambda arrays: self._called(self._weights, arrays)

    def as_written(self, threads: int) -> None:
        """It is that already."""

    def moved(self, threads: int, variation: int) -> Run:
        kept = self._weights
        weights = [tvm.runtime.tensor(by_an_ulp(w.numpy(), variation)) if len(w.shape) > 1 else w for w in kept]
        return lambda arrays: self._called(weights, arrays)

    def _called(self, weights: Sequence[Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return _called(self._compiled.result()[0], self._inputs, self._outputs, arrays, weights)


def precision_reference(again: Callable[[], Imported], numerics: Numerics) -> Run:
    """What a precision makes of the model by itself: the same rounding, default schedules, built when it is called."""

    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        imported, device = again(), host_device(numerics)
        compiled, _ = compile_module(untuned(imported.mod, device, numerics), device)
        return _called(compiled, imported.inputs, imported.outputs, arrays)

    return run


def untuned(mod: tvm.IRModule, device: Device, numerics: Numerics = PLAIN) -> tvm.IRModule:
    """An imported module in call_tir form with default schedules: nothing is measured."""
    normalized = normalize(mod, numerics, forms=replace(device.backend.forms(device.model), keeps_planes=False))
    outlined = outline(normalized, partition(normalized))
    return splice(outlined, schedule_kernels(extract(outlined), {}, device))


def _called(
    compiled: Any,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    arrays: Mapping[str, np.ndarray],
    weights: Sequence[Any] = (),
) -> dict[str, np.ndarray]:
    """One call of a compiled module on this machine's CPU."""
    main = relax.VirtualMachine(compiled, tvm.cpu())["main"]
    result = main(*(tvm.runtime.tensor(carried(arrays[spec.name])) for spec in inputs), *weights)
    found = [result] if hasattr(result, "numpy") else list(result)
    return {spec.name: uncarried(tensor.numpy(), spec.dtype) for spec, tensor in zip(outputs, found, strict=True)}

"""What a compiled model is compared with, beside ONNX Runtime: builds of our own with default schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.assembly import compile_module
from subtune.backends import host_device
from subtune.backends.base import Device
from subtune.core.numerics import PLAIN, Numerics
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends import Imported
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.passes.splice import splice
from subtune.pipeline import normalize
from subtune.tuning.winners import schedule_kernels
from subtune.verification.verify import Reference


def untuned_reference(imported: Imported, device: Device, beside: Executor) -> Reference:
    """The imported module op by op, as TVM legalises it, compiled by `beside`: no pass and no family has touched it."""
    # Relax's Python builders keep global state: only what runs in C++ may leave this thread.
    with device.model.target():
        mod = relax.transform.LegalizeOps()(relax.backend.DispatchSortScan()(imported.mod))
    compiled = beside.submit(compile_module, mod, device)
    inputs, outputs = imported.inputs, imported.outputs
    return lambda arrays: _called(compiled.result()[0], inputs, outputs, arrays)


def precision_reference(again: Callable[[], Imported], numerics: Numerics) -> Reference:
    """What a precision makes of the model by itself: the same rounding, default schedules, built when it is called."""

    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        imported, device = again(), host_device(numerics)
        compiled, _ = compile_module(untuned(imported.mod, device, numerics), device)
        return _called(compiled, imported.inputs, imported.outputs, arrays)

    return run


def untuned(mod: tvm.IRModule, device: Device, numerics: Numerics = PLAIN) -> tvm.IRModule:
    """An imported module in call_tir form with default schedules: nothing is measured."""
    normalized = normalize(mod, numerics)
    outlined = outline(normalized, partition(normalized))
    return splice(outlined, schedule_kernels(extract(outlined), {}, device))


def _called(
    compiled: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """One call of a compiled module on this machine's CPU."""
    main = relax.VirtualMachine(compiled, tvm.cpu())["main"]
    result = main(*(tvm.runtime.tensor(arrays[spec.name]) for spec in inputs))
    found = [result] if hasattr(result, "numpy") else list(result)
    return {spec.name: tensor.numpy() for spec, tensor in zip(outputs, found, strict=True)}

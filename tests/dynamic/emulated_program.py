"""The program of a dynamic artifact for a GPU without one: the host's code as it ships, its kernels emulated."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from subtune.artifact import manifest as manifests
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.manifest import WEIGHTS_NAME
from tests.backends.cuda import cuda_on_cpu

_TAGS = [f"{kind}Idx.{dim}" for kind in ("block", "thread") for dim in "xyz"]


class EmulatedProgram:
    """Runs what `straight_line` made of the artifact at `path`, on the processor's memory."""

    def __init__(self, mod: Any, target: Any, path: Path, folder: Path) -> None:
        self._manifest = manifests.read(path)
        build = sys.modules["tvm.tirx.build"]
        lower, finalize_host, finalize_device = tvm.tirx.get_tir_pipeline(register())
        host, devices = build.split_host_device_mods(lower(tvm.tirx.transform.BindTarget(target)(mod)))
        ((device_target, device),) = devices.items()
        device = finalize_device()(device)
        self.library = build.tir_to_runtime(finalize_host()(host), {}, target.host)
        code = str(build.codegen_build(device, device_target).inspect_source())
        names = [gvar.name_hint for gvar in device.get_global_vars()]
        grids = f'extern "C" {{ int grids[{len(names)}][6]; }}\n'
        placed = []
        for i, name in enumerate(names):
            params = device[name].params
            placed.append((name, list(params), {tag: f"grids[{i}][{at}]" for at, tag in enumerate(_TAGS)}))
        self._kernels = ctypes.CDLL(str(cuda_on_cpu.built(grids + code, placed, folder)))
        self._grids = (ctypes.c_int * 6 * len(names)).in_dll(self._kernels, "grids")
        for i, (name, params, _) in enumerate(placed):
            tags = [str(tag) for tag in device[name].attrs["tirx.kernel_launch_params"]]
            tvm_ffi.register_global_func(name, self._launcher(i, len(params), tags), override=True)
        greatest = self._manifest.domain.greatest
        whole = [np.fromfile(path / WEIGHTS_NAME, np.uint8), np.zeros(self._manifest.memory.arena_nbytes, np.uint8)]
        specs = (*self._manifest.inputs, *self._manifest.outputs)
        self._arrays = [*whole, *(np.zeros(spec.at(greatest).nbytes, np.uint8) for spec in specs)]

    def _launcher(self, index: int, params: int, tags: list[str]) -> Any:
        def launch(*args: Any) -> None:
            pointers = [arg.value if isinstance(arg, ctypes.c_void_p) else arg for arg in args[:params]]
            extents = dict(zip([tag for tag in tags if "use_prog" not in tag], args[params:], strict=True))
            for at, tag in enumerate(_TAGS):
                self._grids[index][at] = extents.get(tag, 1)
            getattr(self._kernels, f"launch_{index}")((ctypes.c_void_p * params)(*pointers), False)

        return launch

    def run(self, inputs: Mapping[str, np.ndarray], steps: int = 0, **symbols: int) -> dict[str, np.ndarray]:
        """With `steps`, the program is a twin that is told to do one after the other."""
        manifest, first = self._manifest, 2 + len(self._manifest.inputs)
        for spec, memory in zip(manifest.inputs, self._arrays[2:], strict=False):
            memory[: inputs[spec.name].nbytes] = inputs[spec.name].reshape(-1).view(np.uint8)
        values = [symbols[name] for name in manifest.domain.names]
        given = (*(memory.ctypes.data for memory in self._arrays), *values)
        if not steps:
            self.library["main"](*given)
        for index in range(steps):
            self.library["traced"](*given, index)
        found = {}
        for spec, memory in zip(manifest.outputs, self._arrays[first:], strict=True):
            one = spec.at(symbols)
            found[spec.name] = memory[: one.nbytes].view(spec.dtype).reshape(one.sizes)
        for output, view in manifest.memory.copies:
            one = manifest.outputs[output].at(symbols)
            at = self._arrays[1][view.place : view.place + one.nbytes]
            found[one.name] = at.view(one.dtype).reshape(one.sizes)
        return found

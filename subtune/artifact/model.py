"""A compiled model in memory: load it, look at it, run it. Needs TVM's runtime, none of the tuner.

`NAME.subtune/` holds model.so (kernels and what calls them), weights.bin (read into huge pages, or mapped)
and manifest.json. `subtune.artifact.writer` writes it; the backend that the manifest names runs it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, final

import numpy as np
import tvm_ffi

from subtune import runtime
from subtune.artifact import manifest as manifests
from subtune.artifact import shown
from subtune.artifact.dynamic import DynamicSlots
from subtune.artifact.elf import check_library
from subtune.artifact.rules import MAX_THREADS
from subtune.artifact.slots import Input, Output, check_output
from subtune.backends import backend_of
from subtune.core.errors import ArtifactError, InputError
from subtune.core.manifest import LIBRARY_NAME, WEIGHTS_NAME, Manifest
from subtune.core.program import Program
from subtune.core.tensor_spec import TensorSpec
from subtune.core.trace import Trace
from subtune.runtime import triples

_FOREIGN = (RuntimeError, AttributeError, OSError, ValueError, TypeError, LookupError)
"""What TVM's runtime raises, and the dynamic linker."""


@final
class Artifact:
    """A loaded model. `run` may be called from several threads; the calls take turns.

    Attributes:
        path: the artifact's directory.
        manifest: what it says of itself.
        program: what computes; of a GPU it can do more (`subtune.backends.cuda.program`).
        threads: threads that every run uses.
    """

    def __init__(self, path: Path, manifest: Manifest, program: Program, threads: int):
        self.path = path
        self.manifest = manifest
        self.program = program
        self.threads = threads
        self._dynamic = DynamicSlots(manifest) if manifest.domain.symbols else None
        self._outputs = {} if self._dynamic else {spec.name: Output(spec) for spec in manifest.outputs}
        self._readers: tuple[tuple[str, Callable[[Any], np.ndarray]], ...]
        if self._dynamic:
            self._readers = self._dynamic.readers
        else:
            self._readers = tuple((spec.name, Input(spec).array) for spec in manifest.inputs)
        self._makers = tuple((name, slot.new) for name, slot in self._outputs.items())
        self._expected = -1 if self._dynamic else len(self._readers)
        """Inputs of a static model; of another one, a number that no dictionary has: `run` asks once for both."""
        self._compute = program.run
        self._lock = threading.Lock()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.outputs

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Compute the outputs from one array per input.

        Args:
            inputs: by name; numpy arrays or anything with `__dlpack__` on the CPU, of exactly the declared shape and
                dtype (int4 and its like: ml_dtypes'). Arrays that are not contiguous or not aligned are copied first.
                Where the declared shapes have symbols, the arrays' shapes say what those are in this run.
            out: arrays to write outputs to, by name; the others are new arrays. One that is contiguous, aligned and
                apart from every input is written by the kernels themselves.

        Returns:
            every output; those named in `out` are the arrays given there. What has symbols in its declared shape has
            numbers for them here.

        Raises:
            InputError: an array is missing, unknown, or not of its input's or output's shape and dtype; two arrays say
                different things of a symbol, or it has a value that the model was not compiled for.
            ArtifactError: the program failed.
        """
        # The fewest steps: what a kernel of a megabyte leaves of Python in the caches has to come back from memory.
        if type(inputs) is not dict or len(inputs) != self._expected:
            if self._dynamic is not None:
                return self._run_dynamic(self._dynamic, inputs, out)
            self._check_inputs(inputs)
        if out is not None:
            return self._run_into(inputs, out)
        with self._lock:
            try:
                arrays = [array(inputs[name]) for name, array in self._readers]
            except KeyError:
                self._check_inputs(inputs)
                raise
            outputs = {name: new() for name, new in self._makers}
            arrays += outputs.values()
            try:
                self._compute(arrays)
            except _FOREIGN as e:
                raise self._failed(e) from e
        return outputs

    def run_tensors(self, inputs: Mapping[str, Any]) -> dict[str, tvm_ffi.Tensor]:
        """As `run`, giving `tvm_ffi.Tensor`s (they have `__dlpack__`).

        Elements of less than a byte, which tensors would have packed, are their bits in a uint8 each.
        """
        outputs = self.run(inputs)
        specs = self.outputs
        if self._dynamic:
            specs = tuple(replace(spec, shape=outputs[spec.name].shape) for spec in specs)
        return {spec.name: runtime.as_tensor(outputs[spec.name], spec) for spec in specs}

    def benchmark(self, inputs: Mapping[str, Any] | None = None, repeats: int = 30, warmup: int = 3) -> float:
        """Median latency of `run` in seconds, on `inputs` or random ones, of the largest shapes where they vary."""
        from subtune.artifact.random_inputs import random_inputs

        given = random_inputs(self.inputs, values=self.manifest.domain.greatest) if inputs is None else inputs
        for _ in range(warmup):
            self.run(given)
        samples = []
        for _ in range(max(1, repeats)):
            start = time.perf_counter()
            self.run(given)
            samples.append(time.perf_counter() - start)
        return median(samples)

    def trace(self, inputs: Mapping[str, Any] | None = None) -> Trace:
        """One run, kernel by kernel, on `inputs` or random ones, of the largest shapes where they vary.

        It is the second of two runs: the first one brings code and weights into memory.

        Raises:
            InputError: as `run`; or the artifact has no library for traces (`trace` of `subtune.options.Options`).
        """
        from subtune.artifact.random_inputs import random_inputs

        given = random_inputs(self.inputs, values=self.manifest.domain.greatest) if inputs is None else inputs
        self._check_inputs(given)
        with self._lock:
            arrays = [array(given[name]) for name, array in self._readers]
            symbols: tuple[int, ...] = ()
            if self._dynamic is None:
                arrays += [new() for _, new in self._makers]
            else:
                instance = self._dynamic.instance(arrays)
                symbols = instance.symbols
                arrays += instance.written(instance.new(), arrays)
            try:
                slices = self.program.trace(arrays, symbols)
            except _FOREIGN as e:
                raise self._failed(e) from e
        about = {"model": self.manifest.name, "device": self.manifest.device, "runs on": str(self.program)}
        return Trace(slices, about)

    def symbols_at(self, inputs: Mapping[str, Any]) -> tuple[int, ...]:
        """Values of the domain's symbols in a run on `inputs`; none where all shapes are fixed.

        Raises:
            InputError: as `run`.
        """
        self._check_inputs(inputs)
        if self._dynamic is None:
            return ()
        return self._dynamic.instance([array(inputs[name]) for name, array in self._readers]).symbols

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        taken = ", ".join(map(str, self.outputs))
        return f"Artifact({self.manifest.name}: ({given}) -> ({taken}), {self.program}, {self.manifest.device})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return shown.html(self.manifest, str(self.program))

    def _failed(self, error: Exception) -> ArtifactError:
        return ArtifactError(f"the model {self.manifest.name} at {self.path} failed as it ran: {error}")

    def _run_into(self, inputs: Mapping[str, Any], out: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`run` where some of the outputs have to go to arrays of the caller's."""
        self._check_out(out)
        self._check_inputs(inputs)
        with self._lock:
            arrays = [array(inputs[name]) for name, array in self._readers]
            made = {name: slot.array(out.get(name), arrays) for name, slot in self._outputs.items()}
            try:
                self._compute([*arrays, *made.values()])
            except _FOREIGN as e:
                raise self._failed(e) from e
        return _with_wanted(made, out)

    def _run_dynamic(
        self, slots: DynamicSlots, inputs: Mapping[str, Any], out: Mapping[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        """`run` where shapes have symbols."""
        if type(inputs) is not dict or len(inputs) != len(self._readers):
            self._check_inputs(inputs)
        if out is not None:
            self._check_out(out)
        with self._lock:
            try:
                arrays = [array(inputs[name]) for name, array in self._readers]
            except KeyError:
                self._check_inputs(inputs)
                raise
            instance = slots.instance(arrays)
            made = instance.new() if out is None else instance.arrays(out, arrays)
            arrays += instance.written(made, arrays) if instance.caches else made.values()
            try:
                self.program.run_at(arrays, instance.symbols)
            except _FOREIGN as e:
                raise self._failed(e) from e
        return made if out is None else _with_wanted(made, out)

    def _check_out(self, out: Any) -> None:
        """Every array of `out` can take the output of its name; where shapes vary, those are looked at later."""
        if not isinstance(out, Mapping):
            raise InputError(f"out is of type {type(out).__name__}; give a dictionary of arrays by the outputs' names")
        for name, array in out.items():
            if all(name != spec.name for spec in self.outputs):
                made = ", ".join(map(str, self.outputs))
                raise InputError(f"out has an array for {name}, and the model {self.manifest.name} gives {made}")
            if slot := self._outputs.get(name):
                check_output(array, slot.spec, slot.dtype)
        arrays = [(name, array) for name, array in out.items() if isinstance(array, np.ndarray)]
        for i, (name, array) in enumerate(arrays):
            if any(np.may_share_memory(array, other) for _, other in arrays[:i]):
                raise InputError(f"out[{name!r}] overlaps another of the arrays in out")

    def _check_inputs(self, inputs: Any) -> None:
        takes = ", ".join(map(str, self.inputs)) or "no input"
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"the inputs are of type {type(inputs).__name__}; give a dictionary of arrays by name: the model "
                f"{self.manifest.name} takes {takes}"
            )
        expected = [spec.name for spec in self.inputs]
        missing = [name for name in expected if name not in inputs]
        unknown = [name for name in inputs if name not in expected]
        parts = [f"no array for {', '.join(missing)}"] if missing else []
        parts += [f"unknown input {', '.join(map(str, unknown))}"] if unknown else []
        if parts:
            raise InputError(f"{'; '.join(parts)}: the model {self.manifest.name} takes {takes}")


def _with_wanted(made: dict[str, np.ndarray], out: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs with those that a caller wanted in arrays of his own copied there, where kernels did not write."""
    for name, wanted in out.items():
        if made[name] is not wanted:
            np.copyto(wanted, made[name])
            made[name] = wanted
    return made


def load(
    path: str | os.PathLike[str], check: bool = False, threads: int | None = None, share_weights: bool = False
) -> Artifact:
    """Load the artifact directory `path`.

    An artifact is native code: loading one runs what its author wrote, with all that this process may do. The
    checksums find accidents, not attackers: load artifacts only from whom you would take a program.

    The manifest, the sizes of all files and the content of all code are always checked.

    Args:
        threads: run on so many instead of the number it was tuned for.
        check: check the content of the weights, too; they may be large.
        share_weights: use the weights as they lie in the file, so that processes that load it have them in memory once
            and loading takes no time. Large models run a few percent slower so: the file has no huge pages.

    Raises:
        ArtifactError: it is damaged, or made for another machine or version.

    >>> import numpy as np
    >>> import subtune
    >>> path = subtune.compile("zoo:mlp?image=8&batch=2", tune=False).path
    >>> artifact = load(path, check=True)
    >>> print(*artifact.inputs, "->", *artifact.outputs)
    input: float32[2, 8, 8, 3] -> output: float32[2, 10]
    >>> artifact.run({"input": np.zeros((2, 8, 8, 3), "float32")})["output"].shape
    (2, 10)
    """
    folder = Path(path)
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise ArtifactError(f"threads is {threads!r}; give a whole number from 1 to {MAX_THREADS}")
    manifest = manifests.read(folder)
    if not triples.is_here(manifest.triple):
        raise ArtifactError(
            f"{folder} was compiled for {manifest.triple} ({manifest.device}), this machine is {triples.here()}; run "
            "it on such a machine, or compile the model for this one"
        )
    _check_versions(folder, dict(manifest.versions))
    backend = backend_of(manifest.kind)
    code = tuple(entry.name for entry in manifest.files if entry.name != WEIGHTS_NAME)
    manifests.check_hashes(folder, manifest, () if check else code)
    check_library(folder / LIBRARY_NAME)
    threads = threads or manifest.threads
    try:
        program = backend.load_program(folder, manifest, threads, share_weights)
    except _FOREIGN as e:
        raise ArtifactError(f"{folder / LIBRARY_NAME} cannot be loaded: {e}; compile the model again") from e
    return Artifact(folder, manifest, program, threads)


def _check_versions(path: Path, built_with: dict[str, str]) -> None:
    here = runtime.versions()
    if built_with.get("tvm") != here["tvm"]:
        raise ArtifactError(
            f"{path} was compiled with TVM {built_with.get('tvm')}, here is TVM {here['tvm']}; compile the model again "
            f"or install apache-tvm=={built_with.get('tvm')}"
        )
    if built_with.get("ffi", "").split(".")[:2] != here["ffi"].split(".")[:2]:
        raise ArtifactError(
            f"{path} was compiled with apache-tvm-ffi {built_with.get('ffi')}, here is {here['ffi']}; "
            f"compile the model again or install apache-tvm-ffi=={built_with.get('ffi')}"
        )

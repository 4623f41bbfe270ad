"""A compiled model on disk and in memory: load it, look at it, run it. Needs TVM's runtime, none of the tuner.

`NAME.subtune/` holds model.so (kernels and what calls them), weights.bin (read into huge pages, or mapped)
and manifest.json. `subtune.artifact.writer` writes it.
"""

from __future__ import annotations

import importlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import FileIO
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
import tvm_ffi

from subtune import runtime
from subtune.artifact import manifest as manifests
from subtune.artifact.manifest import Manifest
from subtune.core.errors import ArtifactError, InputError
from subtune.core.memory_plan import Base, View
from subtune.core.tensor_spec import TensorSpec
from subtune.runtime import triples

_OTHER_KINDS = {"cuda": "subtune.backends.cuda.program"}
"""Modules whose `load_for` loads what does not run on the CPU: `Artifact`s of their own, built on this one."""


class Artifact:
    """A loaded model. `run` may be called from several threads; the calls take turns.

    Attributes:
        path: the artifact's directory.
        manifest: what it says of itself.
        threads: threads that every run uses.
    """

    _is_direct = False

    def __init__(self, path: Path, manifest: Manifest, program: Program, threads: int):
        self.path = path
        self.manifest = manifest
        self.threads = threads
        self._fixed = program.fixed
        self._compute = program.run
        self._inputs = tuple(Input(spec) for spec in manifest.inputs)
        self._outputs = tuple(Output(spec) for spec in manifest.outputs)
        self._readers = tuple((slot.spec.name, slot.array) for slot in self._inputs)
        self._makers = tuple((slot.spec.name, slot.new) for slot in self._outputs)
        self._is_direct = not manifest.memory.copies and not manifest.memory.returned
        self._lock = threading.Lock()
        self._own_thread: ThreadPoolExecutor | None = None
        self._fork_generation = runtime.fork_generation()

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
                dtype. Arrays that are not contiguous or not 64-byte aligned are copied first.
            out: arrays to write outputs to, by name; the others are new arrays. One that is contiguous, 64-byte
                aligned and apart from every input is written by the kernels themselves.

        Returns:
            every output; those named in `out` are the arrays given there.
        """
        if out is None and self._is_direct:
            return self._run_directly(inputs)
        given = {} if out is None else self._checked(out)
        with self._lock:
            results = self._call(inputs, given)
        outputs = {}
        for slot, array in zip(self._outputs, results, strict=True):
            wanted = given.get(slot.spec.name)
            if wanted is not None and wanted is not array:
                np.copyto(wanted, array)
            outputs[slot.spec.name] = array if wanted is None else wanted
        return outputs

    def run_tensors(self, inputs: Mapping[str, Any]) -> dict[str, tvm_ffi.Tensor]:
        """As `run`, giving `tvm_ffi.Tensor`s (they have `__dlpack__`)."""
        with self._lock:
            arrays = self._call(inputs, {})
        return {
            slot.spec.name: runtime.as_tensor(array, slot.spec)
            for slot, array in zip(self._outputs, arrays, strict=True)
        }

    def benchmark(self, inputs: Mapping[str, Any] | None = None, repeats: int = 30, warmup: int = 3) -> float:
        """Median latency of `run` in seconds, on `inputs` or random ones."""
        from subtune.artifact.random_inputs import random_inputs

        given = random_inputs(self.inputs) if inputs is None else inputs
        for _ in range(warmup):
            self.run(given)
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.run(given)
            samples.append(time.perf_counter() - start)
        return median(samples)

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        taken = ", ".join(map(str, self.outputs))
        return f"Artifact({self.manifest.name}: ({given}) -> ({taken}), {self.threads} threads, {self.manifest.device})"

    def _run_directly(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """`run` where kernels write every output: the fewest steps around them.

        They count: what a kernel of a megabyte leaves of Python in the caches has to come back from memory.
        """
        if len(inputs) != len(self._readers):
            self._refuse_names(inputs)
        with self._lock:
            try:
                arrays = [array(inputs[name]) for name, array in self._readers]
            except KeyError:
                self._refuse_names(inputs)
                raise
            outputs = {name: new() for name, new in self._makers}
            arrays += outputs.values()
            self._invoke(arrays)
        return outputs

    def _call(self, inputs: Mapping[str, Any], out: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if len(inputs) != len(self._inputs) or any(slot.spec.name not in inputs for slot in self._inputs):
            self._refuse_names(inputs)
        taken = [slot.array(inputs[slot.spec.name]) for slot in self._inputs]
        results = [slot.array(out.get(slot.spec.name), taken) for slot in self._outputs]
        returned = self._invoke([*taken, *results])
        plan = self.manifest.memory
        for output, view in plan.copies:
            np.copyto(results[output], self._source(view, taken, results))
        for output, tensor in zip(plan.returned, returned, strict=True):
            np.copyto(results[output], runtime.as_numpy(tensor, results[output].dtype))
        return results

    def _source(self, view: View, taken: list[np.ndarray], results: list[np.ndarray]) -> np.ndarray:
        """What an output is a copy of, as an array of the output's shape."""
        if view.base.is_fixed:
            return self._fixed.array(view)
        return (taken if view.base is Base.INPUT else results)[view.place].reshape(view.shape)

    def _invoke(self, arrays: list[np.ndarray]) -> Any:
        """Run the program on the calling thread if its pool can have the right size, else on a thread of our own."""
        if self._own_thread is None and runtime.use_threads(self.threads):
            return self._compute(arrays)
        if self._fork_generation != runtime.fork_generation():
            self._own_thread = None  # it stayed in the parent process
            self._fork_generation = runtime.fork_generation()
        if self._own_thread is None:
            self._own_thread = ThreadPoolExecutor(
                1, thread_name_prefix="subtune", initializer=runtime.use_threads, initargs=(self.threads,)
            )
        return self._own_thread.submit(self._compute, arrays).result()

    def _checked(self, out: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """`out`, if every array in it can take the output of its name."""
        specs = {slot.spec.name: slot for slot in self._outputs}
        for name, array in out.items():
            if name not in specs:
                made = ", ".join(map(str, self.outputs))
                raise InputError(f"out has an array for {name}, and the model {self.manifest.name} gives {made}")
            specs[name].check(array)
        arrays = list(out.values())
        for i, array in enumerate(arrays):
            if any(np.may_share_memory(array, other) for other in arrays[:i]):
                raise InputError(f"out[{list(out)[i]!r}] overlaps another of the arrays in out")
        return out

    def _refuse_names(self, inputs: Mapping[str, Any]) -> None:
        expected = [spec.name for spec in self.inputs]
        missing = [name for name in expected if name not in inputs]
        unknown = [name for name in inputs if name not in expected]
        parts = [f"no array for {', '.join(missing)}"] if missing else []
        parts += [f"unknown input {', '.join(map(str, unknown))}"] if unknown else []
        takes = ", ".join(map(str, self.inputs)) or "no input"
        raise InputError(f"{'; '.join(parts)}: the model {self.manifest.name} takes {takes}")


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The memory whose address does not change: weights, and the arena of the tensors in between."""

    weights: np.ndarray
    offsets: tuple[int, ...]
    arena: np.ndarray

    def array(self, view: View) -> np.ndarray:
        dtype = runtime.numpy_dtype(view.dtype)
        return self._bytes(view, dtype.itemsize).view(dtype).reshape(view.shape)

    def tensor(self, view: View) -> Any:
        data = self._bytes(view, runtime.numpy_dtype(view.dtype).itemsize)
        return runtime.tensor_over(data, view.shape, view.dtype)

    def _bytes(self, view: View, itemsize: int) -> np.ndarray:
        base, start = (self.weights, self.offsets[view.place]) if view.base is Base.WEIGHT else (self.arena, view.place)
        return base[start : start + prod(view.shape) * itemsize]


class Program(Protocol):
    """What computes."""

    @property
    def fixed(self) -> _Fixed: ...

    def run(self, arrays: list[np.ndarray]) -> Any:
        """On the arrays of all inputs and then of all outputs. Gives those outputs that the plan says it returns."""


class _MachineCode:
    """A `main` that takes the addresses of Python's objects: nothing is made of an array on its way there.

    To ask numpy for the address of an array's data takes longer than a small kernel; its C interface has it as the
    first field.
    """

    def __init__(self, library: Any, fixed: _Fixed):
        self.fixed = fixed
        self._library = library
        self._main = partial(library["main"], object.__basicsize__, id(fixed.weights), id(fixed.arena))

    def run(self, arrays: list[np.ndarray]) -> Any:
        self._main(*map(id, arrays))
        return ()


class _VM:
    """A `main` of Relax's VM, which takes tensors; those with a fixed address are bound once."""

    def __init__(self, library: Any, fixed: _Fixed, manifest: Manifest):
        self.fixed = fixed
        plan = manifest.memory
        executable = runtime.virtual_machine(library)
        tensors = [fixed.tensor(view) for view in plan.arguments if view.base.is_fixed]
        executable["save_function"]("main", "bound", True, *tensors)
        self._executable = executable
        self._main = executable["bound"]
        first = {Base.INPUT: 0, Base.OUTPUT: len(manifest.inputs)}
        self._arguments = tuple(
            (first[view.base] + view.place, TensorSpec("", view.shape, view.dtype))
            for view in plan.arguments
            if not view.base.is_fixed
        )

    def run(self, arrays: list[np.ndarray]) -> Any:
        return self._main(*[runtime.as_tensor(arrays[place], spec) for place, spec in self._arguments])


_Array = np.ndarray


class Output:
    """One output: its specification, and arrays for it.

    The memory of the last one is kept, and used again when no array is left that lies in it: the system hands out new
    memory page by page, which takes longer than many an operator takes to write it.
    """

    def __init__(self, spec: TensorSpec):
        self.spec = spec
        self.dtype = runtime.numpy_dtype(spec.dtype)
        self._shape = spec.shape
        self._nbytes = int(np.prod(spec.shape, dtype=np.int64)) * self.dtype.itemsize
        self._memory: np.ndarray | None = None
        self._whole: np.ndarray
        self._alone = 0
        """References to the memory when no array lies in it: Python's versions count their own differently."""

    def array(self, wanted: np.ndarray | None, inputs: list[np.ndarray]) -> np.ndarray:
        """`wanted` if kernels can write there, else a new array."""
        if wanted is not None and runtime.is_direct(wanted) and not any(np.may_share_memory(wanted, i) for i in inputs):
            return wanted
        return self.new()

    def new(self) -> np.ndarray:
        if self._memory is None or sys.getrefcount(self._memory) > self._alone:
            self._memory = np.empty(self._nbytes + runtime.ALIGNMENT, np.uint8)
            start = -runtime.address(self._memory) % runtime.ALIGNMENT
            self._whole = np.ndarray(self._shape, self.dtype, self._memory, start)
            self._alone = sys.getrefcount(self._memory)
        # A view of a view refers to what owns the memory: all of them are counted.
        return self._whole[...]

    def check(self, array: Any) -> None:
        if not isinstance(array, np.ndarray) or array.shape != self.spec.shape or array.dtype != self.dtype:
            found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(f"out[{self.spec.name!r}] is {found}; the output is {self.spec}")
        if not array.flags.writeable:
            raise InputError(f"out[{self.spec.name!r}] is read-only")


class Input:
    """One input: its specification, and an aligned buffer for arrays that TVM cannot read where they are."""

    def __init__(self, spec: TensorSpec):
        self.spec = spec
        self.dtype = runtime.numpy_dtype(spec.dtype)
        self._shape = spec.shape
        self._buffer: np.ndarray | None = None

    def array(self, value: Any) -> np.ndarray:
        is_spec = type(value) is _Array and value.shape == self._shape and value.dtype is self.dtype
        if is_spec and value.flags.carray:  # most often: nothing to do, said in the fewest steps
            return value
        array = value if isinstance(value, np.ndarray) else self._import(value)
        spec = self.spec
        if array.shape != spec.shape:
            raise InputError(f"input {spec.name} has shape {array.shape}, the model takes {spec}")
        if array.dtype != self.dtype:
            raise InputError(
                f"input {spec.name} has dtype {array.dtype}, the model takes {spec}; convert it with "
                f".astype({spec.dtype!r}) if that is meant"
            )
        if runtime.is_direct(array):
            return array
        if self._buffer is None:
            self._buffer = runtime.aligned_array(spec.shape, self.dtype, array.nbytes)
        np.copyto(self._buffer, array)
        return self._buffer

    def _import(self, value: Any) -> np.ndarray:
        if hasattr(value, "__dlpack__"):
            try:
                return np.from_dlpack(value)
            except (BufferError, TypeError, RuntimeError, AttributeError) as e:
                raise InputError(f"input {self.spec.name} cannot be read through DLPack: {e}") from e
        if isinstance(value, np.generic):
            return np.asarray(value)
        raise InputError(
            f"input {self.spec.name} is a {type(value).__name__}; give a numpy array or an object with __dlpack__"
        )


def load(
    path: str | os.PathLike[str], check: bool = False, threads: int | None = None, share_weights: bool = False
) -> Artifact:
    """Load the artifact directory `path`.

    Args:
        threads: run on so many instead of the number it was tuned for.
        check: compare the SHA-256 of every file with the manifest's, too; sizes are always compared.
        share_weights: use the weights as they lie in the file, so that processes that load it have them in memory once
            and loading takes no time. Large models run a few percent slower so: the file has no huge pages.

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
    manifest = manifests.read(folder)
    if (triple := manifest.triple) and not triples.is_here(triple):
        raise ArtifactError(
            f"{folder} was compiled for {triple} ({manifest.device}), this machine is {triples.here()}; run it on such "
            "a machine, or compile the model for this one"
        )
    _check_versions(folder, dict(manifest.versions))
    if check:
        manifests.check_hashes(folder, manifest)
    if manifest.kind in _OTHER_KINDS:
        loaded: Artifact = importlib.import_module(_OTHER_KINDS[manifest.kind]).load_for(folder, manifest)
        return loaded
    if missing := runtime.missing_features(manifest.features):
        raise ArtifactError(
            f"{folder} was compiled for {manifest.device} and uses {', '.join(missing)}, which this processor lacks; "
            "compile the model on this machine"
        )
    fixed = _Fixed(
        _load_weights(folder / manifests.WEIGHTS_NAME, share_weights),
        tuple(weight.offset for weight in manifest.weights),
        runtime.private_pages(manifest.memory.arena_nbytes),
    )
    try:
        library = runtime.load_library(folder / manifests.LIBRARY_NAME)
        is_direct = manifest.memory.takes_addresses
        program = _MachineCode(library, fixed) if is_direct else _VM(library, fixed, manifest)
    except (RuntimeError, AttributeError, OSError) as e:
        raise ArtifactError(f"{folder / manifests.LIBRARY_NAME} cannot be loaded: {e}; compile the model again") from e
    return Artifact(folder, manifest, program, threads or manifest.threads)


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


def _load_weights(path: Path, is_shared: bool) -> np.ndarray:
    """The file's bytes: mapped, or read into huge pages where they are many and the system has some.

    With pages of 4 KiB, the processor's table of pages is what a model with large weights waits for.
    """
    size = path.stat().st_size
    with path.open("rb", buffering=0) as f:
        if is_shared or size < runtime.HUGE_PAGE or not runtime.has_huge_pages():
            mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
            return np.frombuffer(mapping, dtype=np.uint8)
        whole = runtime.private_pages(size)
        _read(f, whole)
        return whole


def _read(file: FileIO, whole: np.ndarray) -> None:
    """Fill `whole`; a system call reads at most 2 GiB."""
    done = 0
    while done < len(whole):
        count = file.readinto(whole[done:].data)
        if not count:
            raise ArtifactError(f"{file.name!r} ended early: it was changed while it was read")
        done += count

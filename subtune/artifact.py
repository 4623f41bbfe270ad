"""A compiled model on disk and in memory: load it, look at it, run it. Needs TVM's runtime, none of the tuner.

`NAME.subtune/` holds model.so (kernels and the Relax VM's program), weights.bin (mapped into memory, never copied)
and manifest.json. `subtune.artifact_writer` writes it.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm_ffi

from subtune import manifest as manifests
from subtune import runtime, triples
from subtune.errors import ArtifactError, InputError
from subtune.manifest import Manifest
from subtune.tensorspec import TensorSpec


class Artifact:
    """A loaded model. `run` may be called from several threads; the calls take turns.

    Attributes:
        path: the artifact's directory.
        manifest: what it says of itself.
        threads: threads that every run uses.
    """

    def __init__(
        self, path: Path, manifest: Manifest, executable: Any, weights: list[Any], weight_range: range, threads: int
    ):
        self.path = path
        self.manifest = manifest
        self.threads = threads
        self._main = executable["main"]
        self._executable = executable
        self._weights = weights
        self._weight_range = weight_range
        self._slots = tuple(_InputSlot(spec) for spec in manifest.inputs)
        self._output_dtypes = tuple(runtime.numpy_dtype(spec.dtype) for spec in manifest.outputs)
        self._lock = threading.Lock()
        self._own_thread: ThreadPoolExecutor | None = None
        self._fork_generation = runtime.fork_generation()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.outputs

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Compute the outputs, as arrays of their own, from one array per input.

        Args:
            inputs: by name; numpy arrays or anything with `__dlpack__` on the CPU, of exactly the declared shape and
                dtype. Arrays that are not contiguous or not 64-byte aligned are copied first.
        """
        with self._lock:
            outputs = self._call(inputs)
            arrays = [_as_numpy(tensor, dtype) for tensor, dtype in zip(outputs, self._output_dtypes, strict=True)]
            return {
                spec.name: array.copy() if alias else array
                for spec, array, alias in zip(self.outputs, arrays, self._aliases(arrays), strict=True)
            }

    def run_tensors(self, inputs: Mapping[str, Any]) -> dict[str, tvm_ffi.Tensor]:
        """As `run`, giving `tvm_ffi.Tensor`s (they have `__dlpack__`).

        An output that a model passes through unchanged may share memory with an input or a weight: do not write to it.
        """
        with self._lock:
            return dict(zip((spec.name for spec in self.outputs), self._call(inputs), strict=True))

    def benchmark(self, inputs: Mapping[str, Any] | None = None, repeats: int = 30, warmup: int = 3) -> float:
        """Median latency of `run` in seconds, on `inputs` or random ones."""
        from subtune.random_inputs import random_inputs

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

    def _call(self, inputs: Mapping[str, Any]) -> list[Any]:
        if len(inputs) != len(self._slots) or any(slot.spec.name not in inputs for slot in self._slots):
            self._refuse_names(inputs)
        args = [slot.tensor(inputs[slot.spec.name]) for slot in self._slots]
        result = self._invoke(args)
        return [result] if len(self.outputs) == 1 and isinstance(result, tvm_ffi.Tensor) else list(result)

    def _invoke(self, args: list[Any]) -> Any:
        """Call the VM on the calling thread where its pool can have the right size, else on a thread of our own."""
        if self._fork_generation != runtime.fork_generation():
            self._own_thread = None  # it stayed in the parent process
            self._fork_generation = runtime.fork_generation()
        if self._own_thread is None and runtime.use_threads(self.threads):
            return self._main(*args, *self._weights)
        if self._own_thread is None:
            self._own_thread = ThreadPoolExecutor(
                1, thread_name_prefix="subtune", initializer=runtime.use_threads, initargs=(self.threads,)
            )
        return self._own_thread.submit(self._main, *args, *self._weights).result()

    def _aliases(self, arrays: list[np.ndarray]) -> list[bool]:
        """Per output, whether it shares memory with an input buffer, a weight, or an earlier output."""
        taken = {slot.address for slot in self._slots}
        flags = []
        for array in arrays:
            address = array.ctypes.data
            flags.append(array.size > 0 and (address in taken or address in self._weight_range))
            taken.add(address)
        return flags

    def _refuse_names(self, inputs: Mapping[str, Any]) -> None:
        expected = [spec.name for spec in self.inputs]
        missing = [name for name in expected if name not in inputs]
        unknown = [name for name in inputs if name not in expected]
        parts = [f"no array for {', '.join(missing)}"] if missing else []
        parts += [f"unknown input {', '.join(map(str, unknown))}"] if unknown else []
        takes = ", ".join(map(str, self.inputs)) or "no input"
        raise InputError(f"{'; '.join(parts)}: the model {self.manifest.name} takes {takes}")


class _InputSlot:
    """One input: its specification, and an aligned buffer for arrays that TVM cannot read where they are."""

    def __init__(self, spec: TensorSpec):
        self.spec = spec
        self.dtype = runtime.numpy_dtype(spec.dtype)
        self.address = 0
        self._buffer: np.ndarray | None = None
        self._tensor: Any = None

    def tensor(self, value: Any) -> Any:
        array = value if isinstance(value, np.ndarray) else self._import(value)
        spec = self.spec
        if array.shape != spec.shape:
            raise InputError(f"input {spec.name} has shape {array.shape}, the model takes {spec}")
        if array.dtype != self.dtype:
            raise InputError(
                f"input {spec.name} has dtype {array.dtype}, the model takes {spec}; convert it with "
                f".astype({spec.dtype!r}) if that is meant"
            )
        if array.flags.c_contiguous and array.flags.aligned and array.flags.writeable:
            self.address = array.ctypes.data
            return _as_tensor(array, spec)
        if self._buffer is None:
            self._buffer = runtime.aligned_empty(array.nbytes).view(self.dtype).reshape(spec.shape)
            self._tensor = _as_tensor(self._buffer, spec)
        np.copyto(self._buffer, array)
        self.address = self._buffer.ctypes.data
        return self._tensor

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


def load(path: str | os.PathLike[str], check: bool = False, threads: int | None = None) -> Artifact:
    """Load the artifact directory `path`.

    Args:
        threads: run on so many instead of the number it was tuned for.
        check: compare the SHA-256 of every file with the manifest's, too; sizes are always compared.

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
    if missing := runtime.missing_features(manifest.features):
        raise ArtifactError(
            f"{folder} was compiled for {manifest.device} and uses {', '.join(missing)}, which this processor lacks; "
            "compile the model on this machine"
        )
    if check:
        manifests.check_hashes(folder, manifest)
    try:
        executable = runtime.load_executable(folder / manifests.LIBRARY_NAME)
    except (RuntimeError, AttributeError, OSError) as e:
        raise ArtifactError(f"{folder / manifests.LIBRARY_NAME} cannot be loaded: {e}; compile the model again") from e
    weights, weight_range = _map_weights(folder / manifests.WEIGHTS_NAME, manifest)
    return Artifact(folder, manifest, executable, weights, weight_range, threads or manifest.threads)


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


def _map_weights(path: Path, manifest: Manifest) -> tuple[list[Any], range]:
    """Tensors over the mapped file, and the addresses they cover. Pages are shared between processes until written."""
    if not manifest.weights:
        return [], range(0)
    with path.open("rb") as f:
        mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    views = [runtime.tensor_over(whole[w.offset : w.offset + w.nbytes], w.shape, w.dtype) for w in manifest.weights]
    return views, range(whole.ctypes.data, whole.ctypes.data + whole.nbytes)


def _as_tensor(array: np.ndarray, spec: TensorSpec) -> Any:
    if array.dtype.kind != "V" and array.dtype.isbuiltin == 1:
        return tvm_ffi.from_dlpack(array)
    # DLPack of numpy knows none of ml_dtypes' types: pass the bytes and name the type.
    return runtime.tensor_over(array.reshape(-1).view(np.uint8), spec.shape, spec.dtype)


def _as_numpy(tensor: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.isbuiltin == 1:
        return np.from_dlpack(tensor)
    shape = tuple(tensor.shape)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.from_dlpack(runtime.retyped(tensor, (nbytes,), "uint8")).view(dtype).reshape(shape)

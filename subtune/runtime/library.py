"""TVM's runtime without TVM's compiler: the shared library, tensors over foreign memory, and the thread pool.

`import tvm` loads LLVM and the whole compiler (about a second); running an artifact needs `libtvm_runtime` and
`tvm_ffi` only (a tenth of that). Nothing here touches the Python package `tvm`; both may live in one process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from subtune.core.errors import ArtifactError
from subtune.core.tensor_spec import TensorSpec
from subtune.runtime import affinity, triples
from subtune.runtime.host import usable_cores

ALIGNMENT = 64
"""Bytes; a vector, or a cache line, starts on such a boundary. What is ours does; a caller's array need not."""

HUGE_PAGE = 1 << 21
"""Bytes, on x86 and on Arm with pages of 4 KiB."""

_SHARE_CORES = -3  # AffinityMode::kSpecifyThreadShareAllCore

_fork_generation = 0
_forked_thread: int | None = None
"""The thread that came through a fork: its pool, if it had one, has lost its workers and would wait for ever."""


_configured = threading.local()
"""`threads` of the calling thread's pool, once it has one."""


def _count_fork() -> None:
    global _fork_generation, _forked_thread
    _fork_generation += 1
    _forked_thread = threading.get_ident()
    _configured.threads = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def fork_generation() -> int:
    """How many forks lie between this process and the first one: a thread pool does not survive a fork."""
    return _fork_generation


@functools.cache
def load_runtime() -> ctypes.CDLL:
    """Load `libtvm_runtime`, for the life of the process, and what models that sort call besides, where it is there."""
    name = {"darwin": "libtvm_runtime.dylib", "win32": "tvm_runtime.dll"}.get(sys.platform, "libtvm_runtime.so")
    folders = _library_folders()
    if not folders:
        raise ArtifactError("the package apache-tvm is not installed: an artifact needs its runtime library")
    for path in (folder / name for folder in folders):
        if path.is_file():
            loaded = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            _loads(path.with_stem(f"{path.stem}_extra"))
            return loaded
    raise ArtifactError(f"TVM's runtime library {name} is in none of {', '.join(map(str, folders))}")


@functools.cache
def has_cuda() -> bool:
    """Whether this TVM came with its CUDA runtime, which is loaded then, for the life of the process."""
    load_runtime()
    for path in (folder / "libtvm_runtime_cuda.so" for folder in _library_folders()):
        if path.is_file() and (_loads(path) or (_loads_cudart() and _loads(path))):
            return True
    return tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None


def _library_folders() -> list[Path]:
    """Where TVM's libraries may lie; none without TVM."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        return []
    override = os.environ.get("TVM_LIBRARY_PATH")
    return [*([Path(override)] if override else []), *(Path(p) / "lib" for p in spec.submodule_search_locations)]


def _loads(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _loads_cudart() -> bool:
    """CUDA's runtime library from NVIDIA's Python packages, which no dynamic linker finds by itself."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    found = [path for folder in folders for path in Path(folder).glob("*/lib/libcudart.so.*")]
    return any(_loads(path) for path in found)


def versions() -> dict[str, str]:
    """Installed versions of what an artifact was built with."""
    import subtune

    def installed(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    return {"subtune": subtune.__version__, "tvm": installed("apache-tvm"), "ffi": installed("apache-tvm-ffi")}


_CPU, _CUDA, _POOLED_ALLOCATOR = 1, 2, 2


def load_library(path: Path) -> Any:
    """The shared library `path`, as a module of functions."""
    load_runtime()
    return tvm_ffi.load_module(_spelled_anew(path))


def virtual_machine(library: Any, on_cuda: bool = False) -> Any:
    """The Relax VM of a library, ready for calls on the CPU, or on the first GPU."""
    executable = library["vm_load_executable"]()
    devices = (_CUDA, 0, _POOLED_ALLOCATOR) if on_cuda else ()
    executable["vm_initialization"](*devices, _CPU, 0, _POOLED_ALLOCATOR)
    return executable


def _spelled_anew(path: Path) -> str:
    """`path` with one more `/.` for every other file that was loaded from there before.

    The dynamic linker knows libraries by the name they were asked for: as long as a model is in use, the one that
    replaced it on disk would get its code.
    """
    path = path.resolve()
    status = path.stat()
    files = _files_loaded.setdefault(path, [])
    identity = (status.st_dev, status.st_ino)
    if identity not in files:
        files.append(identity)
    return f"{path.parent}{'/.' * files.index(identity)}/{path.name}"


_files_loaded: dict[Path, list[tuple[int, int]]] = {}
"""Device and inode of every file loaded, by its path. An inode is not used again while its file is loaded."""


def address(array: np.ndarray) -> int:
    """Where the array's first element lies; `array.ctypes.data` takes three times as long."""
    return int(array.__array_interface__["data"][0])


def aligned_empty(nbytes: int) -> np.ndarray:
    """Uninitialised bytes that start on an ALIGNMENT boundary."""
    return aligned_array((nbytes,), np.dtype(np.uint8), nbytes)


def aligned_array(shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
    """An uninitialised array, of `nbytes` as its shape and dtype say, that starts on an ALIGNMENT boundary."""
    raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % ALIGNMENT)


@functools.cache
def has_huge_pages() -> bool:
    """Whether the system gives huge pages to who asks for them."""
    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    return hasattr(mmap, "MADV_HUGEPAGE") and "[never]" not in modes


def private_pages(nbytes: int) -> np.ndarray:
    """Zeroed bytes on a page boundary, in huge pages where the system grants them; a fork gets its own.

    They take memory only once they are written.
    """
    size = -(-nbytes // HUGE_PAGE) * HUGE_PAGE if nbytes >= HUGE_PAGE else max(nbytes, 1)
    if not hasattr(mmap, "MAP_PRIVATE"):
        return aligned_empty(nbytes)
    # a mapping starts anywhere: one huge page more, so that the first one is whole
    spare = HUGE_PAGE if nbytes >= HUGE_PAGE else 0
    mapping = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    start = -address(whole) % HUGE_PAGE if spare else 0
    if spare and has_huge_pages():
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return whole[start : start + nbytes]


def tensor_over(data: np.ndarray, shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor of any dtype over the contiguous, writeable bytes `data`; no copy.

    Its byte offset is 0, which TVM's kernels insist on: the offset goes into the address.
    """
    return retyped(tvm_ffi.from_dlpack(data), shape, dtype)


def retyped(tensor: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """The same memory seen as another shape and dtype of no more bytes."""
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    return view(tensor, tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), 0)


def host_copy(tensor: Any) -> Any:
    """A tensor of a GPU as one of the CPU."""
    target = tvm_ffi.from_dlpack(aligned_empty(int(np.prod(tensor.shape, dtype=np.int64)) * tensor.dtype.itemsize))
    target = retyped(target, tuple(tensor.shape), str(tensor.dtype))
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, target)
    return target


def is_direct(array: np.ndarray) -> bool:
    """Whether kernels can take the array where it is. Read-only memory is left out: DLPack cannot say so."""
    return bool(array.flags.carray)  # contiguous, writeable and aligned


def is_numpys(dtype: np.dtype) -> bool:
    """Whether numpy's DLPack knows the dtype; it knows none of ml_dtypes'."""
    return dtype.kind != "V" and dtype.isbuiltin == 1


def as_tensor(array: np.ndarray, spec: TensorSpec) -> Any:
    """The memory of an array that is_direct, as the tensor that `spec` says."""
    if not is_numpys(array.dtype):  # pass the bytes and name the type
        return tensor_over(array.reshape(-1).view(np.uint8), spec.shape, spec.dtype)
    tensor = tvm_ffi.from_dlpack(array)
    return tensor if array.shape == spec.shape else retyped(tensor, spec.shape, spec.dtype)


def as_numpy(tensor: Any, dtype: np.dtype) -> np.ndarray:
    """A tensor's memory as an array of that dtype, which is the tensor's."""
    if dtype.isbuiltin == 1:
        return np.from_dlpack(tensor)
    shape = tuple(tensor.shape)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.from_dlpack(retyped(tensor, (nbytes,), "uint8")).view(dtype).reshape(shape)


def numpy_dtype(name: str) -> np.dtype:
    """numpy's dtype of a manifest's dtype name; ml_dtypes supplies those that numpy lacks."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    old = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def use_threads(threads: int) -> bool:
    """Make the calling thread's pool run `threads` threads; False if it has fewer, or may have lost them in a fork.

    TVM keeps one pool per calling thread. It is made with as many threads as it is told at its first use; later it can
    be told to use fewer, never more. Only a list of cores tells it: the mere number is forgotten, and on x86 every
    parallel region is then run by half of the machine's threads, or on a machine of two by one.
    `subtune.runtime.affinity` binds the workers: TVM's own binding leaves the calling thread free to sit on the core
    it bound a worker to, which halves the speed.
    """
    if getattr(_configured, "threads", 0) == threads:
        affinity.step_aside()
        return True
    if _forked_thread is not None and threading.get_ident() == _forked_thread:
        return False
    if threads > usable_cores():
        # TVM's workers yield 300000 times before they sleep, and finish that before they end: with more threads than
        # cores a process takes minutes to exit. They ask at some time after they have started, hence no restoring.
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    with _environment(TVM_BIND_THREADS=os.environ.get("TVM_BIND_THREADS", "0")):
        cores = [str(core) for core in range(threads)]
        affinity.start_pool(lambda: _pool_function("runtime.config_threadpool")(_SHARE_CORES, threads, cores))
    if _pool_function("runtime.NumThreads")() != threads:
        return False
    _configured.threads = threads
    return True


@functools.cache
def _pool_function(name: str) -> Any:
    load_runtime()
    return tvm_ffi.get_global_func(name)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Instruction-set extensions of this machine under LLVM's spelling without punctuation; empty if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    # An emulator may show the file of the machine below it, whose flags say nothing of the processor it makes.
    wanted = "flags" if triples.architecture(platform.machine()) == "x86_64" else "features"
    flags: set[str] = set()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == wanted:
            flags.update(value.split())
            break
    arm = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "fp": "fparmv8"}
    return frozenset("".join(c for c in arm.get(flag, flag) if c.isalnum()) for flag in flags)


def missing_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Those of LLVM's `features` that this machine's processor lacks; none where it cannot be asked."""
    flags = cpu_flags()
    if not flags:
        return ()
    return tuple(f for f in features if "".join(c for c in f if c.isalnum()) not in flags)

"""TVM's runtime without TVM's compiler: its shared library, and the libraries of models.

`import tvm` loads LLVM and the whole compiler (about a second); running an artifact needs `libtvm_runtime` and
`tvm_ffi` only (a tenth of that). Nothing here touches the Python package `tvm`; both may live in one process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import tvm_ffi

from subtune.core.errors import ArtifactError


@functools.cache
def load_runtime() -> ctypes.CDLL:
    """Load `libtvm_runtime`, for the life of the process, and what models that sort call besides, where it is there."""
    path = runtime_path()
    loaded = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    _loads(path.with_stem(f"{path.stem}_extra"))
    return loaded


def runtime_path() -> Path:
    """The file of `libtvm_runtime`. Raises ArtifactError where there is none."""
    name = {"darwin": "libtvm_runtime.dylib", "win32": "tvm_runtime.dll"}.get(sys.platform, "libtvm_runtime.so")
    folders = _library_folders()
    if not folders:
        raise ArtifactError("the package apache-tvm is not installed: an artifact needs its runtime library")
    for path in (folder / name for folder in folders):
        if path.is_file():
            return path
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
    spelled = _spelled_anew(path)
    try:
        return tvm_ffi.load_module(os.fsencode(spelled).decode())
    except UnicodeDecodeError as e:
        raise ArtifactError(f"{path} cannot be loaded: TVM takes UTF-8 paths only; rename its directory") from e


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
    path = Path(os.path.realpath(path))
    status = path.stat()
    files = _files_loaded.setdefault(path, [])
    identity = (status.st_dev, status.st_ino)
    if identity not in files:
        files.append(identity)
    return f"{path.parent}{'/.' * files.index(identity)}/{path.name}"


_files_loaded: dict[Path, list[tuple[int, int]]] = {}
"""Device and inode of every file loaded, by its path. An inode is not used again while its file is loaded."""

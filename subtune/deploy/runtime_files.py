"""What an artifact needs of TVM where there is no TVM: two libraries, their C interface, and their licences."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import tvm_ffi.libinfo

from subtune.core.errors import ArtifactError
from subtune.core.manifest import Manifest
from subtune.runtime import runtime_path

_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_HEADERS = ("tvm/ffi/c_api.h", "dlpack/dlpack.h")
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)\b")


def check_exportable(path: Path, manifest: Manifest) -> None:
    """Raise ArtifactError where the artifact cannot run without subtune."""
    if manifest.kind != "cpu":
        raise ArtifactError(f"{path} is for a GPU, and cannot be exported: load it with subtune.load")
    if manifest.caches:
        raise ArtifactError(
            f"{path} keeps caches in place, and cannot be exported: load it with subtune.load, or compile it with "
            "--cache copied"
        )
    if not manifest.memory.takes_addresses:
        raise ArtifactError(
            f"{path} cannot be exported: its program runs in TVM's virtual machine, for an operator that is no kernel "
            "of subtune's; load it with subtune.load"
        )


def runtime_libraries() -> tuple[Path, ...]:
    """TVM's runtime without the compiler, in the versions that are installed here."""
    return Path(tvm_ffi.libinfo.find_libtvm_ffi()), runtime_path()


def headers() -> dict[str, Path]:
    """The headers that C needs, by their path below `include`."""
    folders = (Path(tvm_ffi.libinfo.find_include_path()), Path(tvm_ffi.libinfo.find_dlpack_include_path()))
    found = {}
    for name in _HEADERS:
        found[name] = next(folder / name for folder in folders if (folder / name).is_file())
    return found


def licences() -> dict[str, Path]:
    """The licence files of what is shipped, by a name that says whose they are."""
    found = {}
    for package in _PACKAGES:
        for file in importlib.metadata.files(package) or ():
            if file.name in ("LICENSE", "NOTICE") and ".dist-info" in str(file):
                found[f"{package}.{file.name}"] = Path(str(file.locate()))
    return found


def least_glibc(libraries: list[Path]) -> tuple[int, int]:
    """The oldest C library that has all that `libraries` take from it; 2.17 is the oldest that wheels can name."""
    named = [(int(major), int(minor)) for path in libraries for major, minor in _GLIBC.findall(path.read_bytes())]
    return max([(2, 17), *named])

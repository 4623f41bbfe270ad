"""From a spliced module to a library: memory planned, calls lowered, kernels and program built by the backend."""

from subtune.assembly.build import build, compile_module
from subtune.assembly.package import Package, write_artifact

__all__ = ["Package", "build", "compile_module", "write_artifact"]

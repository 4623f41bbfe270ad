"""From a spliced module to a library: memory planned, calls lowered, kernels and program built by the backend."""

from subtune.assembly.build import build, compile_module

__all__ = ["build", "compile_module"]

"""TVM without PyTorch, which it imports wherever that is installed: two to three seconds of every command.

Only in a process that is `subtune`'s own: whoever imports subtune may want what TVM offers for PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_TVM = ("tvm_ffi", "tvm")


def leave_torch_out() -> None:
    """From now on, while TVM is imported, PyTorch cannot be; afterwards it can."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _TVM else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Hiding(spec.loader)
        return spec


class _Hiding(Loader):
    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:  # whatever else a loader can
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if "torch" in sys.modules:
            self._own.exec_module(module)
            return
        sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            self._own.exec_module(module)
        finally:
            del sys.modules["torch"]

"""Graph-level subgraph tuning on Apache TVM: models in, one deployable module with measured schedules out.

The public names are loaded on first use, so that `import subtune` and `subtune --help` do not pay for TVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subtune.artifact import Artifact, load
    from subtune.compile import compile

__version__ = "0.1.0"

_PUBLIC = {"Artifact": "subtune.artifact", "load": "subtune.artifact", "compile": "subtune.compile"}

__all__ = ["Artifact", "__version__", "compile", "load"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'subtune' has no attribute {name!r}")

"""Graph-level subgraph tuning on Apache TVM: models in, one deployable module with measured schedules out.

The public names are loaded on first use, so that `import subtune` and `subtune --help` do not pay for TVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subtune.artifact import Artifact, load
    from subtune.backends.cpu.device import CPU
    from subtune.backends.cuda.device import CUDA
    from subtune.compiling import compile
    from subtune.integrations.fast_dlight import (
        ApplyFastTuning,
        DefaultPolicy,
        TensorCorePolicy,
        apply_and_build,
        apply_opt_before_tuning,
        get_tensorized_func_and_tags,
    )
    from subtune.integrations.inference_session import InferenceSession
    from subtune.quantizer import quantize

__version__ = "0.1.0"

_PUBLIC = {
    "Artifact": "subtune.artifact",
    "load": "subtune.artifact",
    "compile": "subtune.compiling",
    "quantize": "subtune.quantizer",
    "CPU": "subtune.backends.cpu.device",
    "CUDA": "subtune.backends.cuda.device",
    "InferenceSession": "subtune.integrations.inference_session",
    "ApplyFastTuning": "subtune.integrations.fast_dlight",
    "DefaultPolicy": "subtune.integrations.fast_dlight",
    "TensorCorePolicy": "subtune.integrations.fast_dlight",
    "apply_and_build": "subtune.integrations.fast_dlight",
    "apply_opt_before_tuning": "subtune.integrations.fast_dlight",
    "get_tensorized_func_and_tags": "subtune.integrations.fast_dlight",
}

__all__ = [
    "CPU", "CUDA", "ApplyFastTuning", "Artifact", "DefaultPolicy", "InferenceSession", "TensorCorePolicy",
    "__version__", "apply_and_build", "apply_opt_before_tuning", "compile", "get_tensorized_func_and_tags", "load",
    "quantize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'subtune' has no attribute {name!r}")

"""`subtune.compile`: a model in a file by the driver, a PyTorch one through `subtune.integrations.torch`."""

from __future__ import annotations

import sys
from typing import Any

from subtune import driver


def compile(model: Any, *given: Any, **options: Any) -> Any:
    """Tune a model and load the result.

        subtune.compile("model.onnx", target="auto", output=None, budget=None, ...) -> subtune.Artifact
        subtune.compile(module, example_inputs, target="auto", dynamic_shapes=None, ...) -> CompiledModule
        subtune.compile(exported_program, ...) -> CompiledModule

    Args:
        model: what `subtune.driver.compile` takes, or a `torch.nn.Module` or `torch.export.ExportedProgram`, which
            become a `subtune.integrations.torch.CompiledModule`: tensors in, tensors out.
        given, options: of `subtune.driver.compile`, or of `subtune.integrations.torch.compile_module`.
    """
    if _is_torch(model):
        from subtune.integrations.torch import compile_module  # late: PyTorch is for its own models only

        return compile_module(model, *given, **options)
    return driver.compile(model, *given, **options)


def _is_torch(model: Any) -> bool:
    """Whether it is PyTorch's; without that loaded, nothing is."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    return isinstance(model, torch.nn.Module) or type(model).__module__.startswith("torch.export")

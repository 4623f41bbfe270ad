"""A compiled module: tensors in, tensors out, in the module's own structure."""

from __future__ import annotations

from typing import Any, final

import torch

from subtune import driver
from subtune.artifact import Artifact
from subtune.core.errors import ModelError
from subtune.integrations.torch.export import Exported, as_arguments, export_module, export_program
from subtune.integrations.torch.runner import runner_of
from subtune.integrations.torch.signature import Signature


@final
class CompiledModule:
    """What `subtune.compile` makes of a PyTorch module; it is called as the module is. For inference: no gradients.

    Attributes:
        artifact: the compiled model, which needs no PyTorch: `artifact.path` can be copied and loaded elsewhere.
        signature: how a call's arguments become its inputs, and its outputs the result.
    """

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        self.artifact = artifact
        self.signature = signature
        self._run = runner_of(artifact)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module, with tensors of the shapes and types of the example inputs, or in the declared ranges.

        Tensors of the CPU are read where they are if they are contiguous. Arguments by position and by name are the
        same. What the example had as None or as a number has to be that again.

        Raises:
            InputError: another structure, shape, type, device, or another fixed value.
        """
        leaves = self.signature.leaves(args, kwargs)
        return self.signature.result(leaves, self._run(self.signature.tensors(leaves)))

    def __repr__(self) -> str:
        return f"CompiledModule({self.artifact!r})"


def compile_module(
    model: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Any = None,
    target: Any = "auto",
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> CompiledModule:
    """Export, tune and load a module or an exported program.

    Args:
        example_inputs: of a module: a tuple of its arguments, a dictionary of them by name, or one tensor.
        dynamic_shapes: of a module, as of `torch.export.export`; the ranges of its `torch.export.Dim`s are those that
            the compiled module serves.
        options: as of `subtune.compile`; `dynamic` gives other values for the dimensions' names.
    Raises:
        ModelError: PyTorch cannot export it, or the importer refuses something in it.
    """
    dynamic = dict(options.pop("dynamic", None) or {})
    if isinstance(model, torch.export.ExportedProgram):
        if example_inputs is not None or dynamic_shapes is not None:
            raise ModelError("an exported program has its example inputs and shapes already: leave them out.")
        exported = export_program(model, bounds=dynamic)
    else:
        args, kwargs = as_arguments(example_inputs)
        exported = export_module(model, args, kwargs, dynamic_shapes, dynamic)
    if target == "auto" and _is_on_gpu(model):
        target = "cuda"
    return compile_exported(exported, target=target, dynamic=dynamic, **options)


def compile_exported(exported: Exported, *, dynamic: dict[str, Any], **options: Any) -> CompiledModule:
    """Tune and load what was exported; `dynamic` takes the place of ranges that it has."""
    ranges = {**exported.dynamic, **dynamic}
    artifact = driver.compile(exported.model, dynamic=ranges or None, **options)
    return CompiledModule(artifact, exported.signature)


def _is_on_gpu(model: torch.nn.Module | torch.export.ExportedProgram) -> bool:
    weights = model.parameters() if isinstance(model, torch.nn.Module) else iter(model.state_dict.values())
    return any(one.device.type == "cuda" for one in weights)

"""How an artifact runs on PyTorch's tensors, where they are: in the memory of the CPU, or of the GPU.

On a GPU the run is work of PyTorch's current stream. Its inputs and outputs are copied there, on the GPU, from and to
the buffers that the CUDA graph has the addresses of. The host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from subtune.artifact import Artifact
from subtune.core.binding import Binder
from subtune.core.errors import InputError
from subtune.core.tensor_spec import TensorSpec
from subtune.integrations.torch.tensors import dtype_of, name_of, to_array, to_tensor

Runner: TypeAlias = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Inputs by name -> outputs by name."""


def runner_of(artifact: Artifact) -> Runner:
    """What runs the artifact on tensors."""
    if artifact.manifest.kind == "cuda":
        return _through_host(artifact) if artifact.manifest.memory.returned else on_gpu(artifact)
    names = {spec.name for spec in artifact.inputs}

    def run(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = artifact.run({name: to_array(one, name) for name, one in tensors.items() if name in names})
        return {name: to_tensor(array) for name, array in outputs.items()}

    return run


def _through_host(artifact: Artifact) -> Runner:
    """For the few operators whose results TVM allocates as it runs (a sort)."""

    def run(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = artifact.run({name: to_array(one.cpu(), name) for name, one in tensors.items()})
        return {name: to_tensor(array).to("cuda") for name, array in outputs.items()}

    return run


def on_gpu(artifact: Artifact, device: str = "cuda", stream: Callable[[], int] | None = None) -> Runner:
    """A runner between tensors of a GPU.

    Args:
        device: of all tensors.
        stream: gives the handle of the stream to run on; None: PyTorch's current one.
    """
    manifest, program = artifact.manifest, artifact.program
    binder = Binder(manifest.inputs, manifest.domain) if manifest.domain.symbols else None
    current = stream or (lambda: int(torch.cuda.current_stream().cuda_stream))

    def run(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        given = [_checked(tensors[spec.name], spec, device) for spec in manifest.inputs]
        values = binder.values([tuple(one.shape) for one in given]) if binder else {}
        outputs = {spec.name: _empty(spec.at(values) if values else spec, device) for spec in manifest.outputs}
        run_on: Any = program.run_on  # type: ignore[attr-defined]
        run_on(current(), _places(given), _places(list(outputs.values())), tuple(values.values()))
        return outputs

    return run


def _checked(tensor: torch.Tensor, spec: TensorSpec, device: str) -> torch.Tensor:
    """The tensor in rows. Raises InputError: it is elsewhere, or of another shape or type."""
    if tensor.device.type != device or (tensor.device.index or 0) != 0:
        raise InputError(
            f"input {spec.name} is on {tensor.device}, and the model was compiled for the first GPU: pass "
            f"{spec.name}.to('cuda:0')"
        )
    if tensor.dtype != dtype_of(spec.dtype):
        raise InputError(f"input {spec.name} has dtype {name_of(tensor.dtype)}, the model takes {spec}; convert it")
    if spec.is_static and tuple(tensor.shape) != spec.sizes:
        raise InputError(f"input {spec.name} has shape {tuple(tensor.shape)}, the model takes {spec}")
    return tensor.detach().contiguous()


def _empty(spec: TensorSpec, device: str) -> torch.Tensor:
    dtype = dtype_of(spec.dtype)
    if dtype is None:
        raise InputError(f"output {spec} has a type that PyTorch lacks")
    return torch.empty(spec.sizes, dtype=dtype, device=device)


def _places(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Address and bytes of each."""
    return [(one.data_ptr(), one.nbytes) for one in tensors]

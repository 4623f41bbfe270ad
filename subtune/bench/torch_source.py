"""The PyTorch module of an ONNX file: the user's, the case's, the zoo model's twin, or onnx2torch's."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from subtune.bench.coverage.case import CASE_SUFFIX
from subtune.bench.dietcode.cases import is_layer
from subtune.bench.job import BenchError, Job
from subtune.bench.peer import Arrays
from subtune.bench.twins.load import load_twin, model_of

CONVERTED = "onnx2torch"
_HALF = {"fp16": "float16", "bf16": "bfloat16"}


def is_converted(job: Job) -> bool:
    """Whether nobody wrote a module for the job's file: onnx2torch makes one."""
    return not (job.torch_function or is_case(job.path) or is_layer(job.path) or model_of(job.path))


def is_case(path: str) -> bool:
    """Whether the ONNX file is of a case of the coverage suite."""
    return Path(path).with_suffix(CASE_SUFFIX).is_file()


def torch_module(job: Job) -> tuple[Any, str]:
    """The module, ready for inference on a CPU, and what made it: "" where somebody wrote it, or CONVERTED.

    Raises BenchError for a user's function that gives none. Whatever the converter raises says what it cannot convert.
    """
    if job.torch_function:
        return from_function(job.torch_function), ""
    if is_case(job.path):
        from subtune.bench.coverage.torch_dialect import load_case

        return load_case(job.path), ""
    if is_layer(job.path):
        from subtune.bench.dietcode.torch_layer import load_layer

        return load_layer(job.path), ""
    if model_of(job.path):
        return load_twin(job.path), ""
    from subtune.bench.torch_model import converted

    return converted(job.path), CONVERTED


def from_function(named: str) -> Any:
    """What the function `package.module:function` gives, in inference mode; sought in the current directory, too."""
    import torch

    module_name, _, function_name = named.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as e:
        raise BenchError(f"--torch {named} cannot be imported: {e}") from e
    finally:
        sys.path.remove(os.getcwd())
    if not callable(function):
        raise BenchError(f"--torch {named} is no function")
    try:
        module = function()
    except Exception as e:  # it is the user's code, and may raise whatever it likes
        raise BenchError(f"--torch {named} raised {type(e).__name__}: {e}") from e
    if not isinstance(module, torch.nn.Module):
        raise BenchError(f"--torch {named} gave a {type(module).__name__}, not a torch.nn.Module")
    return module.eval().requires_grad_(False)


def prepared(job: Job, inputs: Arrays, device: str) -> tuple[Callable[..., Any], list[Any], str]:
    """The module on the device, its inputs in the model's order, and what made it.

    In half precision where the artifact is, but for the integers. Channels last where the module says so by its
    attribute `channels_last`; `images_last` says that its inputs are images with their channels last already.
    """
    import torch

    from subtune.bench.torch_arrays import as_tensor

    module, via = torch_module(job)
    dtype = getattr(torch, _HALF[job.precision]) if job.precision in _HALF else None
    if dtype is not None:
        module = _in_half(module, dtype, via)
    lies_last = _has_convolutions(module) if via == CONVERTED else getattr(module, "channels_last", False)
    module = module.to(device, memory_format=torch.channels_last) if lies_last else module.to(device)
    tensors = []
    for name in job.names:
        tensor = as_tensor(inputs[name]).to(device)
        tensor = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        if lies_last and tensor.ndim == 4 and not getattr(module, "images_last", False):
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        tensors.append(tensor)
    is_mixed = dtype is not None and via == CONVERTED and not _runs(module, tensors)
    # constants of a converted graph stay float32 and meet halves: PyTorch's own way with such models
    return (torch.autocast(device, dtype)(module) if is_mixed else module), tensors, via


def _in_half(module: Any, dtype: Any, via: str) -> Any:
    if via != CONVERTED:
        return module.to(dtype)
    from subtune.bench.torch_model import in_half

    return in_half(module, dtype)


def _has_convolutions(module: Any) -> bool:
    import torch

    return any(isinstance(part, torch.nn.Conv2d) for part in module.modules())


def _runs(module: Any, tensors: list[Any]) -> bool:
    import torch

    try:
        with torch.inference_mode():
            module(*tensors)
    except RuntimeError:
        return False
    return True

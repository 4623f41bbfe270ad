"""Tensors of the CPU between PyTorch and numpy: the same memory, also of types that numpy has from ml_dtypes."""

from __future__ import annotations

import numpy as np
import torch

from subtune import runtime
from subtune.core.errors import InputError

_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
"""By their size in bytes, integers that both know, as which the bits of other types pass."""


def to_array(tensor: torch.Tensor, name: str) -> np.ndarray:
    """The tensor's memory as an array of its shape and strides.

    Raises InputError: it is not on the CPU, or no plain tensor (sparse, quantised); `name` says which.
    """
    if tensor.device.type != "cpu":
        raise InputError(
            f"input {name} is on {tensor.device}, and the model was compiled for a CPU: pass {name}.cpu(), or compile "
            "with target='cuda'"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
        raise InputError(f"input {name} is a tensor of {tensor.layout}, {tensor.dtype}: make it a plain, dense one")
    tensor = tensor.detach().resolve_neg()
    if _is_shared(tensor.dtype):
        return tensor.numpy()
    bits = _BITS[tensor.element_size()][0]
    return tensor.view(bits).numpy().view(runtime.numpy_dtype(name_of(tensor.dtype)))


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """The array's memory as a tensor; as long as that lives, the memory does."""
    if runtime.is_numpys(array.dtype):
        return torch.from_numpy(array)
    bits, own = _BITS[array.dtype.itemsize]
    return torch.from_numpy(array.view(own)).view(dtype_of(str(array.dtype)) or bits)


def name_of(dtype: torch.dtype) -> str:
    """As numpy and ml_dtypes call it."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype | None:
    """PyTorch's type of numpy's or ml_dtypes' name; None where it has none."""
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def _is_shared(dtype: torch.dtype) -> bool:
    """Whether numpy itself has it."""
    return dtype is not torch.bfloat16 and not name_of(dtype).startswith("float8")

"""Arrays of NumPy as tensors of PyTorch, and back."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_tensor(array: np.ndarray) -> Any:
    """An array as a tensor on the same memory; bfloat16, which NumPy knows through ml_dtypes, too."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: Any) -> np.ndarray:
    """A tensor's values on the host; halves, which differ in NumPy's eyes, as float32."""
    import torch

    plain = tensor.detach().float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.detach()
    return np.asarray(plain.contiguous().cpu().numpy())

"""The PyTorch module of an ONNX file: the case's own function, the zoo model's twin, or what onnx2torch makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CASE_SUFFIX = ".case.json"
"""Of the file beside a model of the coverage suite, which says what case it is."""
CONVERTED = "onnx2torch"


def torch_module(path: str) -> tuple[Any, str]:
    """The module, ready for inference on a CPU, and what made it: "" where it was written for the model, or CONVERTED.

    Whatever the converter raises says what it cannot convert.
    """
    if is_case(path):
        from subtune.bench.coverage.torch_dialect import load_case

        return load_case(path), ""
    from subtune.bench.torch_model import converted

    return converted(path), CONVERTED


def is_case(path: str) -> bool:
    """Whether the ONNX file is of a case of the coverage suite."""
    return Path(path).with_suffix(CASE_SUFFIX).is_file()


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

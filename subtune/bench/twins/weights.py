"""Layers of torch.nn that take their weights from an ONNX file's initialisers, by name, in the type they have there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class SameConv2d(nn.Conv2d):
    """TensorFlow's padding: as many pixels as give ceil(extent / stride), the odd one at the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (rows, columns), (stride, _), (kernel, _) = x.shape[2:], self.stride, self.kernel_size
        down, across = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in (rows, columns))
        if down % 2 or across % 2:
            x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
            down = across = 0
        return F.conv2d(x, self.weight, self.bias, self.stride, (down // 2, across // 2), groups=self.groups)


class Weights:
    """The initialisers of a file by name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def parameter(self, name: str) -> nn.Parameter:
        return nn.Parameter(self[name], requires_grad=False)

    def conv(self, name: str, *, stride: int = 1, padding: int = 0, groups: int = 1, same: bool = False) -> nn.Conv2d:
        """`name`.weight of shape (out, in / groups, kernel, kernel), and `name`.bias where there is one."""
        cout, cin, kernel, _ = self[f"{name}.weight"].shape
        options: dict[str, Any] = {"groups": groups, "bias": f"{name}.bias" in self, "device": "meta"}
        kind = SameConv2d if same else nn.Conv2d
        return self._filled(kind(cin * groups, cout, kernel, stride, padding, **options), name)

    def conv_transpose(self, name: str, *, stride: int) -> nn.ConvTranspose2d:
        cin, cout, kernel, _ = self[f"{name}.weight"].shape
        return self._filled(nn.ConvTranspose2d(cin, cout, kernel, stride, device="meta"), name)

    def linear(self, name: str, *, is_transposed: bool = False) -> nn.Linear:
        """`name`.weight of shape (out, in); (in, out) where the file has it transposed, for its MatMul."""
        weight = self[f"{name}.weight"]
        weight = weight.t().contiguous() if is_transposed else weight
        module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        return self._filled(module, name, weight=weight)

    def layer_norm(self, name: str, epsilon: float) -> nn.LayerNorm:
        return self._filled(nn.LayerNorm(self[f"{name}.weight"].shape[0], epsilon, device="meta"), name)

    def instance_norm(self, name: str) -> nn.InstanceNorm2d:
        module = nn.InstanceNorm2d(self[f"{name}.weight"].shape[0], affine=True, device="meta")
        return self._filled(module, name)

    def batch_norm(self, name: str) -> nn.BatchNorm2d:
        module = nn.BatchNorm2d(self[f"{name}.weight"].shape[0], device="meta")
        statistics = {
            "running_mean": self[f"{name}.mean"],
            "running_var": self[f"{name}.var"],
            "num_batches_tracked": torch.tensor(0),
        }
        return self._filled(module, name, **statistics)

    def embedding(self, name: str) -> nn.Embedding:
        return nn.Embedding.from_pretrained(self[f"{name}.weight"])

    def _filled(self, module: Any, name: str, **given: torch.Tensor) -> Any:
        """The module with its tensors from the file, or those `given`; built without memory of its own ("meta")."""
        state = {key: given[key] if key in given else self[f"{name}.{key}"] for key in module.state_dict()}
        module.load_state_dict(state, assign=True)
        return module

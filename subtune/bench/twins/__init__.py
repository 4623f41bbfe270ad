"""The zoo's models as users of PyTorch write them: an ONNX file that the zoo built goes in, its nn.Module comes out.

One file per architecture, each with `twin(weights, arguments)`, where `arguments` are those of the model's `build`.
"""

from __future__ import annotations

"""A PyTorch model becomes an ONNX file."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 32, kernel_size=3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
    nn.Softmax(dim=1),
).eval()

image = torch.zeros(1, 3, 64, 64)
names = {"input_names": ["image"], "output_names": ["scores"]}
torch.onnx.export(model, (image,), "classifier.onnx", **names, dynamo=False)

"""`subtune bench --suite dietcode`: layers of many shapes from one artifact, beside static tuning and other frameworks.

`cases` are the layers, as ONNX models with a symbolic dimension, and `torch_layer` the same in PyTorch. `suite`
compiles and races, `report` writes it down, `section` makes a part of the documentation of a stored run.
"""

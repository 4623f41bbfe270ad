"""The model zoo: one file per architecture, `build(...) -> onnx.ModelProto`."""

"""ONNX files -> Relax: `load.load_onnx` is the pipeline."""

"""Float ONNX models -> ONNX models of 8 bits, by ONNX Runtime's static quantiser; and what that loses.

An `onnx.ModelProto` with fixed shapes and inputs to calibrate with go in. `calibration` makes the latter of files.
"""

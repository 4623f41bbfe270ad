"""ONNX operators -> Relax. In: an `onnx.ModelProto`; out: an IRModule whose `main` has static shapes."""

from subtune.frontends.onnx.ops.importer import ConstantInputsError, import_onnx
from subtune.frontends.onnx.ops.supported import reason, supported_ops

__all__ = ["ConstantInputsError", "import_onnx", "reason", "supported_ops"]

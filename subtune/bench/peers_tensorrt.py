"""TensorRT, where it is installed: the ONNX file through its own parser, as one engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from subtune.bench.job import BenchError, Job
from subtune.bench.peer import Arrays


def engine(job: Job, inputs: Arrays) -> tuple[Callable[..., Any], list[Any]]:
    """What enqueues one run on PyTorch's current stream, and its inputs. Raises BenchError for a refused model."""
    import tensorrt as trt
    import torch

    from subtune.bench.torch_arrays import as_tensor

    logger = trt.Logger(trt.Logger.ERROR)
    context = _built(trt, logger, job).create_execution_context()
    made = context.engine
    names = [made.get_tensor_name(index) for index in range(made.num_io_tensors)]
    given = {name: as_tensor(array).cuda() for name, array in inputs.items() if name in names}
    for name, tensor in given.items():
        context.set_input_shape(name, tuple(tensor.shape))
    taken = {name: _empty(trt, context, name) for name in names if name not in given}
    for name, tensor in (given | taken).items():
        context.set_tensor_address(name, tensor.data_ptr())

    def run(*_: Any) -> list[Any]:
        context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        return list(taken.values())

    return run, list(given.values())


def _built(trt: Any, logger: Any, job: Job) -> Any:
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(job.path):
        raise BenchError(f"tensorrt: {parser.get_error(0).desc()}")
    config = builder.create_builder_config()
    for flag, is_on in (("FP16", job.precision == "fp16"), ("BF16", job.precision == "bf16"), ("TF32", job.allow_tf32)):
        (config.set_flag if is_on else config.clear_flag)(getattr(trt.BuilderFlag, flag))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BenchError("tensorrt: no engine could be built")
    return trt.Runtime(logger).deserialize_cuda_engine(plan)


def _empty(trt: Any, context: Any, name: str) -> Any:
    """An output's buffer."""
    import torch

    dtypes = {
        trt.float32: torch.float32, trt.float16: torch.float16, trt.bfloat16: torch.bfloat16, trt.int32: torch.int32,
        trt.int64: torch.int64, trt.bool: torch.bool,
    }  # fmt: skip
    dtype = dtypes[context.engine.get_tensor_dtype(name)]
    return torch.empty(tuple(context.get_tensor_shape(name)), dtype=dtype, device="cuda")

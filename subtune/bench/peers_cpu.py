"""The frameworks on a processor, each as one function that loads a model; runs in a worker process of its own.

Libraries are imported inside the functions: a process holds the framework it times and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from subtune.bench.job import Job
from subtune.bench.padded import padded
from subtune.bench.peer import Arrays, Peer
from subtune.bench.peers import AGREEMENT, BUCKETS, ONE_KERNEL, REFERENCE, STATIC, Loader, Peers
from subtune.bench.torch_agreement import agreement


def _subtune(job: Job, inputs: Arrays) -> Peer:
    from subtune.artifact import load as load_artifact

    artifact = load_artifact(job.path, threads=job.threads)
    return Peer(lambda: artifact.run(inputs), lambda result: list(result.values()))


def _onnxruntime(job: Job, inputs: Arrays) -> Peer:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(job.path, options, providers=["CPUExecutionProvider"])
    if job.framework == "onnxruntime-ops":
        from subtune.bench.own_account import onnxruntime_seconds

        return Peer(
            lambda: session.run(None, inputs),
            seconds=lambda calls: onnxruntime_seconds(job.path, options, inputs, calls),
        )
    return Peer(lambda: session.run(None, inputs))


def _openvino(job: Job, inputs: Arrays) -> Peer:
    """OpenVINO; with f32 it may not compute in bfloat16, which it does by default where the processor can."""
    import openvino

    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": job.threads, "PERFORMANCE_HINT": "LATENCY"}
    if job.framework != "openvino":
        options["INFERENCE_PRECISION_HINT"] = "f32"
    if job.framework == "openvino-ops":
        options["PERF_COUNT"] = True
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(job.path), "CPU", options)
    request = compiled.create_infer_request()
    feed = [next(inputs[name] for name in port.names if name in inputs) for port in compiled.inputs]

    def call() -> Any:
        return request.infer(feed, share_inputs=True, share_outputs=True)

    def outputs(result: Any) -> list[np.ndarray]:
        return [np.array(value) for value in result.to_tuple()]

    if job.framework == "openvino-ops":
        from subtune.bench.own_account import openvino_seconds

        return Peer(call, outputs, lambda calls: [openvino_seconds(request) for _ in range(calls) if call()])
    return Peer(call, outputs)


def _torch(job: Job, inputs: Arrays) -> Peer:
    """PyTorch, eager or compiled by inductor with frozen weights."""
    import torch

    from subtune.bench.torch_arrays import as_array
    from subtune.bench.torch_source import prepared

    torch.set_num_threads(job.threads)
    module, tensors, via = prepared(job, inputs, "cpu")
    if job.framework == "torch-dynamic":
        run = _for_all_shapes(job.path, module, tensors)
    else:
        run = _compiled_by_inductor(module, tensors) if job.framework == "torch-compile" else module

    def call() -> Any:
        with torch.inference_mode():
            return run(*tensors)

    def outputs(result: Any) -> list[np.ndarray]:
        return [as_array(tensor) for tensor in (result if isinstance(result, tuple | list) else [result])]

    return Peer(call, outputs, via=via)


def _reference(job: Job, inputs: Arrays) -> Peer:
    """A case's function in float64, once."""
    from subtune.bench.coverage.torch_dialect import reference

    found = reference(job.path, [inputs[name] for name in job.names], "cpu", job.threads)
    return Peer(lambda: found)


def _compiled_by_inductor(module: Any, tensors: list[Any]) -> Any:
    """`module` compiled; without inductor's pattern matcher where that fails, as on BERT's masked attention."""
    import torch
    from torch._inductor import config

    torch._dynamo.reset()  # of the last model in this process
    config.freezing = True  # weights are constants: packed and folded while compiling, as others do
    try:
        return _tried(torch.compile(module), tensors)
    except Exception:
        torch._dynamo.reset()
        config.pattern_matcher = False
        return _tried(torch.compile(module), tensors)


_OF_ALL_SHAPES: dict[str, Any] = {}
"""The last compiled module, by its file: another shape of the same model finds it as it was left."""


def _for_all_shapes(path: str, module: Any, tensors: list[Any]) -> Any:
    """`module` compiled with symbolic dimensions; what it makes of the first shapes serves the next ones."""
    import torch
    from torch._inductor import config

    if path not in _OF_ALL_SHAPES:
        torch._dynamo.reset()
        config.freezing = True
        _OF_ALL_SHAPES.clear()
        _OF_ALL_SHAPES[path] = torch.compile(module, dynamic=True)
    return _tried(_OF_ALL_SHAPES[path], tensors)


def _tried(run: Any, tensors: list[Any]) -> Any:
    import torch

    with torch.inference_mode():
        run(*tensors)
    return run


def _numpy(job: Job, inputs: Arrays) -> Peer:
    from subtune.bench.numpy_model import NumpyModel

    model = NumpyModel(job.path, inputs)
    return Peer(model.run)


def _default(job: Job, inputs: Arrays) -> Peer:
    """TVM's own importer and default pipeline, for this processor."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(array.shape) for name, array in inputs.items()}
    mod = from_onnx(onnx.load(job.path), shape_dict=shapes, keep_params_in_input=False)
    target = tvm.target.Target(json.loads(job.target))
    with target:
        mod = relax.get_pipeline("zero")(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
    args = [tvm.runtime.tensor(inputs[name]) for name in job.names]  # in the model's order, as main's parameters are

    def outputs(result: Any) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in ([result] if hasattr(result, "numpy") else result)]

    return Peer(lambda: machine["main"](*args), outputs)


def _limit(job: Job, inputs: Arrays) -> Peer:
    from subtune.backends.cpu.limits import load_kernel

    return Peer(load_kernel(job.path, job.threads, is_cold=job.framework == "copy-cold"))


_LOADERS: Mapping[str, Loader] = {
    "subtune": _subtune,
    "onnxruntime": _onnxruntime,
    "openvino-f32": _openvino,
    "openvino": _openvino,
    "torch-compile": _torch,
    "torch-dynamic": _torch,
    "torch": _torch,
    STATIC: _subtune,
    ONE_KERNEL: _subtune,
    BUCKETS: padded,
    REFERENCE: _reference,
    AGREEMENT: agreement,
    "numpy": _numpy,
    "default": _default,
    "onnxruntime-ops": _onnxruntime,
    "openvino-ops": _openvino,
    "fma": _limit,
    "copy": _limit,
    "copy-cold": _limit,
}

_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "subtune": ("subtune.artifact",),
    "onnxruntime": ("onnxruntime",),
    "openvino-f32": ("openvino",),
    "openvino": ("openvino",),
    "torch-compile": ("torch", "onnx", "torch._inductor.compile_fx"),
    "torch-dynamic": ("torch", "onnx", "torch._inductor.compile_fx"),
    "torch": ("torch", "onnx"),
    STATIC: ("subtune.artifact",),
    ONE_KERNEL: ("subtune.artifact",),
    BUCKETS: ("subtune.artifact",),
    REFERENCE: ("torch",),
    AGREEMENT: ("torch",),
    "numpy": ("onnx",),
    "default": ("onnx", "tvm", "tvm.relax.frontend.onnx"),
    "onnxruntime-ops": ("onnxruntime",),
    "openvino-ops": ("openvino",),
    "fma": ("subtune.runtime",),
    "copy": ("subtune.runtime",),
    "copy-cold": ("subtune.runtime",),
}

OWN_ACCOUNTS = {"onnxruntime": "onnxruntime-ops", "openvino-f32": "openvino-ops"}
"""Frameworks that say what their operators took, by the name under which their word is taken."""
LIMITS = ("fma", "copy", "copy-cold")
_NO_PEERS = ("subtune", STATIC, BUCKETS, ONE_KERNEL, REFERENCE, AGREEMENT, *LIMITS, *OWN_ACCOUNTS.values())
AGAINST = tuple(name for name in _LOADERS if name not in _NO_PEERS)
"""Every framework that subtune can be timed against."""
PEERS = Peers(_LOADERS, AGAINST, ("onnxruntime", "default"), is_pinned=True, libraries=_LIBRARIES)

"""Operators of Relay that have no place here, with the reason an error gives beside their name."""

from __future__ import annotations

_RANDOM = "draws random numbers, which is not supported"
_SPARSE = "makes a sparse tensor's shape at run time, which is not supported"
_TRAINING = "belongs to training: save the module that infers"
_BITS = "computes with single bits, which is not supported"
_SPARSE_PRODUCT = "computes with sparse weights, which is not supported: save the module before they are made sparse"
_MEMORY = "is memory management of a module that TVM had lowered already: save the module before relay.build"
_TUNED = "is a layout that TVM's tuner wrote: save the module before tuning"

REFUSED: dict[str, str] = {
    "random.multinomial": _RANDOM,
    "random.normal": _RANDOM,
    "random.threefry_generate": _RANDOM,
    "random.threefry_split": _RANDOM,
    "random.uniform": _RANDOM,
    "sparse_fill_empty_rows": _SPARSE,
    "sparse_reshape": _SPARSE,
    "unique": "makes a shape of values that are known at run time only",
    "auto_scheduler_layout_transform": _TUNED,
    "meta_schedule_layout_transform": _TUNED,
    "memory.alloc_storage": _MEMORY,
    "memory.alloc_tensor": _MEMORY,
    "memory.kill": _MEMORY,
    "memory.invoke_tvm_op": _MEMORY,
    "memory.shape_func": _MEMORY,
    "vm.invoke_tvm_op": _MEMORY,
    "vm.reshape_tensor": _MEMORY,
    "vm.shape_func": _MEMORY,
    "call_lowered": _MEMORY,
    "nn.avg_pool2d_grad": _TRAINING,
    "nn.max_pool2d_grad": _TRAINING,
    "nn.conv2d_backward_weight": _TRAINING,
    "relay.op.annotation.simulated_quantize": "stands for a quantisation that was not realised",
    "nn.bitpack": _BITS,
    "nn.bitserial_conv2d": _BITS,
    "nn.bitserial_dense": _BITS,
    "nn.sparse_add": _SPARSE_PRODUCT,
    "nn.sparse_conv2d": _SPARSE_PRODUCT,
    "nn.sparse_transpose": _SPARSE_PRODUCT,
    "nn.fifo_buffer": "keeps a state between calls, which is not supported",
    "parser.MetaRef": "refers to metadata that the file does not have",
    "torch_op": "calls PyTorch, which is not there",
}

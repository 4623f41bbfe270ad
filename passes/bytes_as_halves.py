"""Convolutions of few channels of bytes, as tensor cores read them: every number and every sum is as it was.

    astype(conv2d(x: uint8, w: int8) + b: int32, float32)
->  conv2d(astype(x, float16), w: float16, out float32) + float32(b)      where no sum comes to 2^24
->  astype(conv2d(pad(x), pad(w)) + b, float32)                           of an image that is turned, to 4 channels

Tensor cores read bytes in rows of 16 channels. A network's first convolution has three; there are kernels that read
whole windows, for halves, and on Hopper for pixels of whole words. A half holds every byte, float32 every integer below
2^24.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.forms import Forms
from subtune.core.numerics import BYTES
from subtune.passes.exprs import CONVOLUTIONS, Expr, array_of, convolved, dtype_of, make_const, op_name
from subtune.passes.rewriter import Walk, rewrite

_HELD = 1 << 24
_MOST_COLUMNS = 256
"""Of a multiplication."""
_LARGEST = 255
"""Of a byte, with or without a sign."""


def bytes_as_halves(mod: tvm.IRModule, forms: Forms) -> tvm.IRModule:
    """Convolutions whose channels are fewer than `forms.byte_row`; see `Forms.byte_word`."""
    if forms.byte_row == 1:
        return mod

    def rule(walk: Walk, cast: Call) -> Expr | None:
        return _settled(walk, cast, forms) if dtype_of(cast) == "float32" else None

    return rewrite(mod, {"relax.astype": (rule,)})


def _settled(walk: Walk, cast: Call, forms: Forms) -> Expr | None:
    total = walk.defined_by(cast.args[0], "relax.add")
    bias = None if total is None else array_of(total.args[1])
    conv = walk.definition(cast.args[0] if total is None else total.args[0])
    if op_name(conv) not in CONVOLUTIONS or (total is not None and bias is None):
        return None
    data, weight = conv.args[0], array_of(conv.args[1])
    if weight is None or dtype_of(data) not in BYTES or str(weight.dtype) not in BYTES:
        return None
    layout = str(conv.attrs.kernel_layout)
    if int(conv.attrs.groups) > 1 or weight.shape[layout.index("I")] >= forms.byte_row:
        return None
    if forms.byte_word and layout == "OHWI" and _has_pixels_of_words(walk, data, weight.shape, forms.byte_word):
        if weight.shape[-1] == forms.byte_word:
            return None
        made = walk.emit(_of_words(conv, weight, forms.byte_word))
        if total is not None:
            made = walk.emit(relax.op.add(made, total.args[1]))
        return relax.op.astype(made, "float32")
    summed = tuple(axis for axis, letter in enumerate(layout) if letter != "O")
    largest = _LARGEST * np.abs(weight.astype(np.int64)).sum(summed).max()
    largest += 0 if bias is None else np.abs(bias.astype(np.int64)).max()
    if largest >= _HELD:
        return None
    halves = _as_halves(walk, data), make_const(weight.astype(np.float16))
    made = convolved(conv, *halves, out_dtype="float32")
    return made if bias is None else relax.op.add(made, make_const(bias.astype(np.float32)))


def _has_pixels_of_words(walk: Walk, data: Expr, weight: tuple[int, ...], word: int) -> bool:
    """Whether a kernel for first convolutions reads pixels of `word` bytes, which cost a copy of the image nothing."""
    out, height, width, channels = weight
    is_filled = channels == word or op_name(walk.definition(data)) == "relax.permute_dims"
    return is_filled and word // 2 < channels <= word and height * width > 1 and out <= _MOST_COLUMNS


def _of_words(conv: Call, weight: np.ndarray, word: int) -> Expr:
    more = word - weight.shape[-1]
    data = relax.op.nn.pad(conv.args[0], [0, 0, 0, 0, 0, 0, 0, more])
    return convolved(conv, data, make_const(np.pad(weight, [(0, 0), (0, 0), (0, 0), (0, more)])))


def _as_halves(walk: Walk, data: Expr) -> Expr:
    """The cast belongs to what makes the bytes: copies of them, which follow, are of halves then."""
    made = walk.definition(data)
    if op_name(made) in ("relax.permute_dims", "relax.nn.pad") and walk.has_one_use(data):
        inner = _as_halves(walk, made.args[0])
        return tvm.ir.Call(made.op, [inner, *list(made.args)[1:]], made.attrs, made.ty_args)
    return relax.op.astype(data, "float16")

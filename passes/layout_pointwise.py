"""Pointwise convolutions to few channels, of an input whose channels are first: products that read it where it lies.

    conv2d(x[n, i, h, w], W[o, i, 1, 1])  ->  reshape(matmul(W[o, i], reshape(x, [n, i, h * w])), [n, o, h, w])

Channels last, all of the input would be turned first, which takes longer than the products. The view moves down
through what follows element by element, so that bias and activation stay in the product's kernel.
"""

from __future__ import annotations

from math import prod

from tvm import relax
from tvm.ir import Call

from subtune.passes.elementwise import BINARY, UNARY, rebuilt
from subtune.passes.exprs import Expr, dtype_of, ints, op_name, shape_of
from subtune.passes.layout_planes import LEAST_WIDTH
from subtune.passes.rewriter import Rules, Walk

MOST_CHANNELS = 20
"""Of the result: with more, multiplying an element takes longer than reading it from memory (`Forms.ops_per_byte`)."""

_LAYOUTS = {"relax.nn.conv1d": "NCW", "relax.nn.conv2d": "NCHW", "relax.nn.conv3d": "NCDHW"}


def as_product(walk: Walk, call: Call) -> Expr | None:
    """The rule on convolutions."""
    attrs, data, weight, result = call.attrs, shape_of(call.args[0]), shape_of(call.args[1]), shape_of(call)
    if (str(attrs.data_layout), str(attrs.out_layout)) != (_LAYOUTS[op_name(call)],) * 2:
        return None
    if data is None or weight is None or result is None or dtype_of(call) != "float32" or walk.half:
        return None
    if prod(weight[2:]) != 1 or int(attrs.groups) != 1 or max(ints(attrs.strides)) != 1 or any(ints(attrs.padding)):
        return None
    pixels = prod(data[2:])
    if weight[0] > MOST_CHANNELS or pixels < LEAST_WIDTH or not _is_own(walk, call.args[0]):
        return None
    rows = relax.op.reshape(call.args[0], (*data[:2], pixels))
    product = relax.op.matmul(relax.op.reshape(call.args[1], weight[:2]), rows)
    return relax.op.reshape(product, result)


def _is_own(walk: Walk, expr: Expr) -> bool:
    """Whether it is an input of the model that nobody else reads: of others, channels may be last already."""
    is_input = isinstance(expr, relax.Var) and not isinstance(expr, relax.DataflowVar) and expr not in walk.defs
    return is_input and walk.has_one_use(expr)


def _pixels(walk: Walk, expr: Expr) -> Expr | None:
    """The [n, c, h * w] tensor of a product of which `expr` is the view [n, c, h, w], or None."""
    view = walk.defined_by(expr, "relax.reshape")
    if view is None:
        return None
    inner, outer = shape_of(view.args[0]), shape_of(expr)
    if inner is None or outer is None or len(inner) != 3 or len(outer) < 4 or inner[:2] != outer[:2]:
        return None
    made = walk.definition(view.args[0])
    return view.args[0] if op_name(made) in (*UNARY, *BINARY, "relax.matmul") else None


def sink_unary(walk: Walk, call: Call) -> Expr | None:
    """`relu(view(y))` -> `view(relu(y))`."""
    pixels = _pixels(walk, call.args[0])
    return None if pixels is None else relax.op.reshape(rebuilt(call, [pixels]), shape_of(call))


def sink_binary(walk: Walk, call: Call) -> Expr | None:
    """`view(y) + bias` and `view(y) + r` -> `view(y + bias)` and `view(y + view(r))`."""
    shape = shape_of(call)
    found = [_pixels(walk, arg) for arg in call.args]
    if shape is None or all(one is None or shape_of(a) != shape for one, a in zip(found, call.args, strict=True)):
        return None
    args = [
        one if one is not None and shape_of(arg) == shape else _of_pixels(arg, shape)
        for arg, one in zip(call.args, found, strict=True)
    ]
    return None if any(arg is None for arg in args) else relax.op.reshape(rebuilt(call, args), shape)


def _of_pixels(arg: Expr, shape: tuple[int, ...]) -> Expr | None:
    """The other operand: a whole tensor, or what is one number for all pixels of a channel."""
    given = shape_of(arg)
    if given is None:
        return None
    if given == shape:
        return relax.op.reshape(arg, (*shape[:2], prod(shape[2:])))
    padded = (1,) * (len(shape) - len(given)) + given
    return relax.op.reshape(arg, (*padded[:2], 1)) if prod(padded[2:]) == 1 else None


POINTWISE: Rules = {
    **dict.fromkeys(_LAYOUTS, (as_product,)),
    **dict.fromkeys(UNARY, (sink_unary,)),
    **dict.fromkeys(BINARY, (sink_binary,)),
}

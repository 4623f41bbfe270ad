"""Pointwise convolutions to few channels, of an input whose channels are first: products that read it where it lies.

    conv2d(x[n, i, h, w], W[o, i, 1, 1])  ->  reshape(matmul(W[o, i], reshape(x, [n, i, h * w])), [n, o, h, w])

Of g groups, each is a product of its own: matmul(W[g, o, i], x[n, g, i, h * w]).

Channels last, all of the input would be turned first, which takes longer than the products. The view moves down
through what follows element by element, so that bias and activation stay in the product's kernel.
"""

from __future__ import annotations

from functools import partial
from math import prod

from tvm import relax
from tvm.ir import Call

from subtune.passes.elementwise import BINARY, UNARY, WITH_LOOKUPS
from subtune.passes.exprs import Expr, dtype_of, ints, op_name, shape_of
from subtune.passes.layout_planes import LEAST_WIDTH
from subtune.passes.rewriter import Rules, Walk
from subtune.passes.sink_views import past_binary, past_unary

MOST_CHANNELS = 20
"""Of the result: with more, multiplying an element takes longer than reading it from memory (`Forms.ops_per_byte`)."""

MOST_OF_HALVES = 16
"""The same of halves, where nothing else wants channels last: tensor cores would multiply faster, but not turn."""

MOST_PRODUCTS = 64
"""Of each element of the input and the result: with more, to turn both takes less time than what cores multiply slower
that read planes."""

_LAYOUTS = {"relax.nn.conv1d": "NCW", "relax.nn.conv2d": "NCHW", "relax.nn.conv3d": "NCDHW"}


def as_product(walk: Walk, call: Call, is_alone: bool = False) -> Expr | None:
    """The rule on convolutions. Of one that `is_alone`, the result is not turned either."""
    attrs, data, weight, result = call.attrs, shape_of(call.args[0]), shape_of(call.args[1]), shape_of(call)
    if (str(attrs.data_layout), str(attrs.out_layout)) != (_LAYOUTS[op_name(call)],) * 2:
        return None
    if data is None or weight is None or result is None or dtype_of(call) != "float32":
        return None
    if prod(weight[2:]) != 1 or max(ints(attrs.strides)) != 1 or any(ints(attrs.padding)):
        return None
    groups, pixels = int(attrs.groups), prod(data[2:])
    made, read = weight[0] // groups, weight[1]
    if walk.half:
        is_thin = is_alone and made <= MOST_OF_HALVES
    else:
        is_thin = made <= MOST_CHANNELS or (is_alone and made * read <= MOST_PRODUCTS * (made + read))
    is_depthwise = 1 < groups == data[1]
    if not is_thin or is_depthwise or pixels < LEAST_WIDTH or not _is_own(walk, call.args[0]):
        return None
    of_groups = (groups,) if groups > 1 else ()
    rows = relax.op.reshape(call.args[0], (data[0], *of_groups, read, pixels))
    product = relax.op.matmul(relax.op.reshape(call.args[1], (*of_groups, made, read)), rows)
    return relax.op.reshape(product, result)


def _is_own(walk: Walk, expr: Expr) -> bool:
    """Whether it is an input of the model that nobody else reads: of others, channels may be last already."""
    if (cast := walk.defined_by(expr, "relax.astype")) is not None:  # of a model of halves
        return walk.has_one_use(expr) and _is_own(walk, cast.args[0])
    is_input = isinstance(expr, relax.Var) and not isinstance(expr, relax.DataflowVar) and expr not in walk.defs
    return is_input and walk.has_one_use(expr)


def _pixels(walk: Walk, expr: Expr) -> Expr | None:
    """The [n, c, h * w] or [n, g, c, h * w] tensor of a product of which `expr` is the view [n, c, h, w], or None."""
    view = walk.defined_by(expr, "relax.reshape")
    if view is None:
        return None
    inner, outer = shape_of(view.args[0]), shape_of(expr)
    if inner is None or outer is None or len(inner) not in (3, 4) or len(outer) < 3 or inner[0] != outer[0]:
        return None
    if prod(inner[1:-1]) != outer[1] or inner == outer:
        return None
    made = walk.definition(view.args[0])
    return view.args[0] if op_name(made) in (*UNARY, *BINARY, "relax.matmul") else None


def _of_channels(arg: Expr, view: tuple[int, ...], flat: tuple[int, ...]) -> Expr | None:
    """What is one number for all pixels of a channel."""
    given = shape_of(arg)
    if given is None:
        return None
    padded = (1,) * (len(view) - len(given)) + given
    channels = flat[1:-1] if padded[1] == view[1] else (1,) * len(flat[1:-1])
    return relax.op.reshape(arg, (padded[0], *channels, 1)) if prod(padded[2:]) == 1 else None


_VIEWS: Rules = {
    **dict.fromkeys(WITH_LOOKUPS, (past_unary(_pixels),)),
    **dict.fromkeys(BINARY, (past_binary(_pixels, _of_channels),)),
}
POINTWISE: Rules = {**_VIEWS, **dict.fromkeys(_LAYOUTS, (as_product,))}
ALONE: Rules = {**_VIEWS, **dict.fromkeys(_LAYOUTS, (partial(as_product, is_alone=True),))}
"""Of a model with one convolution."""

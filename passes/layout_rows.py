"""Convolutions of one dim whose channels stay first: of images of one row, which have schedules in planes.

    conv1d(x[n, c, w], W[o, 1, k])  ->  reshape(conv2d(x[n, c, 1, w], W[o, 1, 1, k]), [n, o, w])

The view moves down through what follows element by element, so that bias and activation stay in the kernel.
"""

from __future__ import annotations

from tvm import relax
from tvm.ir import Call

from subtune.passes.elementwise import BINARY, UNARY, WITH_LOOKUPS
from subtune.passes.exprs import Expr, ints, op_name, shape_of
from subtune.passes.rewriter import Rules, Walk
from subtune.passes.sink_views import past_binary, past_unary


def as_image(walk: Walk, call: Call) -> Expr | None:
    """The rule on convolutions of one dim, where `layout_planes` leaves all of them so."""
    attrs, (before, after) = call.attrs, (ints(call.attrs.padding)[i] for i in (0, -1))
    image, filters = (relax.op.expand_dims(arg, 2) for arg in call.args)
    convolved = relax.op.nn.conv2d(
        image,
        filters,
        strides=[1, *ints(attrs.strides)],
        padding=[0, before, 0, after],
        dilation=[1, *ints(attrs.dilation)],
        groups=int(attrs.groups),
        out_dtype=attrs.out_dtype,
    )
    return relax.op.reshape(convolved, shape_of(call))


def _image(walk: Walk, expr: Expr) -> Expr | None:
    """The image of one row of which `expr` is the view [n, c, w], or None."""
    view = walk.defined_by(expr, "relax.reshape")
    if view is None:
        return None
    inner, outer = shape_of(view.args[0]), shape_of(expr)
    if inner is None or outer is None or len(outer) != 3 or inner != (*outer[:2], 1, outer[2]):
        return None
    made = walk.definition(view.args[0])
    return view.args[0] if op_name(made) in (*UNARY, *BINARY, "relax.nn.conv2d") else None


def _beside(arg: Expr, view: tuple[int, ...], _flat: tuple[int, ...]) -> Expr | None:
    given = shape_of(arg)
    if given is None:
        return None
    padded = (1,) * (len(view) - len(given)) + given
    return relax.op.reshape(arg, (*padded[:2], 1, *padded[2:]))


ROWS: Rules = {
    "relax.nn.conv1d": (as_image,),
    **dict.fromkeys(WITH_LOOKUPS, (past_unary(_image),)),
    **dict.fromkeys(BINARY, (past_binary(_image, _beside),)),
}

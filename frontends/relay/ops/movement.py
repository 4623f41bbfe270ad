"""Operators that give a tensor another shape or order its axes anew."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, array_const, axis_in, const, dtype, rank, shape
from subtune.frontends.relay.fold import small
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.twin import one_dtype
from subtune.frontends.shape_arithmetic import MAX_ELEMENTS


def to_shape(call: Call, x: Expr, dims: list[int] | tuple[int, ...]) -> Expr:
    """x as `dims`, which has to have as many elements."""
    if prod(dims) != prod(shape(x)):
        call.refuse(f"cannot make {list(dims)} of shape {list(shape(x))}")
    if (value := small(x)) is not None:
        return array_const(value.reshape(dims))
    return x if tuple(dims) == shape(x) else call.emit(relax.op.reshape(x, tuple(dims)))


def new_shape(call: Call, old: tuple[int, ...], code: list[int], allowzero: bool) -> list[int]:
    """The shape that `code` makes of `old`: 0 copies a dimension, -1 is what remains, -2 copies all further
    dimensions, -3 joins two, and -4 splits one into the next two entries, of which one may be -1.
    """
    dims: list[int] = []
    at, inferred = 0, -1
    # As Relay has it, -1 divides what is left when copied, joined and split dimensions are taken out.
    old_free, new_free = set(range(len(old))), set()
    entries = iter(code)

    def take(count: int = 1) -> list[int]:
        nonlocal at
        if at + count > len(old):
            call.refuse(f"copies dimensions that shape {list(old)} does not have, by newshape {code}")
        taken = list(old[at : at + count])
        old_free.difference_update(range(at, at + count))
        at += count
        return taken

    for entry in entries:
        if entry == 0 and not allowzero:
            dims += take()
        elif entry >= 0:
            new_free.add(len(dims))
            dims.append(entry)
            at += 1
        elif entry == -1:
            if inferred >= 0:
                call.refuse(f"infers two dimensions by newshape {code}")
            inferred = len(dims)
            dims.append(1)
            at += 1
        elif entry == -2:
            dims += take(max(len(old) - at, 0))
        elif entry == -3:
            dims.append(prod(take(2)))
        elif entry == -4:
            (whole,) = take()
            left, right = next(entries, 0), next(entries, 0)
            if left == right == -1 or 0 in (left, right):
                call.refuse(f"splits a dimension by newshape {code}")
            dims += [whole // right if left == -1 else left, whole // left if right == -1 else right]
        else:
            call.refuse(f"has {entry} in newshape {code}")
    if inferred >= 0:
        known = prod(dims[i] for i in new_free)
        total = prod(old[i] for i in old_free)
        dims[inferred] = total // known if known else 0
    return dims


def reshape(call: Call) -> Expr:
    if call.attr("newshape") is None and len(call.args) > 1:
        return dyn_reshape(call)
    code, old = call.need_ints("newshape"), shape(call.x)
    dims = new_shape(call, old, code, bool(call.attr("allowzero", False)))
    if prod(dims) != prod(old) and min(code, default=0) > 0:
        call.refuse(f"cannot make {dims} of shape {list(old)}: newshape has every size; write -1 for one that varies")
    return to_shape(call, call.x, dims)


def dyn_reshape(call: Call) -> Expr:
    code = call.known_ints(1, "its target shape")
    return to_shape(call, call.x, new_shape(call, shape(call.x), code, bool(call.attr("allowzero", False))))


def reverse_reshape(call: Call) -> Expr:
    """The entries are matched with the dimensions from the right."""
    code = call.need_ints("newshape")
    if -4 in code:
        call.refuse("splits a dimension from the right")
    dims = new_shape(call, shape(call.x)[::-1], code[::-1], bool(call.attr("allowzero", False)))
    return to_shape(call, call.x, dims[::-1])


def reshape_like(call: Call) -> Expr:
    """Replaces x's dimensions [lhs_begin, lhs_end) by the other's dimensions [rhs_begin, rhs_end)."""
    old, like = shape(call.x), shape(call.arg(1))

    def bound(name: str, dims: tuple[int, ...], default: int) -> int:
        value = default if call.attr(name) is None else call.one_int(name)
        return value + len(dims) if value < 0 else value

    head = old[: bound("lhs_begin", old, 0)]
    tail = old[bound("lhs_end", old, len(old)) :]
    middle = like[bound("rhs_begin", like, 0) : bound("rhs_end", like, len(like))]
    return to_shape(call, call.x, [*head, *middle, *tail])


def transpose(call: Call) -> Expr:
    x = call.x
    axes = call.ints("axes")
    perm = list(range(rank(x)))[::-1] if axes is None else [axis_in(a, rank(x)) for a in axes]
    if sorted(perm) != list(range(rank(x))):
        call.refuse(f"has axes {axes} for rank {rank(x)}")
    if (value := small(x)) is not None:
        return array_const(value.transpose(perm))
    return x if perm == sorted(perm) else relax.op.permute_dims(x, perm)


def _squeezed(call: Call, axes: list[int] | None) -> Expr:
    dims = shape(call.x)
    at = {i for i, d in enumerate(dims) if d == 1} if axes is None else {axis_in(a, len(dims)) for a in axes}
    if any(dims[a] != 1 for a in at):
        call.refuse(f"removes an axis of shape {list(dims)} that is not 1")
    return to_shape(call, call.x, [d for i, d in enumerate(dims) if i not in at])


def squeeze(call: Call) -> Expr:
    return _squeezed(call, call.ints("axis"))


def dyn_squeeze(call: Call) -> Expr:
    return _squeezed(call, call.known_ints(1, "its axes"))


def _expanded(call: Call, axis: int) -> Expr:
    count, dims = call.one_int("num_newaxis", 1), list(shape(call.x))
    at = axis_in(axis, len(dims) + 1)
    return to_shape(call, call.x, [*dims[:at], *[1] * count, *dims[at:]])


def expand_dims(call: Call) -> Expr:
    return _expanded(call, call.one_int("axis"))


def dyn_expand_dims(call: Call) -> Expr:
    return _expanded(call, call.known_ints(1, "its axis")[0])


def _joinable(call: Call) -> tuple[Expr, ...]:
    parts = call.fields(0)
    if not parts or any(isinstance(p, tuple) for p in parts):
        call.refuse("joins no tensors")
    parts = one_dtype(call, parts)
    if len({rank(p) for p in parts}) > 1:
        call.refuse(f"joins tensors of ranks {sorted({rank(p) for p in parts})}")
    return parts


def concatenate(call: Call) -> Expr:
    parts = _joinable(call)
    axis = call.axis(rank(parts[0]), 0)
    if len({shape(p)[:axis] + shape(p)[axis + 1 :] for p in parts}) > 1:
        call.refuse(f"joins shapes {[list(shape(p)) for p in parts]} along axis {axis}")
    full = [p for p in parts if 0 not in shape(p)] or [parts[0]]
    return full[0] if len(full) == 1 else relax.op.concat(full, axis=axis)


def stack(call: Call) -> Expr:
    """Concatenates along a new axis."""
    parts = _joinable(call)
    axis = call.axis(rank(parts[0]) + 1, 0)
    if len({shape(p) for p in parts}) > 1:
        call.refuse(f"stacks shapes {[list(shape(p)) for p in parts]}")
    dims = shape(parts[0])
    wide = [to_shape(call, p, [*dims[:axis], 1, *dims[axis:]]) for p in parts]
    return wide[0] if len(wide) == 1 else relax.op.concat(wide, axis=axis)


def broadcast(call: Call, x: Expr, target: list[int] | tuple[int, ...]) -> Expr:
    """x broadcast to exactly `target`."""
    try:
        fits = np.broadcast_shapes(shape(x), tuple(target)) == tuple(target)
    except ValueError:
        fits = False
    if not fits:
        call.refuse(f"cannot broadcast {list(shape(x))} to {list(target)}")
    if 0 in target:
        return const(np.empty(target), dtype(x))
    if (value := small(x)) is not None and prod(target) <= MAX_ELEMENTS:
        return array_const(np.broadcast_to(value, target))
    return x if shape(x) == tuple(target) else relax.op.broadcast_to(x, tuple(target))


def broadcast_to(call: Call) -> Expr:
    return broadcast(call, call.x, call.need_ints("shape"))


def dyn_broadcast_to(call: Call) -> Expr:
    return broadcast(call, call.x, call.known_ints(1, "its target shape"))


def broadcast_to_like(call: Call) -> Expr:
    return broadcast(call, call.x, shape(call.arg(1)))


def _collapsed(call: Call, target: list[int]) -> Expr:
    """The adjoint of broadcasting: sums over the axes that broadcasting would make of `target`."""
    x = call.x
    extra = rank(x) - len(target)
    if extra < 0 or any(t not in (1, d) for t, d in zip(target, shape(x)[extra:], strict=True)):
        call.refuse(f"cannot sum {list(shape(x))} to {target}")
    axes = [i for i, d in enumerate(shape(x)) if i < extra or (target[i - extra] == 1 and d != 1)]
    if axes:
        x = call.onnx("ReduceSum", x, const(axes, "int64"), keepdims=1)
    return to_shape(call, call.emit(x), target)


def collapse_sum_to(call: Call) -> Expr:
    target = call.ints("shape")
    return _collapsed(call, call.known_ints(1, "its target shape") if target is None else target)


def collapse_sum_like(call: Call) -> Expr:
    return _collapsed(call, list(shape(call.arg(1))))


CONVERTERS: dict[str, Converter] = {
    "reshape": reshape,
    "dyn.reshape": dyn_reshape,
    "contrib_reverse_reshape": reverse_reshape,
    "_contrib_reverse_reshape": reverse_reshape,
    "reshape_like": reshape_like,
    "transpose": transpose,
    "squeeze": squeeze,
    "dyn.squeeze": dyn_squeeze,
    "expand_dims": expand_dims,
    "dyn.expand_dims": dyn_expand_dims,
    "concatenate": concatenate,
    "stack": stack,
    "broadcast_to": broadcast_to,
    "dyn.broadcast_to": dyn_broadcast_to,
    "broadcast_to_like": broadcast_to_like,
    "collapse_sum_to": collapse_sum_to,
    "collapse_sum_like": collapse_sum_like,
}

"""What a workload adds up: products, two sums of them (a convolution and its block's shortcut), a variance."""

from __future__ import annotations

from typing import Any

from subtune.core.workload import Workload


def adds_up_sums(workload: Workload) -> bool:
    """Whether a float is added to another, and they come from sums of products that are not the same."""
    import tvm_ffi
    from tvm import tirx

    from subtune.tir.expressions import loads

    origins: dict[Any, frozenset[Any]] = {}
    found = False

    def read(value: Any) -> frozenset[Any]:
        return frozenset().union(*(origins.get(load.source, frozenset()) for load in loads(value)))

    def stored(store: Any) -> None:
        if is_sum_of_products(store):
            origins[store.buffer] = frozenset({store.buffer})
            return
        tvm_ffi.structural_walk(store.value, ((tirx.Add, tirx.Sub), added))
        origins[store.buffer] = origins.get(store.buffer, frozenset()) | read(store.value)

    def added(node: Any) -> None:
        nonlocal found
        sides = read(node.a), read(node.b)
        found = found or ("float" in str(node.ty) and all(sides) and sides[0] != sides[1])

    tvm_ffi.structural_walk(workload.func.body, (tirx.BufferStore, stored))
    return found


def is_sum_of_products(store: Any) -> bool:
    """x[..] = x[..] + a * b, of floats, a cast round the product or not."""
    from tvm import tirx

    return any(isinstance(one, tirx.Mul) for one in summands(store))


def adds_squared_differences(store: Any) -> bool:
    """x[..] = x[..] + (a - b) * (a - b), of floats: what a variance is made of."""
    from tvm import tirx

    from subtune.tir.expressions import is_same

    products = [one for one in summands(store) if isinstance(one, tirx.Mul)]
    return any(isinstance(one.a, tirx.Sub) and is_same(one.a, one.b) for one in products)


def summands(store: Any) -> list[Any]:
    """What `store` adds to a float, `a` of x[..] = x[..] + a; nothing where it does something else."""
    from tvm import tirx

    from subtune.tir.expressions import is_load_of

    if not isinstance(store.value, tirx.Add) or "float" not in str(store.value.ty):
        return []
    sides = [side.value if isinstance(side, tirx.Cast) else side for side in (store.value.a, store.value.b)]
    others = [side for side in sides if not is_load_of(side, store.buffer)]
    return others if len(others) == 1 else []

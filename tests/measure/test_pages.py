"""Memory of large arrays is used again when nobody sees it any more."""

from __future__ import annotations

import gc

from subtune.measure.guarded import Guarded
from subtune.measure.pages import Holder, Pages

MB = 1 << 20


def test_a_block_is_used_again_after_its_last_view() -> None:
    pages = Pages(64 * MB)
    array = pages.array(4 * MB)
    place, view = array.ctypes.data, array[5:10]
    del array
    other = pages.array(4 * MB)
    assert other.ctypes.data != place, "a view is left"
    del view
    assert pages.array(3 * MB).ctypes.data == place


def test_little_is_not_put_into_much_and_too_much_is_not_kept() -> None:
    pages = Pages(40 * MB)
    large = pages.array(40 * MB).ctypes.data
    assert pages.array(4 * MB).ctypes.data != large
    assert pages.array(20 * MB).ctypes.data == large
    too_large = pages.array(64 * MB)
    del too_large
    assert sum(size for size, _, _ in pages._free) <= 40 * MB


def test_a_kernels_tensor_holds_it() -> None:
    one = Guarded(4 * MB, (MB,), "float32")
    place, tensor = one.bytes.ctypes.data, one.tensor
    del one
    gc.collect()
    other = Guarded(4 * MB, (MB,), "float32")
    assert other.bytes.ctypes.data != place
    del tensor
    gc.collect()
    assert Guarded(4 * MB, (MB,), "float32").bytes.ctypes.data == place
    assert not other.overwritten()


def test_whoever_held_it_before_lets_go() -> None:
    class User:
        has_gone = False

        def let_go(self) -> None:
            self.has_gone = True

    holder, first, second = Holder(), User(), User()
    for user in (first, first, second):
        holder.take(user)
    assert (first.has_gone, second.has_gone) == (True, False)

"""TVM's tensor intrinsics in two seconds instead of fifteen.

Every TVMScript function asks `inspect.stack()` for the frames around it, and every call of an inline one
`inspect.getouterframes()`: both read and parse the source file of each. Only the frames themselves are looked at.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_lock = threading.RLock()


class _Frame(tuple[Any, ...]):
    """What `inspect.FrameInfo` says, without the source lines."""

    @classmethod
    def of(cls, frame: FrameType) -> _Frame:
        return cls((frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None))

    frame = property(lambda self: self[0])
    filename = property(lambda self: self[1])
    lineno = property(lambda self: self[2])
    function = property(lambda self: self[3])
    code_context = property(lambda self: self[4])
    index = property(lambda self: self[5])


def _stack(context: int = 1) -> list[_Frame]:
    return _outer_frames(sys._getframe(1))


def _outer_frames(frame: FrameType | None, context: int = 1) -> list[_Frame]:
    frames = []
    while frame is not None:
        frames.append(_Frame.of(frame))
        frame = frame.f_back
    return frames


@contextmanager
def cheap_stack() -> Iterator[None]:
    """Inside, `inspect.stack()` and `inspect.getouterframes()` leave the source files alone."""
    with _lock:
        originals = inspect.stack, inspect.getouterframes
        inspect.stack, inspect.getouterframes = _stack, _outer_frames  # type: ignore[assignment]
        try:
            yield
        finally:
            inspect.stack, inspect.getouterframes = originals


def tensor_intrinsics() -> Any:
    """The package `tvm.s_tir.tensor_intrin`, whose import registers TVM's tensor intrinsics."""
    with cheap_stack():
        return importlib.import_module("tvm.s_tir.tensor_intrin")

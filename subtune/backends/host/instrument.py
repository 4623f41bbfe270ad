"""The calls that Relax's virtual machine makes of a model's kernels, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tvm_ffi

T = TypeVar("T")

_OF_THE_MACHINE = "vm."
"""How the names of calls begin that are no kernels."""
_GO_ON = 0
"""TVM's `VMInstrumentReturnKind.NO_OP`."""


def calls_between(executable: Any, main: Callable[[], Any], mark: Callable[[], T]) -> list[tuple[str, T, T]]:
    """Run `main` of a program in bytecode: the name of each kernel, and what `mark` gave before and after it."""
    found: list[tuple[str, T, T]] = []
    begun: list[T] = []

    def look(func: Any, name: str, is_before: bool, result: Any, *args: Any) -> int:
        if name.startswith(_OF_THE_MACHINE):
            return _GO_ON
        if is_before:
            begun.append(mark())
        else:
            found.append((name, begun.pop(), mark()))
        return _GO_ON

    executable["set_instrument"](tvm_ffi.convert(look))
    try:
        main()
    finally:
        executable["set_instrument"](None)
    return found

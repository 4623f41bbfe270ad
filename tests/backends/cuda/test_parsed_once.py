"""Kernels in TVMScript of one text: what its names mean is each one's own."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.script import tirx as T
from tvm.script.parser.core.diagnostics import Source

from subtune.backends.cuda.building.parsed_once import parsed_once


def stores(value: int, count: int) -> Any:
    @T.inline
    def store(buffer: Any, place: Any) -> None:
        buffer[place] = value

    @T.prim_func(check_well_formed=False)
    def main(out: T.Buffer((8,), "int32")) -> None:
        for i in T.serial(count):
            store(out, i)

    return main


def other(count: int) -> Any:
    @T.prim_func(check_well_formed=False)
    def main(out: T.Buffer((8,), "int32")) -> None:
        for i in T.serial(count):
            out[i] = 5

    return main


def test_the_same_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    real = Source.as_ast
    monkeypatch.setattr(Source, "as_ast", lambda self: parsed.append(self.source_name) or real(self))
    plain = [stores(1, 3), stores(2, 8), other(4)]
    times = len(parsed)
    for _ in range(2):
        with parsed_once():
            again = [stores(1, 3), stores(2, 8), other(4)]
        for one, like in zip(again, plain, strict=True):
            tvm.ir.assert_structural_equal(one, like)
    assert len(parsed) - times <= 3, "of three texts, once each"
    assert len(parsed) > times
    stores(1, 3)
    assert Source.as_ast(Source("x")) is not None


def test_outside_nothing_is_kept() -> None:
    read, parse = Source.__init__, Source.as_ast
    with parsed_once():
        assert Source.__init__ is not read
    with pytest.raises(RuntimeError), parsed_once():
        raise RuntimeError
    assert (Source.__init__, Source.as_ast) == (read, parse)

"""No operator is accepted that is not tested: every converter is named by a test of its numerics."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from subtune.frontends.relay.ops.converters import _FAMILIES, CONVERTERS
from subtune.frontends.relay.ops.refused import REFUSED

HERE = Path(__file__).parent


def _named() -> set[str]:
    """The operators of all cases in this directory: each test module of operators has them as `TESTED`."""
    found: set[str] = set()
    for path in sorted(HERE.glob("test_*.py")):
        if "\nTESTED" in path.read_text(encoding="utf-8"):
            found |= importlib.import_module(f"tests.frontends.relay.{path.stem}").TESTED
    return found


def test_every_converter_is__named() -> None:
    assert CONVERTERS.keys() - _named() == set()


def test_what_is_tested_exists() -> None:
    assert _named() - CONVERTERS.keys() == set()


def test_no_operator_has_two_converters() -> None:
    named = [op for family in _FAMILIES for op in family.CONVERTERS]
    assert sorted(named) == sorted(CONVERTERS)


@pytest.mark.parametrize("op", sorted(REFUSED))
def test_what_is_refused_says_why(op: str) -> None:
    assert op not in CONVERTERS
    assert REFUSED[op]

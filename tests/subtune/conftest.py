"""One warm measurer for all tests of measuring and tuning: starting processes is most of what they cost."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from subtune.device import CPU, CPUModel
from subtune.measure import LocalMeasurer

DOUBLES = Path(__file__).resolve().parent / "measure" / "doubles.py"


def load_doubles() -> ModuleType:
    if "doubles" not in sys.modules:
        spec = importlib.util.spec_from_file_location("doubles", DOUBLES)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["doubles"] = module
        spec.loader.exec_module(module)
    return sys.modules["doubles"]


@pytest.fixture(scope="session")
def doubles() -> ModuleType:
    return load_doubles()


@pytest.fixture(scope="session")
def device() -> CPUModel:
    return CPU("auto", threads=2)


@pytest.fixture(scope="session")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer(
        builders=2, schedule="doubles:schedule", search_path=[str(DOUBLES.parent)], build_limit_s=10, run_limit_s=2
    ) as used:
        yield used

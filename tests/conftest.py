"""For all tests: reproducible examples, no user's database, warm measurers (starting processes is most of what they
cost), one small artifact, which is read only: whoever changes it makes a copy first.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from hypothesis import settings

from subtune.backends.cpu.device import CPU, CPUModel
from subtune.measure import LocalMeasurer
from tests.measure.patient import PatientMeasurer
from tests.small_model import Builder, builder, small_onnx, small_reference
from tests.whole import IS_WHOLE

# Tests leave little garbage, and TVM's objects are none of the collector's: it looks for it a thirtieth as often. What
# is imported before the tests are collected is looked through only then.
gc.set_threshold(20_000, 10, 10)
gc.disable()

DOUBLES = Path(__file__).resolve().parent / "measure" / "doubles.py"

# The same examples in every run: a test that fails does so because of a change. The README says how to look for others.
settings.register_profile("suite", derandomize=True, deadline=None, max_examples=150)
settings.register_profile("fuzz", deadline=None, max_examples=5000)
settings.load_profile("suite")

# A shell that starts the tests in the background makes them, and all their children, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Two processes of tests share the cores: a thread of TVM's that waits by spinning takes one from whom it waits for.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a grid a third of the cases: the same ones in every run, whatever their parameters; and what is asked for."""
    grids: dict[str, list[pytest.Item]] = {}
    for one in [] if IS_WHOLE else items:
        if one.get_closest_marker("grid"):
            grids.setdefault(one.nodeid.partition("[")[0], []).append(one)
    asked = {argument.rpartition("::")[2] for argument in config.args}
    left: list[pytest.Item] = []
    for cases in grids.values():
        drawn = sorted(cases, key=lambda one: zlib.crc32(one.name.encode()))
        left += [one for one in drawn[-(-len(drawn) // 3) :] if one.name not in asked]
    config.hook.pytest_deselected(items=left)
    dropped = {id(one) for one in left}
    items[:] = [one for one in items if id(one) not in dropped]


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: garbage need not be looked for among it, again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads the user's database, or one that another process of the suite writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
    """Its workers may have 8 GiB: less than the doubles that hoard want, on any machine."""
    with PatientMeasurer(
        builders=2, schedule="doubles:schedule", search_path=[str(DOUBLES.parent)], memory_bytes=8 << 30
    ) as used:
        yield used


@pytest.fixture(scope="session")
def workers() -> Iterator[LocalMeasurer]:
    """Processes that build and time what users compile, as a compile would start them."""
    with LocalMeasurer() as used:
        yield used


@pytest.fixture(scope="session")
def build_artifact() -> Builder:
    return builder()


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(small_onnx(), path)
    return path


@pytest.fixture(scope="session")
def small_artifact(build_artifact: Builder, small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from subtune.artifact.manifest import sha256_of
    from subtune.core.manifest import Source

    path = tmp_path_factory.mktemp("artifact") / "small.subtune"
    build_artifact(small_onnx(), path, source=Source(str(small_model), sha256_of(small_model)))
    return path


@pytest.fixture
def own_artifact(small_artifact: Path, tmp_path: Path) -> Path:
    """A copy of the small artifact to damage."""
    return Path(shutil.copytree(small_artifact, tmp_path / "small.subtune"))


@pytest.fixture(scope="session")
def reference() -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    return small_reference

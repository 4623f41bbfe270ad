"""Tensors of a GPU: what is copied, on which stream, and who waits for whom. The driver is a stand-in on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from subtune.backends.cuda import api
from subtune.backends.cuda.dynamic_program import DynamicCUDAProgram
from subtune.core.domain import Domain, Symbol
from subtune.core.errors import InputError
from subtune.core.tensor_spec import TensorSpec

torch = pytest.importorskip("torch")

from subtune.integrations.torch.runner import on_gpu  # noqa: E402


class Driver:
    """The calls of CUDA's driver, done on the host as they come; what they were."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.memory: list[Any] = []

    def __call__(self, name: str, *args: Any) -> None:
        self.calls.append((name, args[-1].value if name == "cuMemcpyDtoDAsync_v2" else args and args[0]))
        if name == "cuMemAlloc_v2":
            self.memory.append(ctypes.create_string_buffer(args[1].value))
            args[0]._obj.value = ctypes.addressof(self.memory[-1])
        elif name.startswith("cuMemcpy"):
            ctypes.memmove(args[0].value, args[1].value, args[2].value)
        elif name == "cuStreamBeginCapture_v2":
            raise api.CudaError("no graphs here")

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(api, "_call", found)
    monkeypatch.setattr(api, "activate", lambda: None)
    return found


@pytest.fixture
def artifact(driver: Driver) -> Iterator[Any]:
    """`y = 2 * x` of `rows` floats; a second output is the input itself, which no kernel writes."""
    from subtune.core.memory_plan import Base, View

    def main(weights: int, arena: int, x: int, y: int, same: int, rows: int) -> None:
        given, taken = (np.ctypeslib.as_array((ctypes.c_float * rows).from_address(at)) for at in (x, y))
        taken[:] = 2 * given

    manifest = SimpleNamespace(
        kind="cuda",
        name="doubles",
        domain=Domain((Symbol.uniform("rows", (2, 3, 4)),)),
        inputs=(TensorSpec("x", ("rows",), "float32"),),
        outputs=(TensorSpec("y", ("rows",), "float32"), TensorSpec("same", ("rows",), "float32")),
        memory=SimpleNamespace(arena_nbytes=4, copies=((1, View(Base.INPUT, 0, (4,), "float32")),), returned=()),
        weights=(),
    )
    program = DynamicCUDAProgram(manifest, {"main": main}, np.zeros(4, np.uint8), lambda: None)  # type: ignore[arg-type]
    yield SimpleNamespace(manifest=manifest, program=program)
    vars(program).clear()  # what it has of the GPU is freed by the stand-in


def test_a_run_is_work_of_the_callers_stream(artifact: Any, driver: Driver) -> None:
    run = on_gpu(artifact, "cpu", lambda: 77)
    for rows in (3, 2, 3, 4):
        driver.calls.clear()
        x = torch.randn(2 * rows)[::2]
        found = run({"x": x})
        assert torch.equal(found["y"], 2 * x)
        assert torch.equal(found["same"], x)
        assert [stream for name, stream in driver.calls if name == "cuMemcpyDtoDAsync_v2"] == [77] * 4
        assert not any("Synchronize" in name or "HtoD" in name for name in driver.names())


def test_streams_take_turns(artifact: Any, driver: Driver) -> None:
    streams = iter((77, 78))
    run = on_gpu(artifact, "cpu", lambda: next(streams))
    run({"x": torch.ones(3)})
    assert "cuStreamWaitEvent" not in driver.names()
    assert driver.names()[-1] == "cuEventRecord"
    driver.calls.clear()
    run({"x": torch.ones(3)})
    assert driver.names()[0] == "cuStreamWaitEvent"
    driver.calls.clear()
    y, same = np.zeros(3, "float32"), np.zeros(3, "float32")
    artifact.program.run_at([np.ones(3, "float32"), y, same], (3,))
    assert driver.names()[0] == "cuEventSynchronize"
    assert y.tolist() == [2, 2, 2]
    assert same.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.ones(3, dtype=torch.float64), "input x has dtype float64"),
        (torch.ones(5), "rows"),
        (torch.ones(3, device="meta"), "input x is on meta"),
    ],
)
def test_other_tensors_are_refused(artifact: Any, x: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        on_gpu(artifact, "cpu", lambda: 0)({"x": x})

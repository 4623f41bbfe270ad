"""The three headers that NVRTC gets in place of libcu++'s: what TVM's sources take of them, and nothing left behind."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from subtune.backends.cuda.building import compiler as cuda_compiler
from subtune.backends.cuda.building import headers
from subtune.backends.cuda.building.headers import small_headers
from subtune.backends.cuda.device import CUDA

SOURCE = """
#include <cuda/std/cstdint>
#include <cuda/std/type_traits>
#include <cuda/std/limits>
using cuda::std::int32_t;
using cuda::std::uint8_t;
static_assert(cuda::std::is_same_v<int32_t, int> && sizeof(uint8_t) == 1, "");
static_assert(cuda::std::is_signed<float>::value && cuda::std::is_unsigned<uint8_t>::value, "");
static_assert(cuda::std::is_integral<long>::value && !cuda::std::is_signed<uint8_t>::value, "");
typedef cuda::std::conditional<true, int, float>::type chosen;
extern "C" __global__ void k(float* x) { x[chosen(0)] = cuda::std::numeric_limits<float>::infinity(); }
"""


def test_programs_get_them_inside_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    nvrtc = SimpleNamespace(nvrtcCreateProgram=lambda *args: seen.append(args))
    bindings = ModuleType("cuda.bindings")
    bindings.nvrtc = nvrtc  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    before = nvrtc.nvrtcCreateProgram
    with small_headers():
        nvrtc.nvrtcCreateProgram(b"source", b"name", 0, None, None)
    assert nvrtc.nvrtcCreateProgram is before
    (_, _, count, texts, names), *_ = seen
    assert names == [b"cuda/std/cstdint", b"cuda/std/type_traits", b"cuda/std/limits"]
    assert count == len(texts) == 3


@pytest.mark.skipif(cuda_compiler.compiler() != "nvrtc", reason="NVRTC is not installed")
def test_sources_compile_with_them() -> None:
    with CUDA("H100").target(), small_headers():
        from tvm.support.nvcc import compile_cuda

        assert bytes(compile_cuda(SOURCE, target_format="cubin", compiler="nvrtc"))[:4] == b"\x7fELF"


def test_what_needs_more_gets_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that these headers do not suffice for is compiled once more, with the standard ones."""
    from tvm.support import nvcc

    is_small = False
    calls = []

    class Small:
        def __enter__(self) -> None:
            nonlocal is_small
            is_small = True

        def __exit__(self, *_: object) -> None:
            nonlocal is_small
            is_small = False

    def compile_cuda(*_: Any, **__: Any) -> bytes:
        calls.append(is_small)
        if is_small:
            raise RuntimeError("Compilation error: no such type")
        return b"code"

    monkeypatch.setattr(cuda_compiler, "compiler", lambda: "nvrtc")
    monkeypatch.setattr(cuda_compiler, "small_headers", Small)
    monkeypatch.setattr(cuda_compiler, "_no_fast_math", nullcontext)
    monkeypatch.setattr(nvcc, "compile_cuda", compile_cuda)
    assert cuda_compiler._compiled("source of a kernel") == b"code"
    assert calls == [True, False]


def test_headers_are_found_beside_a_compiler_or_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc may be a script that calls another, and NVRTC's package needs no toolkit: TVM finds neither's headers."""

    def has_headers(root: Path) -> Path:
        (root / "include").mkdir(parents=True)
        (root / "include" / "cuda_runtime.h").touch()
        return root

    toolkit, package = tmp_path / "toolkit", has_headers(tmp_path / "nvidia" / "cu13")
    script, compiler = tmp_path / "bin" / "nvcc", toolkit / "bin" / "nvcc"
    spec = SimpleNamespace(submodule_search_locations=[str(package.parent)])
    monkeypatch.setattr(headers, "USUAL", tmp_path / "usual")
    monkeypatch.setattr(headers, "find_spec", lambda _: spec)
    for nvcc, expected in ((None, package), (script, package), (compiler, has_headers(toolkit))):
        monkeypatch.setattr(headers.shutil, "which", lambda _, nvcc=nvcc: nvcc and str(nvcc))
        assert headers.headers_home.__wrapped__() == str(expected)
    has_headers(headers.USUAL)
    monkeypatch.setattr(headers.shutil, "which", lambda _: None)
    assert headers.headers_home.__wrapped__() == str(headers.USUAL)


def test_a_script_is_asked_for_the_toolkit_that_it_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit, script = tmp_path / "cuda-13.0", tmp_path / "bin" / "nvcc"
    (toolkit / "include").mkdir(parents=True)
    (toolkit / "bin").mkdir()
    (toolkit / "include" / "cuda_runtime.h").touch()
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho '#$ TOP={toolkit}/bin/..' >&2\n")
    script.chmod(0o755)
    monkeypatch.setattr(headers, "USUAL", tmp_path / "usual")
    monkeypatch.setattr(headers, "find_spec", lambda _: None)
    monkeypatch.setattr(headers.shutil, "which", lambda _: str(script))
    assert headers.headers_home.__wrapped__() == str(toolkit)

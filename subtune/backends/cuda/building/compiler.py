"""CUDA source into machine code: with NVRTC where Python has it, else with nvcc. Neither needs a GPU."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from subtune.backends.cuda.building.binaries import token
from subtune.backends.cuda.building.headers import headers_found, small_headers
from subtune.backends.cuda.lowering.float_functions import every_function_exact, is_exact
from subtune.core.errors import TargetError

_log = logging.getLogger(__name__)

_collecting: list[dict[str, bytes]] = []
_known: dict[tuple[str, str, str], bytes] = {}
_KNOWN_LIMIT = 256
_MANY = 6
_NO_FAST_MATH = "TVM_CUDA_NVCC_NO_FAST_MATH"
_FAST_MATH = b"--use_fast_math"


def compiler() -> str:
    """`nvrtc`, `nvcc`, or "" where there is neither."""
    asked = os.environ.get("TVM_CUDA_COMPILE_MODE", "").lower()
    found = [
        name for name, is_there in (("nvrtc", _has_nvrtc()), ("nvcc", shutil.which("nvcc") is not None)) if is_there
    ]
    return asked if asked in found else (found or [""])[0]


@cache
def _has_nvrtc() -> bool:
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


def require_compiler() -> None:
    """Raise TargetError where nothing compiles CUDA."""
    if not compiler():
        raise TargetError(
            "nothing here compiles CUDA: install NVRTC (the packages cuda-bindings and nvidia-cuda-nvrtc) or nvcc"
        )


def compile_source(source: str, target: Any) -> bytes:
    """The cubin of CUDA C++ source for a TVM target of kind cuda.

    Raises:
        TargetError: there is no compiler, or it does not know the architecture.
        RuntimeError: the source does not compile; the compiler's text.
    """
    require_compiler()
    arch = str(target.attrs["arch"])
    key = (hashlib.sha256(source.encode()).hexdigest(), arch, str(is_exact()))
    if key not in _known:
        try:
            with target:
                made = _compiled(source)
        except RuntimeError as e:
            if any(
                words in str(e) for words in ("Unsupported gpu architecture", "invalid value for --gpu-architecture")
            ):
                raise TargetError(f"the CUDA compiler here ({compiler()}) does not build for {arch}") from e
            raise RuntimeError(_complaint(str(e))) from e
        while len(_known) >= _KNOWN_LIMIT:
            _known.pop(next(iter(_known)))
        _known[key] = bytes(made)
    return _known[key]


def _compiled(source: str) -> Any:
    from tvm.support.nvcc import compile_cuda

    options = [] if is_exact() else ["--ftz=true"]
    if source.count("__global__") > _MANY:  # their functions are optimised side by side
        options.append("--split-compile=0")
    compile_it = partial(compile_cuda, source, target_format="cubin", options=options, compiler=compiler())
    if compiler() != "nvrtc":
        return compile_it()
    with headers_found(), _no_fast_math():
        try:
            with small_headers():
                return compile_it()
        except RuntimeError as e:  # which needs more of the headers than we know, or is wrong
            _log.debug("compiled with libcu++'s headers: %s", _complaint(str(e)))
            return compile_it()


@contextmanager
def _no_fast_math() -> Iterator[None]:
    """Inside, NVRTC is not told what TVM always tells it: functions of float32 would have half their digits.

    What may be short is so in the source (`lowering/float_functions.py`).
    """
    from cuda.bindings import nvrtc

    compile_program = nvrtc.nvrtcCompileProgram

    def without(program: Any, _count: int, options: list[bytes]) -> Any:
        kept = [option for option in options if option != _FAST_MATH]
        return compile_program(program, len(kept), kept)

    nvrtc.nvrtcCompileProgram = without
    try:
        yield
    finally:
        nvrtc.nvrtcCompileProgram = compile_program


def _complaint(text: str) -> str:
    """The compiler's own words: nvcc's follow all of the source."""
    words = text.rpartition("Compilation error:")[2].strip()
    errors = [line for line in words.splitlines() if "error" in line.lower()]
    return "CUDA source does not compile: " + ("\n".join(errors[:5]) or words[-1000:])


@contextmanager
def collected(exactly: bool = False) -> Iterator[dict[str, bytes]]:
    """Inside, what TVM builds for CUDA keeps a token for its machine code, which is in the dictionary by its key.

    Args:
        exactly: every operation rounds as IEEE 754 says and as CUDA's functions do, whatever is stored.
    """
    _register()
    settings = ("TVM_COMPILE_FORCE_FALLBACK", _NO_FAST_MATH)
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(dict.fromkeys(settings, "1"))
    binaries: dict[str, bytes] = {}
    _collecting.append(binaries)
    try:
        with every_function_exact(exactly):
            yield binaries
    finally:
        _collecting.pop()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@cache
def _register() -> None:
    import tvm_ffi

    def postprocess(source: str, target: Any) -> str:
        if not _collecting:
            return source
        code = compile_source(str(source), target)
        key = hashlib.sha256(code).hexdigest()
        _collecting[-1][key] = code
        return token(key)

    tvm_ffi.register_global_func("tvm_callback_cuda_postproc", postprocess, override=True)

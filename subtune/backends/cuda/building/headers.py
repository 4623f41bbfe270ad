"""Where CUDA's headers are; and what TVM's CUDA sources take of three of them, in place of those.

They are most of a kernel's compilation: NVRTC needs 0.6 s for `cuda/std/cstdint`, `type_traits` and `limits`
(measured), and the rest of a kernel less.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

USUAL = Path("/usr/local/cuda")

_INTEGERS = """
#pragma once
namespace cuda { namespace std {
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
} }
"""
_TRAITS = """
#pragma once
namespace cuda { namespace std {
template <bool B> struct subtune_bool { static constexpr bool value = B; };
template <class T, class U> struct is_same : subtune_bool<false> {};
template <class T> struct is_same<T, T> : subtune_bool<true> {};
template <class T, class U> constexpr bool is_same_v = is_same<T, U>::value;
template <class T> struct is_floating_point : subtune_bool<is_same_v<T, float> || is_same_v<T, double>> {};
template <class T> struct is_integral
    : subtune_bool<is_same_v<T, bool> || is_same_v<T, char> || is_same_v<T, signed char> ||
                   is_same_v<T, unsigned char> || is_same_v<T, short> || is_same_v<T, unsigned short> ||
                   is_same_v<T, int> || is_same_v<T, unsigned> || is_same_v<T, long> || is_same_v<T, unsigned long> ||
                   is_same_v<T, long long> || is_same_v<T, unsigned long long>> {};
template <class T, bool = is_integral<T>::value || is_floating_point<T>::value>
struct is_signed : subtune_bool<false> {};
template <class T> struct is_signed<T, true> : subtune_bool<(T(-1) < T(0))> {};
template <class T> struct is_unsigned : subtune_bool<is_integral<T>::value && !is_signed<T>::value> {};
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T, class U> struct conditional { typedef T type; };
template <class T, class U> struct conditional<false, T, U> { typedef U type; };
} }
"""
_LIMITS = """
#pragma once
namespace cuda { namespace std {
template <class T> struct numeric_limits;
template <> struct numeric_limits<float> {
  static __device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
};
} }
"""
_HEADERS = {"cuda/std/cstdint": _INTEGERS, "cuda/std/type_traits": _TRAITS, "cuda/std/limits": _LIMITS}
_lock = threading.Lock()


@contextmanager
def small_headers() -> Iterator[None]:
    """Inside, programs that this process gives to NVRTC find these headers instead of libcu++'s."""
    from cuda.bindings import nvrtc

    create = nvrtc.nvrtcCreateProgram
    texts, names = ([x.encode() for x in part] for part in (_HEADERS.values(), _HEADERS))

    def with_headers(source: bytes, name: bytes, *_: Any) -> Any:
        return create(source, name, len(names), texts, names)

    with _lock, headers_found():
        nvrtc.nvrtcCreateProgram = with_headers
        try:
            yield
        finally:
            nvrtc.nvrtcCreateProgram = create


@contextmanager
def headers_found() -> Iterator[None]:
    """Inside, TVM takes CUDA's headers from where they are; it asks `CUDA_PATH`, and looks two levels above nvcc."""
    home = "" if "CUDA_PATH" in os.environ else headers_home()
    if home:
        os.environ["CUDA_PATH"] = home
    try:
        yield
    finally:
        if home:
            del os.environ["CUDA_PATH"]


@cache
def headers_home() -> str:
    """The directory that CUDA's `include` is in: nvcc's toolkit, the usual one, or a Python package; "" without any."""
    nvcc, nvidia = shutil.which("nvcc"), find_spec("nvidia")
    roots = _toolkits(nvcc) if nvcc else []
    roots.append(USUAL)
    for place in (nvidia.submodule_search_locations or ()) if nvidia else ():
        roots += [*sorted(Path(place).glob("cu[0-9]*"), reverse=True), Path(place, "cuda_runtime")]
    return next((str(root) for root in roots if _has_headers(root)), "")


def _toolkits(nvcc: str) -> list[Path]:
    """The toolkit that nvcc lies in; where it is a script that calls another, the one that it says it takes."""
    above = Path(nvcc).resolve().parents[1]
    if _has_headers(above):
        return [above]
    try:
        said = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    top = re.search(r"^#\$ TOP=(.+)$", said.stderr, re.MULTILINE)
    return [Path(top[1].strip()).resolve()] if top else []


def _has_headers(root: Path) -> bool:
    return (root / "include" / "cuda_runtime.h").is_file()

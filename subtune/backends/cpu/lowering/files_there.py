"""What another machine needs to hold an artifact and to run it, as one library.

    variable(name, found)          found = the environment's variable; its length, or -1 where there is none
    make(path)                     a folder; nothing where it is there already
    rename(path, wanted)           0, or what the system says
    read(path, array)              array = the file's bytes; how many they are, or -1 where it cannot be read
    address(array)                 of its first byte
    clear(array)                   array = zeros
    put(some, array, start)        see `pack_there`
    take(array, start, some)       see `judge_there`
    digest(array, blocks, work)    SHA-256, a block of 64 bytes after the other; see `new_work` and `digest_of`

Texts are arrays of bytes with a zero at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import ir
from tvm.script import tirx as T

from subtune.backends.cpu.lowering.judge_there import take
from subtune.backends.cpu.lowering.pack_there import put
from subtune.backends.cpu.lowering.ring import PUT, TAKE

VARIABLE, MAKE, RENAME, READ = "variable", "make", "rename", "read"
ADDRESS, CLEAR, DIGEST = "address", "clear", "digest"
TOOLS = (VARIABLE, MAKE, RENAME, READ, ADDRESS, CLEAR, PUT, TAKE, DIGEST)
BLOCK_BYTES = 64
"""What SHA-256 takes at a time."""
_MODE = 0o755
_WORD = 0xFFFFFFFF
_SCHEDULE, _STATE, _ROUND = 64, 128, 136
"""Where in `work` the numbers begin that follow the constants: a block's, the state, the state of a round."""


def tools() -> tvm.IRModule:
    """The library's functions, for Linux with 64 bits."""
    files: dict[str, Any] = {VARIABLE: _variable, MAKE: _make, RENAME: _rename, READ: _read, DIGEST: _digest}
    arrays: dict[str, Any] = {ADDRESS: _address, CLEAR: _clear, PUT: put(), TAKE: take()}
    made = {name: func.with_attr("global_symbol", name) for name, func in {**files, **arrays}.items()}
    return tvm.IRModule({ir.GlobalVar(name): func for name, func in made.items()})


def padding_of(nbytes: int) -> bytes:
    """What stands behind so many bytes, so that they are whole blocks (FIPS 180-4, section 5.1.1)."""
    return b"\x80" + bytes(-(nbytes + 9) % BLOCK_BYTES) + (8 * nbytes).to_bytes(8, "big")


def new_work() -> np.ndarray:
    """What `digest` begins with: fractions of the roots of the first primes (sections 4.2.2 and 5.3.3)."""
    primes = [n for n in range(2, 312) if all(n % p for p in range(2, n))]
    constants = [_fraction(prime, 3) for prime in primes]
    state = [_fraction(prime, 2) for prime in primes[:8]]
    return np.array([*constants, *[0] * (_STATE - _SCHEDULE), *state, *[0] * 8], np.int64)


def digest_of(work: np.ndarray) -> str:
    """What `digest` has found, in hexadecimal."""
    return work[_STATE:_ROUND].astype(">u4").tobytes().hex()


def _fraction(prime: int, degree: int) -> int:
    """The first 32 bits of the fraction of a root."""
    low, high, wanted = 0, prime << 32, prime << (32 * degree)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**degree <= wanted else (low, middle)
    return low & _WORD


def _turned(word: Any, bits: int) -> Any:
    return word >> bits | (word << 32 - bits) & T.int64(_WORD)


@T.prim_func(private=True)
def _variable(name_: T.handle, found_: T.handle) -> T.int64:
    m, n = T.int64(), T.int64()
    name = T.match_buffer(name_, (m,), "uint8")
    found = T.match_buffer(found_, (n,), "uint8")
    text: T.let[T.int64] = T.call_extern("int64", "getenv", name.data)
    if text == T.int64(0):
        return T.int64(-1)
    T.evaluate(T.call_extern("int64", "strncpy", found.data, text, n))
    return T.call_extern("int64", "strlen", text)


@T.prim_func(private=True)
def _make(path_: T.handle) -> None:
    m = T.int64()
    path = T.match_buffer(path_, (m,), "uint8")
    T.evaluate(T.call_extern("int32", "mkdir", path.data, T.int32(_MODE)))


@T.prim_func(private=True)
def _rename(path_: T.handle, wanted_: T.handle) -> T.int32:
    m, n = T.int64(), T.int64()
    path = T.match_buffer(path_, (m,), "uint8")
    wanted = T.match_buffer(wanted_, (n,), "uint8")
    return T.call_extern("int32", "rename", path.data, wanted.data)


@T.prim_func(private=True)
def _read(path_: T.handle, array_: T.handle) -> T.int64:
    m, n = T.int64(), T.int64()
    path = T.match_buffer(path_, (m,), "uint8")
    array = T.match_buffer(array_, (n,), "uint8")
    file: T.let[T.int64] = T.call_extern("int64", "fopen", path.data, "rb")
    if file == T.int64(0):
        return T.int64(-1)
    count: T.let[T.int64] = T.call_extern("int64", "fread", array.data, T.int64(1), n, file)
    T.evaluate(T.call_extern("int32", "fclose", file))
    return count


@T.prim_func(private=True)
def _address(array_: T.handle) -> T.int64:
    """C's function gives where it has moved nothing to; TVM 0.27 cannot lower an address that becomes a number."""
    n = T.int64()
    array = T.match_buffer(array_, (n,), "uint8")
    return T.call_extern("int64", "memmove", array.data, array.data, T.int64(0))


@T.prim_func(private=True)
def _clear(array_: T.handle) -> None:
    n = T.int64()
    array = T.match_buffer(array_, (n,), "uint8")
    T.evaluate(T.call_extern("int64", "memset", array.data, T.int32(0), n))


@T.prim_func(private=True)
def _digest(array_: T.handle, blocks: T.int64, work_: T.handle) -> None:
    """Numbers of 64 bits: where unsigned ones of 32 wrap around, TVM tells LLVM that they do not."""
    n = T.int64()
    array = T.match_buffer(array_, (n,), "uint8")
    work = T.match_buffer(work_, (_ROUND + 8,), "int64")
    for block in T.serial(blocks):
        for t in T.serial(T.int64(16)):
            first: T.let[T.int64] = block * 64 + t * 4
            work[_SCHEDULE + t] = (
                T.Cast("int64", array[first]) << 24
                | T.Cast("int64", array[first + 1]) << 16
                | T.Cast("int64", array[first + 2]) << 8
                | T.Cast("int64", array[first + 3])
            )
        for t in T.serial(T.int64(48)):
            far: T.let[T.int64] = work[_SCHEDULE + 1 + t]
            near: T.let[T.int64] = work[_SCHEDULE + 14 + t]
            one: T.let[T.int64] = _turned(far, 7) ^ _turned(far, 18) ^ far >> 3
            other: T.let[T.int64] = _turned(near, 17) ^ _turned(near, 19) ^ near >> 10
            work[_SCHEDULE + 16 + t] = work[_SCHEDULE + t] + one + work[_SCHEDULE + 9 + t] + other & T.int64(_WORD)
        for i in T.serial(T.int64(8)):
            work[_ROUND + i] = work[_STATE + i]
        for t in T.serial(T.int64(64)):
            a: T.let[T.int64] = work[_ROUND]
            e: T.let[T.int64] = work[_ROUND + 4]
            chosen: T.let[T.int64] = e & work[_ROUND + 5] ^ (e ^ T.int64(_WORD)) & work[_ROUND + 6]
            most: T.let[T.int64] = a & work[_ROUND + 1] ^ a & work[_ROUND + 2] ^ work[_ROUND + 1] & work[_ROUND + 2]
            of_e: T.let[T.int64] = _turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25)
            of_a: T.let[T.int64] = _turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22)
            found: T.let[T.int64] = work[_ROUND + 7] + of_e + chosen + work[t] + work[_SCHEDULE + t]
            for i in T.serial(T.int64(7)):
                work[_ROUND + 7 - i] = work[_ROUND + 6 - i]
            work[_ROUND + 4] = work[_ROUND + 4] + found & T.int64(_WORD)
            work[_ROUND] = found + of_a + most & T.int64(_WORD)
        for i in T.serial(T.int64(8)):
            work[_STATE + i] = work[_STATE + i] + work[_ROUND + i] & T.int64(_WORD)

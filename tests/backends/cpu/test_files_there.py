"""What an artifact wants of another machine, called on this one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import tvm

from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.lowering import files_there as there
from subtune.backends.cpu.lowering.ring import PUT, TAKE, write
from subtune.runtime import aligned_empty


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("files") / "tools.so"
    write(there.tools(), CPU("auto"), path)
    return tvm.runtime.load_module(str(path))


def tensor(data: bytes):
    return tvm.runtime.tensor(np.frombuffer(data, np.uint8))


def text(value: str | Path):
    return tensor(os.fsencode(value) + b"\0")


@pytest.mark.parametrize("nbytes", [0, 1, 3, 55, 56, 63, 64, 65, 119, 120, 1000, 1 << 20])
def test_a_digest_is_hashlibs(library, nbytes):
    data = np.random.default_rng(nbytes).bytes(nbytes)
    whole, work = data + there.padding_of(nbytes), tvm.runtime.tensor(there.new_work())
    library[there.DIGEST](tensor(whole), len(whole) // there.BLOCK_BYTES, work)
    assert there.digest_of(work.numpy()) == hashlib.sha256(data).hexdigest()


def test_files(library, tmp_path):
    assert library[there.READ](text(tmp_path / "none"), tensor(b"123")) == -1
    (tmp_path / "one").write_bytes(b"abc")
    found = tensor(b"12345")
    assert library[there.READ](text(tmp_path / "one"), found) == 3
    assert found.numpy().tobytes() == b"abc45"
    for _ in range(2):
        library[there.MAKE](text(tmp_path / "folder"))
    assert library[there.RENAME](text(tmp_path / "one"), text(tmp_path / "folder" / "two")) == 0
    assert (tmp_path / "folder" / "two").read_bytes() == b"abc"
    assert library[there.RENAME](text(tmp_path / "one"), text(tmp_path / "folder" / "two")) != 0


def test_variables_and_addresses(library):
    found = tensor(bytes(64))
    assert library[there.VARIABLE](text("HOME"), found) == len(os.environ["HOME"])
    assert found.numpy().tobytes().rstrip(b"\0").decode() == os.environ["HOME"]
    assert library[there.VARIABLE](text("SUBTUNE_THERE_IS_NONE"), found) == -1
    array = aligned_empty(64)
    assert library[there.ADDRESS](tvm.runtime.from_dlpack(array)) == array.ctypes.data


def test_parts(library):
    array = tensor(b"abcdef")
    found = tensor(b"??")
    library[TAKE](array, 3, found)
    assert found.numpy().tobytes() == b"de"
    library[PUT](found, array, 1)
    assert array.numpy().tobytes() == b"adedef"
    library[there.CLEAR](array)
    assert array.numpy().tobytes() == bytes(6)

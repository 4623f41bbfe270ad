"""Arrays of samples become feeds, or one sentence says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subtune.core.errors import InputError
from subtune.core.tensor_spec import TensorSpec
from subtune.quantization.calibration import feeds_of, files_of

IMAGE = TensorSpec("image", (2, 3, 4), "float32")
IDS = TensorSpec("ids", (2,), "int64")


def images(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("shape", [(5, 2, 3, 4), (10, 3, 4)])
def test_samples_and_batches(shape: tuple[int, ...]) -> None:
    feeds = feeds_of({"image": images(*shape)}, [IMAGE])
    assert len(feeds) == 5
    assert {feed["image"].shape for feed in feeds} == {(2, 3, 4)}
    np.testing.assert_array_equal(np.stack([feed["image"] for feed in feeds]), images(5, 2, 3, 4))


def test_inputs_go_together_and_take_numbers_that_fit() -> None:
    feeds = feeds_of(
        {"image": images(3, 2, 3, 4, dtype=np.uint8), "ids": np.int32([[1, 2], [3, 4], [5, 6]])}, [IMAGE, IDS]
    )
    assert [feed["ids"].tolist() for feed in feeds] == [[1, 2], [3, 4], [5, 6]]
    assert feeds[0]["image"].dtype == np.float32
    assert feeds[0]["ids"].dtype == np.int64
    scalar = TensorSpec("x", (), "float32")
    assert [float(feed["x"]) for feed in feeds_of({"x": np.float64([1, 2])}, [scalar])] == [1, 2]


def test_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name, first in (("a.npz", 0), ("more/c.npz", 2), ("more/b.npz", 1)):
        np.savez(tmp_path / name, image=images(1, 2, 3, 4) + first)
    (tmp_path / "more" / "notes.txt").write_text("not data")
    data = [tmp_path / "a.npz", str(tmp_path / "more"), {"image": images(1, 2, 3, 4) + 3}]
    assert [int(feed["image"].flat[0]) for feed in feeds_of(data, [IMAGE])] == [0, 1, 2, 3]
    assert files_of(data) == [tmp_path / "a.npz", tmp_path / "more"]


GOOD = images(1, 2, 3, 4)
WRONG: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "another name": ({"picture": GOOD}, "are named picture, but the inputs of the model image, ids"),
    "one more": ({"image": GOOD, "ids": np.int64([[1, 2]]), "x": GOOD}, "are named image, ids, x, but"),
    "no array": ({}, "There are no arrays"),
    "another shape": ({"image": images(1, 4, 3), "ids": np.int64([[1, 2]])}, r"\[1, 4, 3\], not \[samples, 2, 3, 4\]"),
    "a part of a batch": ({"image": images(3, 3, 4), "ids": np.int64([[1, 2]])}, "no multiple of the batch of 2"),
    "no samples": ({"image": images(0, 2, 3, 4), "ids": np.int64([[1, 2]])}, "has no samples"),
    "fewer of one": ({"image": images(2, 2, 3, 4), "ids": np.int64([[1, 2]])}, "numbers of samples: image 2, ids 1"),
    "no number": ({"image": GOOD * np.nan, "ids": np.int64([[1, 2]])}, "not finite in float32"),
    "too large": ({"image": np.full((1, 2, 3, 4), 1e300), "ids": np.int64([[1, 2]])}, "not finite in float32"),
    "floats for integers": ({"image": GOOD, "ids": np.float32([[1, 2]])}, "is of float32, which is no int64"),
    "text": ({"image": np.full((1, 2, 3, 4), "x"), "ids": np.int64([[1, 2]])}, "which is no float32"),
    "too large an integer": ({"image": GOOD, "ids": np.uint64([[1, 2**63]])}, "do not fit into int64"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_arrays_that_do_not_fit(case: str) -> None:
    arrays, said = WRONG[case]
    with pytest.raises(InputError, match=said) as caught:
        feeds_of(arrays, [IMAGE, IDS])
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", GOOD)
    np.savez(tmp_path / "empty.npz")
    np.savez(tmp_path / "objects.npz", image=np.array([{}], object))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "objects.npz").read_bytes()[:40])
    (tmp_path / "folder").mkdir()
    for name, said in (
        ("none.npz", "There is no file"),
        ("one.npy", "one array without a name"),
        ("empty.npz", "There are no arrays"),
        ("objects.npz", "not a readable .npz"),
        ("text.npz", "not a readable .npz"),
        ("cut.npz", "not a readable .npz"),
        ("folder", "holds no .npz"),
        ("a\0b", "cannot be read|not a readable"),
    ):
        with pytest.raises(InputError, match=said):
            feeds_of(tmp_path / name, [IMAGE])

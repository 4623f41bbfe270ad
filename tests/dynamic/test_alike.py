"""A model is compared with itself beyond its domain where that is the same model, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest

from subtune import frontends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.domain import Domain, Symbol
from subtune.core.errors import UnsupportedOpsError
from subtune.core.numerics import PLAIN
from subtune.dynamic.model import dynamic_model
from subtune.dynamic.points import points_beyond
from subtune.pipeline import Prepared, prepare_imported
from tests.dynamic import models

DEVICE = as_device(CPU("x86-64-v3", threads=1))


def domain(name: str, most: int) -> Domain:
    return Domain((Symbol.uniform(name, tuple(range(1, most + 1))),))


def preparing(model: onnx.ModelProto, shape: Callable[[int], tuple[int, ...]]) -> Callable[..., Prepared]:
    def prepare(point: Any, lengths: Any) -> Prepared:
        (value,) = point.values()
        imported = frontends.load(model, {"x": shape(value)})
        return prepare_imported(imported, PLAIN, None, DEVICE.backend.forms(DEVICE.model), lengths)

    return prepare


def test_a_layout_that_small_images_have_alone():
    found = dynamic_model(domain("width", 10), preparing(models.depthwise(), lambda width: (2, 4, 6, width)))
    assert [str(spec) for spec in found.outputs] == ["y: float32[2, 4, 6, width]"]


def test_rows_that_only_large_instances_have():
    with pytest.raises(UnsupportedOpsError, match="is no polynomial of the symbols"):
        dynamic_model(domain("seq", 9), preparing(models.cut_inside(), lambda seq: (seq, 8)))


def test_points_beyond_the_greatest_instance():
    both = Domain((*domain("a", 9).symbols, *domain("b", 12).symbols))
    points = points_beyond(both)
    assert len(points) == 6
    assert all(point["a"] > 9 and point["b"] > 12 and point["a"] != point["b"] for point in points)
    assert points_beyond(domain("seq", 512)) == []

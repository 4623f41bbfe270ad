"""Alternatives of a partition at all instances of a model: an attention that is one kernel, if that serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pytest

from subtune import backends, frontends
from subtune.backends.base import Device
from subtune.core.domain import Domain, Symbol
from subtune.core.graph import Alternatives
from subtune.core.numerics import PLAIN
from subtune.dynamic import arrange
from subtune.dynamic.arrange import arranged_model
from subtune.dynamic.kernel import dynamic_kernel
from subtune.dynamic.model import dynamic_model
from subtune.models import reduced
from subtune.options import Options
from subtune.passes.pad_attention import NO_LENGTHS, Lengths
from subtune.pipeline import Prepared, prepare_imported
from subtune.tuning.alternatives import plan
from subtune.tuning.choose import fastest_foreseen
from tests.dynamic import models

DOMAIN = Domain((Symbol.uniform("seq", tuple(range(1, 129))),))
DEVICE = backends.device_of("nvidia/nvidia-h100", None, None, PLAIN, is_measured=False)
MODEL = models.halved(models.block(hidden=256, heads=4, longest=128))


@pytest.fixture(autouse=True)
def kernels_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a candidate of a workload, for all tests."""
    monkeypatch.setattr(arrange, "dynamic_kernel", kept)


kept = cache(dynamic_kernel)


def prepare(point: Mapping[str, int], lengths: Lengths) -> Prepared:
    return prepared(point["seq"])


@cache
def prepared(seq: int) -> Prepared:
    loaded = frontends.load(MODEL, {"batch": (1,), "seq": (seq,)})
    return prepare_imported(loaded, PLAIN, None, DEVICE.backend.forms(DEVICE.model), NO_LENGTHS)


def foreseen(greatest: Prepared, others: Alternatives, least: Callable[[], Prepared], device: Device) -> dict[str, int]:
    return {
        one.name: fastest_foreseen(one, plan(greatest.subgraphs, others, device, None).expected)
        for one in others.regions
    }


def last(greatest: Prepared, others: Alternatives, least: Callable[[], Prepared], device: Device) -> dict[str, int]:
    """The last alternative everywhere."""
    return {one.name: len(one.alternatives) - 1 for one in others.regions}


def test_an_attention_is_one_kernel_where_that_serves_all_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    own = dynamic_model(DOMAIN, prepare)
    taken = arranged_model(DOMAIN, prepare, DEVICE, foreseen)
    assert len(taken.workloads) < len(own.workloads)
    (attention,) = set(taken.workloads) - set(own.workloads)
    assert [str(dim) for dim in taken.workloads[attention].extents] == ["seq"]
    assert {one.name for one in taken.greatest.subgraphs} == set(taken.workloads)

    monkeypatch.setattr(arrange._Arranger, "_is_served", lambda self, workload: False)
    assert set(arranged_model(DOMAIN, prepare, DEVICE, foreseen).workloads) == set(own.workloads)


def test_a_stem_is_pooled_by_one_kernel_at_any_batch() -> None:
    domain = Domain((Symbol.uniform("batch", tuple(range(1, 6))),))
    numerics = Options(precision="fp16").numerics
    model = reduced("resnet18")
    for one in (model.graph.input[0], model.graph.output[0]):
        one.type.tensor_type.shape.dim[0].dim_param = "batch"

    @cache
    def prepared(batch: int) -> Prepared:
        loaded = frontends.load(model, {"batch": (batch,)})
        return prepare_imported(loaded, numerics, None, DEVICE.backend.forms(DEVICE.model), NO_LENGTHS)

    def prepare(point: Mapping[str, int], lengths: Lengths) -> Prepared:
        return prepared(point["batch"])

    own = dynamic_model(domain, prepare)
    taken = arranged_model(domain, prepare, DEVICE, last)
    assert len(taken.workloads) == len(own.workloads) - 1
    (stem,) = set(taken.workloads) - set(own.workloads)
    assert "conv2d" in stem
    assert "max_pool2d" in stem


def test_only_what_does_not_serve_all_is_left_out() -> None:
    arranger = arrange._Arranger(DOMAIN, prepare, DEVICE, last)
    found = dynamic_model(DOMAIN, arranger.prepare)
    kept = arranger.served(found)
    assert kept
    assert kept.items() < arranger.taken.items()
    assert len(arranged_model(DOMAIN, prepare, DEVICE, last).workloads) > len(found.workloads)

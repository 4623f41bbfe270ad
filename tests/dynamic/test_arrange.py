"""Alternatives of a partition at all instances of a model: an attention that is one kernel, if that serves them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

from subtune import backends, frontends
from subtune.core.domain import Domain, Symbol
from subtune.core.numerics import PLAIN
from subtune.dynamic import arrange
from subtune.dynamic.arrange import arranged_model
from subtune.dynamic.model import dynamic_model
from subtune.passes.pad_attention import NO_LENGTHS, Lengths
from subtune.pipeline import Prepared, prepare_imported
from tests.dynamic import models

DOMAIN = Domain((Symbol.uniform("seq", tuple(range(1, 129))),))
DEVICE = backends.device_of("nvidia/nvidia-h100", None, None, PLAIN, is_measured=False)
MODEL = models.halved(models.block(hidden=256, heads=4, longest=128))


def prepare(point: Mapping[str, int], lengths: Lengths) -> Prepared:
    return prepared(point["seq"])


@cache
def prepared(seq: int) -> Prepared:
    loaded = frontends.load(MODEL, {"batch": (1,), "seq": (seq,)})
    return prepare_imported(loaded, PLAIN, None, DEVICE.backend.forms(DEVICE.model), NO_LENGTHS)


def test_an_attention_is_one_kernel_where_that_serves_all_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    own = dynamic_model(DOMAIN, prepare)
    taken = arranged_model(DOMAIN, prepare, DEVICE)
    assert len(taken.workloads) < len(own.workloads)
    (attention,) = set(taken.workloads) - set(own.workloads)
    assert [str(dim) for dim in taken.workloads[attention].extents] == ["seq"]
    assert {one.name for one in taken.greatest.subgraphs} == set(taken.workloads)

    monkeypatch.setattr(arrange._Arranger, "_is_served", lambda self, workload: False)
    assert set(arranged_model(DOMAIN, prepare, DEVICE).workloads) == set(own.workloads)

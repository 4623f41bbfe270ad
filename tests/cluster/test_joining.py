"""What of the options goes together with a cluster, and what is said without Ray."""

from __future__ import annotations

import sys

import pytest

from subtune.cluster.joining import joined
from subtune.core.errors import ClusterError, TargetError
from subtune.options import Options


def test_no_cluster():
    with joined(Options()) as stations:
        assert stations is None


@pytest.mark.parametrize("given", [{"devices": (0, 1)}, {"remote": "127.0.0.1:9090"}])
def test_a_cluster_and_other_devices(given):
    with (
        pytest.raises(TargetError, match="--cluster names the devices"),
        joined(Options(cluster="auto", **given)),
    ):
        pass


def test_without_ray(monkeypatch):
    monkeypatch.delitem(sys.modules, "subtune.cluster.on_ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"pip install 'subtune\[ray\]'"), joined(Options(cluster="auto")):
        pass

"""A server in a network namespace of its own: the other end of a cable, not of a loop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from subtune.deploy.push import push
from subtune.driver import compile_model
from subtune.models import reduced
from subtune.runtime.remote import Remote
from tests.measure.rpc_server import rpc_server

HERE, THERE, BITS = "10.213.77.1", "10.213.77.2", 30
"""Addresses of the cable's ends."""


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """Its name; it has one end of a cable, and this process's namespace the other."""
    name, near, far = (f"{what}{os.getpid()}" for what in ("subtune", "near", "far"))
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip`: install iproute2")
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as e:
        pytest.skip(f"no network namespace can be made here: {e.stderr.strip()}")
    try:
        try:
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
            ip("addr", "add", f"{HERE}/{BITS}", "dev", near)
            ip("link", "set", near, "up")
            ip("-n", name, "addr", "add", f"{THERE}/{BITS}", "dev", far)
            ip("-n", name, "link", "set", far, "up")
            ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as e:
            pytest.skip(f"no cable can be laid into a network namespace here: {e.stderr.strip()}")
        yield name
    finally:
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)
        ip("netns", "del", name)


@pytest.fixture(scope="module")
def remote(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    python = ["ip", "netns", "exec", namespace, sys.executable]
    with rpc_server(tmp_path_factory.mktemp("server") / "log.txt", 1, python=python, host=THERE) as port:
        yield Remote(THERE, port)


def test_a_model_is_tuned_there_and_pushed(namespace: str, remote: Remote, tmp_path: Path) -> None:
    assert ip("netns", "pids", namespace).split(), "the server is not where it should be"
    report = compile_model(
        reduced("mlp"), tmp_path / "m.subtune", remote=str(remote), threads=1, topk=2, database=tmp_path / "t.db"
    )
    assert report.verified
    assert not report.failures
    assert all(row.tuned_s > 0 for row in report.rows)
    found = push(report.path, str(remote), str(tmp_path / "there"))
    assert found.compared.endswith("bit for bit")

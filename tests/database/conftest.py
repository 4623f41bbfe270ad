"""Databases of both kinds. Tests of the server are skipped where PostgreSQL, or what speaks to it, is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.database.cluster import NEEDED, Cluster, binaries, running


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    for module in ("sqlalchemy", "psycopg"):
        pytest.importorskip(module, reason=f"{module} is not installed: the extra `postgres` brings it")
    programs = binaries()
    if programs is None:
        pytest.skip(f"PostgreSQL ({', '.join(NEEDED)}) is not installed")
    with running(programs) as found:
        yield found


@pytest.fixture
def server(cluster: Cluster) -> str:
    """The URL of a database that is empty."""
    cluster.execute("DROP SCHEMA IF EXISTS subtune CASCADE")
    return cluster.url()


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database can be made: in a file whose directory is missing, on a server."""
    if request.param == "file":
        return tmp_path / "dir" / "tuning.db"
    url: str = request.getfixturevalue("server")
    return url

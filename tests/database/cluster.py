"""A PostgreSQL of the tests' own: a cluster in a temporary directory, whose socket is there, too."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USER, PASSWORD = "tester", "s3cr3t"
NEEDED = ("initdb", "pg_ctl", "postgres")


@dataclass(frozen=True)
class Cluster:
    folder: Path

    def url(self, name: str = "postgres", user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@/{name}?host={self.folder}"

    def execute(self, statement: str, name: str = "postgres") -> list[tuple[Any, ...]]:
        """Rows, if there are any, of a statement that is a transaction of its own."""
        import psycopg

        about = {"host": str(self.folder), "user": USER, "password": PASSWORD, "dbname": name}
        with psycopg.connect(**about, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def disconnect(self, name: str = "postgres") -> None:
        """End all connections of subtune's, as a server that is stopped does."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'subtune'", name)

    @contextmanager
    def refusing(self, name: str = "postgres") -> Iterator[None]:
        """Nobody is let in, and who was is out: as for a server that has gone."""
        self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false", "template1")
        self.disconnect("template1")
        try:
            yield
        finally:
            self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true", "template1")


def binaries() -> Path | None:
    """Where PostgreSQL's server is installed: Debian has it outside PATH."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name.split(".")[0]))
    return next((f for f in [*folders, *reversed(versions)] if all((f / name).is_file() for name in NEEDED)), None)


@contextmanager
def running(programs: Path) -> Iterator[Cluster]:
    """A new cluster; it ends with the `with`. Its path is short, as that of a socket must be."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    owner = _owner()
    if owner:
        shutil.chown(folder, owner, pwd.getpwnam(owner).pw_gid)

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs / program, "-D", folder / "data", *arguments],
            cwd=folder,
            user=owner,
            group=pwd.getpwnam(owner).pw_gid if owner else None,
            extra_groups=[] if owner else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout

    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB"
    try:
        call(
            "initdb", "--auth=scram-sha-256", f"--username={USER}", f"--pwfile={password}",
            "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        call("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", options)
        try:
            yield Cluster(folder)
        finally:
            call("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> str | None:
    """Who runs the server: root must not."""
    if os.geteuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"

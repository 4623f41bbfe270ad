"""A database on a server gives a file's guarantees: many writers, lost connections, and a sentence for each refusal."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from subtune.backends.cpu.device import CPUModel
from subtune.cli import main
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import DatabaseError
from subtune.core.measurement import Failure, FailureKind, Measurement
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.measure import ReplayMeasurer
from subtune.tuning.search import Search, tune_subgraph
from tests.database.cluster import PASSWORD, Cluster
from tests.database.test_database import CANDIDATE, FAST, SLOW, TODAY, X, matmul, record_of

CANDIDATES = tuple(Candidate.make("t", i=i) for i in range(6))
LOCK = "SELECT pg_advisory_lock(7563106)"


@pytest.fixture
def workload() -> Workload:
    return matmul()


@pytest.fixture(autouse=True)
def quick(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was lost is made again at once, and nobody waits long for a lock."""
    from subtune.database import server

    monkeypatch.setattr(server, "RETRY_S", 0.0)
    monkeypatch.setattr(server, "_LOCK", server._LOCK.replace("'10000'", "'100'"))


@pytest.fixture
def member(cluster: Cluster) -> Iterator[str]:
    """A role that may open a session, and nothing else."""
    cluster.execute(f"CREATE ROLE member LOGIN PASSWORD '{PASSWORD}'")
    yield cluster.url(user="member")
    cluster.execute("DROP OWNED BY member")
    cluster.execute("DROP ROLE member")


def tune(workload: Workload, database: Database, device: CPUModel, measurer: ReplayMeasurer | None = None) -> object:
    times = {DEFAULT: 9.0, **{c: 2.0 + i for i, c in enumerate(CANDIDATES)}}
    search = Search(topk=6, candidates=lambda w, d, k: CANDIDATES)
    return tune_subgraph(workload, device, search, database=database, measurer=measurer or ReplayMeasurer(times))


# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_way_to_write_the_scheme(server: str, scheme: str, workload: Workload) -> None:
    with Database(server) as database:
        database.add_record(workload, record_of(workload), TODAY)
    with Database(f"{scheme}://{server.partition('://')[2]}") as database:
        assert database.lookup(workload, X) == record_of(workload)
        assert database.name == "postgresql://tester@/postgres"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://tester:{wrong}@/postgres?host={folder}", "password authentication failed"),
        ("postgresql://tester@/postgres?host={folder}&password={wrong}", "password authentication failed"),
        ("postgresql://tester@/postgres?host={folder}", "give the user's password"),
        ("postgresql://tester:{password}@/none?host={folder}", "make it with createdb"),
        ("postgresql://tester:{wrong}@127.0.0.1:1/postgres", "look at the URL and whether the server runs"),
        ("postgresql://tester:{wrong}@/postgres?host={folder}/none", "look at the URL and whether the server runs"),
        ("postgresql://tester:{wrong}@/postgres?nonsense=1&host={folder}", 'invalid connection option "nonsense"'),
        ("postgresql://tester:a@{wrong}@host/postgres", "in a password %40 for @"),
        ("postgresql://tester@host:{wrong}/postgres", "write postgresql://USER@HOST:PORT/NAME"),
        ("mysql://tester:{wrong}@host/name", "no database is at mysql://"),
    ],
)
def test_a_refusal_is_a_sentence_without_a_password(
    cluster: Cluster, url: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    given = url.format(folder=cluster.folder, password=PASSWORD, wrong="hush")
    with caplog.at_level(logging.DEBUG):
        assert main(["db", "list", "--db", given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not [secret for secret in ("hush", PASSWORD) if secret in error + caplog.text]


@pytest.mark.parametrize("missing", ["sqlalchemy", "psycopg"])
def test_what_is_not_installed_is_named(server: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DatabaseError, match=r"pip install 'subtune\[postgres\]'"):
        Database(server)


def test_a_newer_format_is_refused_and_left_alone(cluster: Cluster, server: str, tmp_path: Path) -> None:
    Database(server).close()
    cluster.execute("UPDATE subtune.format SET version = 99")
    with pytest.raises(DatabaseError, match="postgres has format 99, this subtune reads up to 3"):
        Database(server)
    with Database(tmp_path / "t.db") as database, pytest.raises(DatabaseError, match="format 99"):
        database.merge(server)
    assert cluster.execute("SELECT version FROM subtune.format") == [(99,)]


def test_commands_take_the_url(server: str, workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    with Database(server) as database:
        database.add_record(workload, record_of(workload), TODAY)
    assert main(["db", "list", "--all-versions", "--db", server]) == 0
    assert capsys.readouterr().out.startswith(workload.key)
    assert main(["db", "gc", "--db", server]) == 0
    assert capsys.readouterr().out == "2 rows deleted\n"
    assert main(["inspect", "zoo:mlp?image=8&batch=1", "--db", server]) == 0


# -- what is stored ----------------------------------------------------------------------------------------


def test_a_text_with_a_zero_is_stored_without(server: str, workload: Workload) -> None:
    crash = Failure(FailureKind.CRASH, "killed\0 by a signal")
    with Database(server) as database:
        database.add_measurements(workload, X, [Measurement(CANDIDATE, crash)])
        assert database.outcomes(workload, X) == {}
        assert database.measurements(workload.key, X)[0].outcome == Failure(FailureKind.CRASH, "killed� by a signal")


def test_text_is_ordered_as_in_a_file(cluster: Cluster, tmp_path: Path, workload: Workload) -> None:
    """Whatever the server's language: in English `a` comes before `B`."""
    ((version, has_icu),) = cluster.execute(
        "SELECT current_setting('server_version_num')::int, 'i' IN (SELECT collprovider FROM pg_collation)"
    )
    if version < 150000 or not has_icu:
        pytest.skip("this PostgreSQL makes no database of ICU's languages")
    cluster.execute("DROP DATABASE IF EXISTS english")
    cluster.execute("CREATE DATABASE english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'")
    assert cluster.execute("SELECT 'a' < 'B'", "english") == [(True,)]
    names = ["b", "a", "B", "_", "ä"]
    found = []
    for place in (tmp_path / "t.db", cluster.url("english")):
        with Database(place) as database:
            for name in names:
                database.add_suggestion(workload, Candidate.make("trace", json=name), 1e-6)
            found.append([dict(candidate.knobs)["json"] for candidate in database.suggestions(workload)])
    assert found[0] == found[1]
    assert set(found[0]) == set(names)


# -- many at once ------------------------------------------------------------------------------------------


def test_many_open_an_empty_database_and_write_the_same_rows(
    server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In other orders: transactions that lock row after row would wait for one another in a circle. On a server whose
    own transactions may fail, as one has seen what another changes.
    """
    from subtune.database import server as module

    monkeypatch.setattr(module, "_LOCK", module._LOCK.replace("'100'", "'60000'"))
    writers, workloads = 6, [matmul(n) for n in range(2, 6)]
    begin = threading.Barrier(writers)

    def write(number: int) -> None:
        begin.wait()
        with Database(f"{server}&options=-c%20default_transaction_isolation%3Dserializable") as database:
            for turn in range(5):
                mine = [Measurement(Candidate.make("tiled", mr=i), SLOW) for i in range(10)]
                mine.append(Measurement(Candidate.make("tiled", mr=number, turn=turn), FAST))
                for workload in workloads:
                    database.add_measurements(workload, X, mine[:: 1 if number % 2 else -1])
                    database.add_record(workload, record_of(workload), TODAY)

    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(write, range(writers)))
    with Database(server) as database:
        assert all(len(database.measurements(w.key, X)) == 10 + writers * 5 for w in workloads)
        assert {record.workload_key for record in database.list_records()} == {w.key for w in workloads}
    assert not caplog.records


def test_a_lock_that_stays_does_not_lose_the_compile(
    cluster: Cluster, server: str, workload: Workload, device: CPUModel, caplog: pytest.LogCaptureFixture
) -> None:
    import psycopg

    with Database(server) as database, psycopg.connect(server) as holder:
        holder.execute(LOCK)
        record = tune(workload, database, device)
        assert tune(workload, database, device) == record
        assert [r.message for r in caplog.records if "cannot be written" in r.message] == [
            "the tuning database postgresql://tester@/postgres cannot be written (canceling statement due to lock "
            "timeout): what is tuned from here on is not kept"
        ]
    with Database(server) as database:
        assert database.list_records() == ()


def test_a_machine_that_falls_asleep_with_the_lock_loses_it(
    server: str, workload: Workload, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from subtune.database import server as module

    with Database(server) as database, psycopg.connect(server) as asleep:
        monkeypatch.setattr(module, "_LOCK", module._LOCK.replace("'100'", "'60000'"))
        asleep.execute(module._LOCK.replace("'5000'", "'50'"))
        database.add_record(workload, record_of(workload), TODAY)
        assert database.lookup(workload, X) == record_of(workload)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            asleep.execute("SELECT 1")
        asleep.close()
    assert not caplog.records


# -- connections that are lost -----------------------------------------------------------------------------


def test_a_connection_that_is_lost_is_made_again(
    cluster: Cluster, server: str, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    with Database(server) as database:
        cluster.disconnect()
        database.add_record(workload, record_of(workload), TODAY)
        cluster.disconnect()
        assert database.lookup(workload, X) == record_of(workload)
    with Database(server) as database:
        assert database.list_records() == (record_of(workload),)
    assert not caplog.records


def test_a_server_that_goes_does_not_lose_the_compile(
    cluster: Cluster, server: str, device: CPUModel, caplog: pytest.LogCaptureFixture
) -> None:
    workloads = [matmul(n) for n in (4, 8, 16)]
    with Database(server) as database:
        before = tune(workloads[0], database, device)
        with cluster.refusing():
            after = [tune(w, database, device) for w in workloads[1:]]
            unused = ReplayMeasurer({DEFAULT: 1.0})
            assert [tune(w, database, device, unused) for w in workloads[1:]] == after
            assert unused.log == []
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
        assert PASSWORD not in caplog.text
    with Database(server) as database:
        assert database.list_records() == (before,)


def test_one_warning_says_that_a_server_has_gone(
    cluster: Cluster, server: str, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """Of whoever notices first: who writes, or who reads."""
    with Database(server) as database, cluster.refusing():
        database.add_record(workload, record_of(workload), TODAY)
        assert database.lookup(workload, X) == record_of(workload)
        database.add_record(workload, record_of(workload), TODAY)
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "the tuning database postgresql://tester@/postgres cannot be written"
    ]


# -- who may write -----------------------------------------------------------------------------------------


def test_who_may_only_read_uses_what_is_there(
    cluster: Cluster, server: str, member: str, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    with Database(server) as database:
        database.add_record(workload, record_of(workload), TODAY)
    with pytest.raises(DatabaseError, match=r"permission denied .* grant this user its tables"):
        Database(member)
    cluster.execute("GRANT USAGE ON SCHEMA subtune TO member")
    cluster.execute("GRANT SELECT ON ALL TABLES IN SCHEMA subtune TO member")
    with Database(member) as database:
        assert "is read-only" in caplog.text
        assert database.lookup(workload, X) == record_of(workload)
        database.add_record(matmul(8), record_of(matmul(8)), TODAY)
        assert database.lookup(matmul(8), X) == record_of(matmul(8)), "in this process"
    with Database(server) as database:
        assert database.lookup(matmul(8), X) is None


def test_who_may_write_tunes(cluster: Cluster, server: str, member: str, workload: Workload) -> None:
    Database(server).close()
    cluster.execute("GRANT USAGE ON SCHEMA subtune TO member")
    cluster.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA subtune TO member")
    with Database(member) as database:
        database.add_record(workload, record_of(workload), TODAY)
        assert database.gc(older_than_s=-1) == 2
        database.add_record(workload, record_of(workload), TODAY)
    with Database(server) as database:
        assert database.lookup(workload, X) == record_of(workload)


def test_who_may_make_no_tables_is_told_who_can(server: str, member: str) -> None:
    with pytest.raises(DatabaseError, match="let the database's owner open it once"):
        Database(member)

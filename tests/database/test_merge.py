"""Merging: the same rows whatever the order, a source that is left as it was, and one sentence where it cannot be."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from subtune.cli import main
from subtune.core.candidate import Candidate
from subtune.core.errors import DatabaseError
from subtune.core.measurement import Measurement
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database, sqlite_file, store
from subtune.database.connection import Connection
from subtune.database.instances import Instances
from subtune.database.merge import merge
from subtune.database.places import connect
from subtune.database.rows import record_row
from subtune.database.sqlite_file import in_memory
from subtune.database.statements import Delete, Insert, Row, Select
from subtune.database.tables import TABLES, WINNERS, Table
from tests.database.cluster import Cluster
from tests.database.test_database import CANDIDATE, FAST, OLD_SCHEMA, SLOW, TODAY, X, matmul, record_of

Rows = dict[str, list[Row]]
"""By table."""

VALUES: dict[str, Sequence[Any]] = {
    "text": ("", "Z", "a", "ä", "ab"),
    "long text": ("x", "y"),
    "bytes": tuple(map(zlib.compress, (b"a", b"b"))),
    "integer": (0, 1),
    "real": (0.0, 0.5, 1.0),
}
"""Few, so that keys are equal, and what a row counts by."""


def rows_of(table: Table) -> st.SearchStrategy[list[Row]]:
    columns = [
        st.sampled_from(VALUES[c.kind][: 2 if c.name in table.key else None] + ((None,) if c.is_optional else ()))
        for c in table.columns
    ]
    return st.lists(st.tuples(*columns), max_size=4, unique_by=lambda row: key_of(table, row))


DATABASES = st.fixed_dictionaries({table.name: rows_of(table) for table in TABLES})


def key_of(table: Table, row: Row) -> Row:
    return tuple(value for name, value in zip(table.names, row, strict=True) if name in table.key)


def fill(database: Connection, rows: Rows) -> Connection:
    database.write([Delete(table, ()) for table in TABLES])
    database.write([Insert(table, rows[table.name]) for table in TABLES])
    return database


def holding(rows: Rows) -> Connection:
    return fill(in_memory(), rows)


def content(database: Connection) -> Rows:
    return {table.name: sorted(database.read(Select(table, table.names)), key=repr) for table in TABLES}


def merged(*parts: Rows) -> Rows:
    """The later ones into the first."""
    target = holding(parts[0])
    for part in parts[1:]:
        merge(holding(part), target.write)
    return content(target)


def greatest(parts: Sequence[Rows]) -> Rows:
    """What is to come out, by Python's own comparisons."""
    found: Rows = {}
    for table in TABLES:
        best: dict[Row, tuple[Any, Row]] = {}
        for row in itertools.chain.from_iterable(part[table.name] for part in parts):
            named: dict[str, Any] = dict(zip(table.names, row, strict=True))
            order = (*(named[name] for name in table.rank), *(-1 if v is None else v for v in row))
            best[key_of(table, row)] = max(best.get(key_of(table, row), (order, row)), (order, row), key=lambda o: o[0])
        found[table.name] = sorted((row for _, row in best.values()), key=repr)
    return found


@settings(max_examples=25)
@given(st.tuples(DATABASES, DATABASES, DATABASES))
def test_the_order_of_merges_does_not_count(parts: tuple[Rows, Rows, Rows]) -> None:
    expected = greatest(parts)
    assert all(merged(*order) == expected for order in itertools.permutations(parts))
    a, b, c = parts
    assert merged(a, merged(b, c)) == merged(merged(a, b), c) == expected


@settings(max_examples=25)
@given(DATABASES, DATABASES)
def test_what_was_merged_does_not_come_over_again(target: Rows, source: Rows) -> None:
    database = holding(target)
    first, again = (merge(holding(source), database.write) for _ in range(2))
    for table in TABLES:
        count = len(source[table.name])
        assert first.taken[table.name] + first.kept[table.name] == again.kept[table.name] == count
        assert again.taken[table.name] == 0


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.tuples(DATABASES, DATABASES))
def test_a_server_finds_the_same_rows_better(server: str, parts: tuple[Rows, Rows]) -> None:
    database = connect(server)
    fill(database, parts[0])
    merge(holding(parts[1]), database.write)
    assert content(database) == greatest(parts)
    back = in_memory()
    merge(database, back.write)
    assert content(back) == greatest(parts)
    database.close()


def test_winners_count_by_what_was_tried_and_not_by_their_age_alone() -> None:
    row = dict(zip(WINNERS.names, record_row(record_of(matmul()), TODAY), strict=True))
    incomplete = row | {"complete": 0, "topk": 40, "at": 9.0}
    of_few = row | {"topk": 3, "at": 8.0}
    best = row | {"topk": 20, "at": 1.0}
    parts: list[Rows] = [
        {t.name: [tuple(one.values())] if t is WINNERS else [] for t in TABLES} for one in (incomplete, of_few, best)
    ]
    assert all(merged(*order)["winners"] == [tuple(best.values())] for order in itertools.permutations(parts))


# -- databases ---------------------------------------------------------------------------------------------

Filled = Callable[[Path | str], None]


@pytest.fixture
def workload() -> Workload:
    return matmul()


def fill_place(place: Path | str, n: int = 16) -> Record:
    """A row in each table."""
    workload = matmul(n)
    record: Record = record_of(workload)
    with Database(place) as database:
        database.add_suggestion(workload, Candidate.make("trace", json="[]"), 1e-6)
        database.add_measurements(workload, X, [Measurement(CANDIDATE, FAST)])
        database.add_record(workload, record, TODAY)
        Instances(database, workload, X).add_builds({CANDIDATE: {"granules": [4]}})
    return record


def test_every_kind_of_row_comes_over(place: Path | str, tmp_path: Path, workload: Workload) -> None:
    record = fill_place(tmp_path / "source.db")
    with Database(place) as database:
        (done,) = database.merge(tmp_path / "source.db")
        assert dict(done.taken) == {table.name: 1 for table in TABLES}
        assert dict(done.kept) == {table.name: 0 for table in TABLES}
        assert database.lookup(workload, X) == record
        assert database.outcomes(workload, X) == {CANDIDATE: FAST}
        assert [candidate.family for candidate in database.suggestions(workload)] == ["trace"]
        assert list(Instances(database, workload, X).known()) == [CANDIDATE]


def test_a_newer_measurement_stays(place: Path | str, tmp_path: Path, workload: Workload) -> None:
    with Database(tmp_path / "old.db") as old:
        old.add_measurements(workload, X, [Measurement(CANDIDATE, SLOW)])
    with Database(place) as database:
        database.add_measurements(workload, X, [Measurement(CANDIDATE, FAST)])
        (done,) = database.merge(tmp_path / "old.db")
        assert (done.taken["measurements"], done.kept["measurements"]) == (0, 1)
        assert database.outcomes(workload, X) == {CANDIDATE: FAST}


def test_several_sources_of_more_rows_than_a_transaction_has(tmp_path: Path) -> None:
    for part in range(3):
        with Database(tmp_path / f"{part}.db") as database:
            for n in (4, 8):
                found = [Measurement(Candidate.make("tiled", mr=i, part=part), FAST) for i in range(600)]
                database.add_measurements(matmul(n), X, found)
    with Database(tmp_path / "all.db") as database:
        done = database.merge(*(tmp_path / f"{part}.db" for part in range(3)))
        assert [(one.source, one.taken["measurements"]) for one in done] == [
            (str(tmp_path / f"{part}.db"), 1200) for part in range(3)
        ]
        assert all(len(database.measurements(matmul(n).key, X)) == 1800 for n in (4, 8))


def test_a_source_of_the_first_format_is_read_and_not_changed(tmp_path: Path, workload: Workload) -> None:
    path = tmp_path / "source" / "old.db"
    path.parent.mkdir()
    old = sqlite3.connect(path)
    old.executescript(OLD_SCHEMA)
    times = (1e-6, 9e-7, 0.01, 50, 5e-6, 4e-6, 0.02, 30, 5.0, "ab" * 8, 20, 19, 3, 1, 1.0)
    func = zlib.compress(workload.to_json().encode())
    old.execute("INSERT INTO workloads VALUES (?, ?, 1, 1.0)", (workload.key, func))
    about = (workload.key, "cpu/x", "tvm-1/subtune-0.1.0/templates-16", CANDIDATE.to_json(), 0.5)
    old.execute(f"INSERT INTO winners VALUES ({', '.join('?' * 20)})", (*about, *times))
    old.commit()
    old.close()
    before = path.read_bytes()
    with Database(tmp_path / "new.db") as database:
        (done,) = database.merge(path)
        assert (done.taken["workloads"], done.taken["winners"], done.taken["instances"]) == (1, 1, 0)
        assert database.list_records() == (record_of(workload),)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_what_others_are_writing_comes_over_and_what_a_killed_process_left(tmp_path: Path, workload: Workload) -> None:
    """Rows that are in the journal only."""
    path = tmp_path / "source" / "t.db"
    record = fill_place(path)
    with Database(path) as source:
        source.add_record(matmul(8), record_of(matmul(8)), TODAY)
        assert path.with_name("t.db-wal").stat().st_size
        before = path.read_bytes()
        killed = Path(shutil.copytree(path.parent, tmp_path / "killed")) / "t.db"
        for name, database_path in (("1.db", path), ("2.db", killed)):
            with Database(tmp_path / name) as database:
                database.merge(database_path)
                assert set(database.list_records()) == {record, record_of(matmul(8))}
            assert database_path.read_bytes() == before


# -- what is refused ---------------------------------------------------------------------------------------


def other_file(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE notes (at)")
    other.close()


def newer(path: Path) -> None:
    fill_place(path)
    with sqlite3.connect(path) as changed:
        changed.execute("PRAGMA user_version=99")
    changed.close()


def damaged(path: Path) -> None:
    fill_place(path)
    data = bytearray(path.read_bytes())
    data[8192:] = b"?" * (len(data) - 8192)
    path.write_bytes(data)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "there is no database"),
    "a directory": (Path.mkdir, "there is no database"),
    "text": (lambda path: path.write_text("a text that is no database " * 99), "is no tuning database"),
    "empty": (Path.touch, "is no tuning database"),
    "of something else": (other_file, "is no tuning database"),
    "newer": (newer, "has format 99, this subtune reads up to 3"),
    "damaged": (damaged, "is damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_is_none_is_refused_and_left_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = REFUSED[name]
    source, good, target = tmp_path / "source" / "s.db", tmp_path / "good.db", tmp_path / "target.db"
    source.parent.mkdir()
    make(source)
    fill_place(good)
    before = {path: path.is_file() and path.read_bytes() for path in source.parent.iterdir()}
    assert main(["db", "merge", str(good), str(source), "--db", str(target)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert str(source) in error
    assert error.count("\n") == 1
    assert {path: path.is_file() and path.read_bytes() for path in source.parent.iterdir()} == before
    with Database(target) as database:
        assert database.list_records() == (), "nothing comes over where one is refused"


def test_a_database_is_not_merged_into_itself_by_any_name(place: Path | str, tmp_path: Path) -> None:
    fill_place(place)
    (tmp_path / "link.db").symlink_to(place)
    other = f"{place}&application_name=other" if isinstance(place, str) else tmp_path / "link.db"
    with Database(place) as database, pytest.raises(DatabaseError, match="cannot be merged into itself"):
        database.merge(other)


def test_a_target_that_is_read_only_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_place(tmp_path / "source.db")
    fill_place(tmp_path / "t.db", 4)
    monkeypatch.setattr(sqlite_file.os, "access", lambda path, mode: False)
    with Database(tmp_path / "t.db") as database, pytest.raises(DatabaseError, match="cannot be written; name another"):
        database.merge(tmp_path / "source.db")


def test_a_server_that_goes_is_an_error_and_nothing_is_taken_for_stored(
    tmp_path: Path, cluster: Cluster, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from subtune.database import server as module

    def merge_alone(source: Connection, write: Any) -> Any:
        with cluster.refusing():
            return merge(source, write)

    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(store, "merge", merge_alone)
    fill_place(tmp_path / "t.db")
    fill_place(server, 4)
    with Database(server) as database, pytest.raises(DatabaseError, match=r"cannot be written \(.*merge again"):
        database.merge(tmp_path / "t.db")
    with (
        Database(tmp_path / "t.db") as database,
        pytest.raises(DatabaseError, match=r"cannot be read \(.*it again"),
    ):
        database.merge(server)


def test_a_server_is_a_source_as_well(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "t.db")
    assert main(["db", "merge", server, "--db", target]) == 2
    assert "holds nothing of subtune's" in capsys.readouterr().err
    record = fill_place(server)
    assert main(["db", "merge", server, "--db", target, "--json"]) == 0
    (done,) = json.loads(capsys.readouterr().out)
    assert done["source"] == "postgresql://tester@/postgres"
    assert done["taken"] == {table.name: 1 for table in TABLES}
    with Database(target) as database:
        assert database.list_records() == (record,)
    assert main(["db", "merge", server, "--db", target]) == 0
    out = capsys.readouterr().out
    assert out.startswith("postgresql://tester@/postgres: 0 of 1 workloads, 0 of 1 measurements, ")
    assert out.endswith(" came over; the others were here, as new or better\n")


def test_several_merge_into_one_file(tmp_path: Path) -> None:
    sizes = (2, 4, 8, 16)
    for n in sizes:
        fill_place(tmp_path / f"{n}.db", n)
    databases = [Database(tmp_path / "t.db") for _ in sizes]
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda database, n: database.merge(tmp_path / f"{n}.db"), databases, sizes))
    assert [one.taken["winners"] for (one,) in done] == [1] * len(sizes)
    assert {record.workload_key for record in databases[0].list_records()} == {matmul(n).key for n in sizes}
    for database in databases:
        database.close()

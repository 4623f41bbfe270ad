"""Whatever breaks, what was tuned stays: broken candidates, killed processes, damaged, locked and full databases."""

from __future__ import annotations

import logging
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import DatabaseError
from subtune.core.measurement import FailureKind
from subtune.database import Database, sqlite_file
from subtune.measure import ReplayMeasurer
from subtune.tuning.search import Search, tune_subgraph

SCRIPT = Path(__file__).resolve().parent / "tuning_process.py"
CANDIDATES = tuple(Candidate.make("t", i=i) for i in range(6))
REPLAY = {DEFAULT: 9.0, **{c: 2.0 + i for i, c in enumerate(CANDIDATES)}}


def start(mode: str, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, str(SCRIPT), mode, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate()
    return out.split("\n")[:-1]  # a line that was cut off by a kill does not count


@pytest.fixture(scope="module")
def workloads():
    sys.path.insert(0, str(SCRIPT.parents[1] / "measure"))
    import importlib.util

    spec = importlib.util.spec_from_file_location("tuning_process", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["tuning_process"] = module
    spec.loader.exec_module(module)
    return [module.scale(n) for n in range(1, module.WORKLOADS + 1)]


def tune_one(workload, database, device):
    return tune_subgraph(
        workload,
        device,
        Search(topk=6, candidates=lambda w, d, k: CANDIDATES),
        database=database,
        measurer=ReplayMeasurer(REPLAY),
    )


# -- candidates --------------------------------------------------------------------------------------------


def test_one_of_each_kind_of_bad_candidate_costs_only_itself(measurer, doubles, device, tmp_path):
    kinds = {
        "segfault": FailureKind.CRASH,
        "hang": FailureKind.TIMEOUT,
        "huge": FailureKind.MEMORY,
        "hoards": FailureKind.MEMORY,
        "nan": FailureKind.WRONG_RESULT,
        "beyond": FailureKind.WRONG_RESULT,
        "before": FailureKind.WRONG_RESULT,
    }
    candidates = (*(Candidate(name) for name in kinds), Candidate("vector"))
    with Database(tmp_path / "t.db") as database:
        workload = doubles.workload()
        search = Search(candidates=lambda w, d, k: candidates)
        record = tune_subgraph(workload, device, search, database=database, measurer=measurer)
        assert record.candidate == Candidate("vector")
        assert record.gain > 1
        assert (record.tried, record.failed, record.complete) == (8, 7, True)
        found = {m.candidate.family: m.outcome for m in database.show(workload.key)[2]}
        for name, kind in kinds.items():
            assert found[name].kind == kind
            assert found[name].message
        limit = re.fullmatch(r"did not finish within ([\d.]+) s", found["hang"].message)
        assert limit
        assert float(limit[1]) < 60  # what hangs has a limit of its own
        unused = ReplayMeasurer({DEFAULT: 1.0})
        assert tune_subgraph(workload, device, search, database=database, measurer=unused) == record
        assert unused.log == []


# -- processes ---------------------------------------------------------------------------------------------


def test_kill_at_five_random_moments_loses_nothing_that_was_recorded(workloads, tmp_path):
    path = tmp_path / "t.db"
    rng = random.Random(7)
    device = CPU("auto", threads=2)
    recorded: set[str] = set()
    for turn in range(5):
        process = start("replayed", path)
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(len(recorded) + turn % 4)]
        time.sleep(rng.uniform(0.0, 0.03))
        process.send_signal(signal.SIGKILL)
        recorded |= {line for line in (*lines, *finish(process)) if len(line) == 16}
        with Database(path) as database:
            present = {w.key for w in workloads if database.lookup(w, as_device(device).scope())}
        assert recorded <= present
    assert recorded
    assert finish(start("replayed", path))[-1] == "done"
    with Database(path) as database:
        assert all(database.lookup(w, as_device(device).scope()).complete for w in workloads)
    assert not list(tmp_path.glob("*.corrupt-*"))


def test_two_processes_share_a_database(workloads, tmp_path):
    path = tmp_path / "t.db"
    both = [start("replayed", path) for _ in range(2)]
    assert [finish(process)[-1] for process in both] == ["done", "done"]
    with Database(path) as database:
        assert len(database.list_records()) == len(workloads)


def test_workers_leave_when_the_tuning_process_is_killed(tmp_path):
    process = start("real", tmp_path / "t.db")
    assert process.stdout is not None
    while process.stdout.readline() != "tried 1\n":
        pass
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 3, "who forks, who builds, and who checks and times"
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(workers, timeout=300)[1]


def test_ctrl_c_while_a_candidate_hangs_ends_the_search_and_its_workers(tmp_path):
    path = tmp_path / "t.db"
    process = start("real", path)
    assert process.stdout is not None
    while process.stdout.readline() != "tried 1\n":
        pass
    workers = psutil.Process(process.pid).children(recursive=True)
    time.sleep(0.5)  # the second candidate hangs by now, or will
    process.send_signal(signal.SIGINT)
    assert finish(process)[-1] == "interrupted"
    assert process.returncode == 0
    assert not psutil.wait_procs(workers, timeout=300)[1]
    with Database(path) as database:
        ((_, kind),) = database._connection.handle.execute("SELECT candidate, kind FROM measurements").fetchall()
        assert kind == ""  # the good candidate's time was kept


# -- the database file -------------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path, workloads, device):
    path = tmp_path / "t.db"
    with Database(path) as database:
        for workload in workloads:
            tune_one(workload, database, device)
    return path


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_moved_aside_and_what_is_readable_is_kept(filled, fraction, workloads, device, caplog):
    size = filled.stat().st_size
    with filled.open("r+b") as file:
        file.truncate(int(size * fraction))
    with caplog.at_level(logging.WARNING), Database(filled) as database:
        assert "is damaged" in caplog.text
        kept = database.list_records()
        for record in kept:
            assert record.candidate == CANDIDATES[0]
        assert all(tune_one(w, database, device).candidate == CANDIDATES[0] for w in workloads)
        assert len(database.list_records()) == len(workloads)
    (aside,) = filled.parent.glob("t.db.corrupt-*")
    assert aside.stat().st_size >= int(size * fraction)
    if fraction == 0.9:
        assert kept


def test_whatever_byte_a_file_ends_at_no_record_is_misread(filled, tmp_path):
    data = filled.read_bytes()
    for part in range(3, 40):
        cut = tmp_path / f"{part}.db"
        cut.write_bytes(data[: len(data) * part // 40])
        with Database(cut) as database:
            assert all(record.candidate == CANDIDATES[0] for record in database.list_records())


def test_a_text_that_was_damaged_is_not_read(filled):
    data = filled.read_bytes()
    filled.write_bytes(data.replace(b'"bottleneck": 1', b'"bottleneck\x07 1'))
    with Database(filled) as database:
        assert not database.list_records()


def test_overwritten_pages_in_the_middle(filled, workloads, device, caplog):
    with filled.open("r+b") as file:
        file.seek(filled.stat().st_size // 2)
        file.write(random.Random(1).randbytes(3 * 4096))
    with caplog.at_level(logging.WARNING), Database(filled) as database:
        assert all(tune_one(w, database, device).candidate == CANDIDATES[0] for w in workloads)
    assert "rows of the damaged tuning database were saved" in caplog.text


def test_a_file_that_is_no_database(tmp_path, workloads, device, caplog):
    path = tmp_path / "t.db"
    path.write_bytes(b"this is a text file, long enough to be looked at as a header of SQLite\n" * 40)
    with caplog.at_level(logging.WARNING), Database(path) as database:
        assert tune_one(workloads[0], database, device).candidate == CANDIDATES[0]
    assert "moved to t.db.corrupt-" in caplog.text


def test_an_empty_file_is_a_new_database(tmp_path, workloads, device):
    path = tmp_path / "t.db"
    path.touch()
    with Database(path) as database:
        tune_one(workloads[0], database, device)
        assert len(database.list_records()) == 1


def test_a_locked_database_is_reported_when_it_is_opened(filled, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.1)
    holder = sqlite3.connect(filled, isolation_level=None)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("UPDATE winners SET topk = topk")
    with pytest.raises(DatabaseError, match="locked by another process"):
        Database(filled)
    holder.execute("ROLLBACK")
    holder.close()
    with Database(filled) as database:
        assert database.list_records()


def test_a_lock_that_stays_while_tuning_does_not_lose_the_compile(filled, workloads, device, monkeypatch, caplog):
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.1)
    with Database(filled) as database:
        database.gc(older_than_s=-1)  # nothing is younger: all winners go
        holder = sqlite3.connect(filled, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING):
            records = [tune_one(w, database, device) for w in workloads[:3]]
            assert [tune_one(w, database, device) for w in workloads[:3]] == records
        assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1
        assert len(database.list_records()) == 3
        holder.execute("ROLLBACK")
        holder.close()


def test_a_full_disk_while_tuning_does_not_lose_the_compile(filled, workloads, device, caplog):
    with Database(filled) as database:
        before = len(database.list_records())
        (pages,) = database._connection.handle.execute("PRAGMA page_count").fetchone()
        database._connection.handle.execute(f"PRAGMA max_page_count={pages}")
        fresh = _more(workloads, 12)
        with caplog.at_level(logging.WARNING):
            records = [tune_one(w, database, device) for w in fresh]
        assert all(record.candidate == CANDIDATES[0] for record in records)
        assert all(tune_one(w, database, device) == r for w, r in zip(fresh, records, strict=True))
        assert len([r for r in caplog.records if "disk is full" in r.message]) == 1
    with Database(filled) as database:
        assert len(database.list_records()) >= before


def _more(workloads, count):
    module = sys.modules["tuning_process"]
    return [module.scale(len(workloads) + i) for i in range(1, count + 1)]


def test_a_read_only_database_is_used_and_not_written(filled, workloads, device, monkeypatch, caplog):
    monkeypatch.setattr(sqlite_file.os, "access", lambda path, mode: False)  # the tests may run as root
    content = filled.read_bytes()
    with caplog.at_level(logging.WARNING), Database(filled) as database:
        assert "read-only" in caplog.text
        unused = ReplayMeasurer({DEFAULT: 1.0})
        tune_subgraph(workloads[0], device, Search(topk=6), database=database, measurer=unused)
        assert unused.log == []
        (fresh,) = _more(workloads, 1)
        record = tune_one(fresh, database, device)
        assert tune_one(fresh, database, device) == record
    assert filled.read_bytes() == content


def test_a_directory_and_a_path_that_cannot_be_made(tmp_path):
    with pytest.raises(DatabaseError, match="is a directory"):
        Database(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseError, match=r"cannot use the database .*name another"):
        Database(tmp_path / "file" / "t.db")

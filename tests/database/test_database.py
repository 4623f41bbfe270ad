"""The database keeps what it is given, finds only what fits, and gives MetaSchedule what it can use."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.s_tir import Schedule

from subtune import backends
from subtune.backends import as_device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import DatabaseError
from subtune.core.kernel import Kernel
from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
from subtune.core.record import Record
from subtune.core.versions import Scope, Versions
from subtune.core.workload import Workload
from subtune.database import Database, export_metaschedule, import_metaschedule, store
from subtune.database.statements import Select
from subtune.database.tables import WORKLOADS
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition

CANDIDATE = Candidate.make("tiled", 0.5, mr=4, order="m", flag=True)
TODAY = Versions("tvm-1/cpu-1", (("default", 1), ("tiled", 3), ("other", 2)))
X = Scope("cpu/x", TODAY)
OLD_SCHEMA = """
PRAGMA user_version=1;
CREATE TABLE workloads (key TEXT PRIMARY KEY, func BLOB NOT NULL, num_outputs INTEGER NOT NULL, at REAL NOT NULL);
CREATE TABLE measurements (
    key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, candidate TEXT NOT NULL,
    predicted_s REAL NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL,
    median_s REAL, min_s REAL, spread REAL, samples INTEGER, build_s REAL NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (key, device, versions, candidate)
);
CREATE TABLE winners (
    key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, candidate TEXT NOT NULL,
    predicted_s REAL NOT NULL, median_s REAL NOT NULL, min_s REAL NOT NULL, spread REAL NOT NULL,
    samples INTEGER NOT NULL, default_median_s REAL NOT NULL, default_min_s REAL NOT NULL,
    default_spread REAL NOT NULL, default_samples INTEGER NOT NULL, gain REAL NOT NULL, func_hash TEXT NOT NULL,
    topk INTEGER NOT NULL, tried INTEGER NOT NULL, failed INTEGER NOT NULL, complete INTEGER NOT NULL,
    at REAL NOT NULL, PRIMARY KEY (key, device, versions)
);
CREATE TABLE suggestions (
    key TEXT NOT NULL, candidate TEXT NOT NULL, median_s REAL NOT NULL, at REAL NOT NULL, PRIMARY KEY (key, candidate)
);
"""
FAST, SLOW = Timing(1e-6, 0.9e-6, 0.01, 50), Timing(5e-6, 4e-6, 0.02, 30)


def matmul(n: int = 16) -> Workload:
    a, b = (te.placeholder((n, n), "float32", name=name) for name in "ab")
    k = te.reduce_axis((0, n), name="k")
    return Workload.of(te.create_prim_func([a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k))]), 1)


def record_of(workload, device="cpu/x", candidate=CANDIDATE):
    return Record(workload.key, device, candidate, FAST, SLOW, 5.0, "ab" * 8, 20, 19, 3, True)


@pytest.fixture
def workload():
    return matmul()


@pytest.fixture
def database(place):
    with Database(place) as opened:
        yield opened


def test_a_record_comes_back_equal_also_in_another_process_of_time(database, workload):
    assert database.lookup(workload, X) is None
    database.add_record(workload, record_of(workload), TODAY)
    assert database.lookup(workload, X) == record_of(workload)
    with Database(database.path) as other:
        found = other.lookup(workload, X)
        assert found == record_of(workload)
        assert found.candidate.predicted_s == 0.5


def test_another_device_or_version_is_not_found(database, workload):
    database.add_record(workload, record_of(workload), TODAY)
    assert database.lookup(workload, Scope("cpu/y", TODAY)) is None
    assert database.lookup(matmul(8), X) is None
    later = replace(X, versions=replace(TODAY, common="tvm-2/cpu-1"))
    assert database.lookup(workload, later) is None
    assert database.list_records(versions=[later.versions]) == ()
    assert len(database.list_records(versions=[later.versions, TODAY])) == len(database.list_records()) == 1


def changed(**families):
    return Scope("cpu/x", Versions(TODAY.common, tuple((dict(TODAY.families) | families).items())))


def test_a_family_that_changed_takes_its_own_measurements_along_and_no_others(database, workload):
    other = Candidate.make("other", i=1)
    wrong = Failure(FailureKind.WRONG_RESULT, "no")
    database.add_measurements(workload, X, [Measurement(CANDIDATE, FAST), Measurement(other, wrong)])
    database.add_record(workload, record_of(workload), TODAY)
    assert database.lookup(workload, X).complete
    assert database.lookup(workload, changed(other=9)) == replace(record_of(workload), complete=False)
    assert database.outcomes(workload, changed(other=9)) == {CANDIDATE: FAST}
    assert database.lookup(workload, changed(tiled=9)) is None, "the winner is another kernel now"
    assert database.outcomes(workload, changed(tiled=9)) == {other: wrong}
    assert database.lookup(workload, changed(default=9)) is None, "and so is what it was compared with"
    assert database.outcomes(workload, changed(default=9)) == {}
    assert not database.lookup(workload, changed(new=1)).complete, "a new family may have a better one"


def test_a_database_of_the_first_format_is_kept_and_never_misread(tmp_path, workload, caplog):
    """As version 0.1.0 wrote it: one version of everything, the family of a candidate called template."""
    path = tmp_path / "old.db"
    old = sqlite3.connect(path)
    old.executescript(OLD_SCHEMA)
    versions = "tvm-1/subtune-0.1.0/templates-16"
    candidate = '{"knobs": {"flag": true, "mr": 4, "order": "m"}, "template": "tiled"}'
    func = zlib.compress(workload.to_json().encode())
    old.execute("INSERT INTO workloads VALUES (?, ?, 1, 1.0)", (workload.key, func))
    row = (workload.key, "cpu/x", versions, candidate, 0.5)
    old.execute("INSERT INTO measurements VALUES (?, ?, ?, ?, ?, '', '', 1e-6, 9e-7, 0.01, 50, 0.1, 1.0)", row)
    times = (1e-6, 9e-7, 0.01, 50, 5e-6, 4e-6, 0.02, 30, 5.0, "ab" * 8, 20, 19, 3, 1, 1.0)
    old.execute(f"INSERT INTO winners VALUES ({', '.join('?' * 20)})", (*row, *times))
    old.execute("INSERT INTO suggestions VALUES (?, ?, 1e-6, 1.0)", (workload.key, candidate))
    old.commit()
    old.close()
    with Database(path) as database:
        assert database.lookup(workload, X) is None
        assert database.outcomes(workload, X) == {}
        assert database.suggestions(workload) == (CANDIDATE,), "what it wrote says the same today"
        assert database.list_records(versions=[TODAY]) == ()
        assert database.list_records() == (record_of(workload),)
        database.add_record(workload, record_of(workload), TODAY)
        assert database.lookup(workload, X) == record_of(workload)
        assert database.gc(versions=[TODAY]) == 2
        assert database.list_records() == (record_of(workload),)
    assert not caplog.records


def test_a_hash_collision_is_not_a_hit(database, workload):
    database.add_record(workload, record_of(workload), TODAY)
    impostor = Workload(matmul(8).func, 1, workload.key)
    assert database.lookup(impostor, X) is None


def test_measurements_and_failures_are_kept_fastest_first(database, workload):
    wrong = Failure(FailureKind.WRONG_RESULT, "3 of 9 elements are wrong")
    crash = Failure(FailureKind.CRASH, "SIGSEGV")
    others = [Candidate.make("tiled", mr=i) for i in range(3)]
    given = [
        Measurement(others[0], wrong, 0.1),
        Measurement(others[1], SLOW, 0.2),
        Measurement(CANDIDATE, FAST, 0.3),
        Measurement(others[2], crash),
    ]
    database.add_measurements(workload, X, given)
    stored, records, measurements = database.show(workload.key[:6])
    assert stored.key == workload.key
    assert records == ()
    assert [m.candidate for m in measurements][:2] == [CANDIDATE, others[1]]
    assert set(measurements) == set(given)
    assert database.outcomes(workload, X) == {others[0]: wrong, others[1]: SLOW, CANDIDATE: FAST}


def test_a_later_measurement_replaces_the_earlier(database, workload):
    database.add_measurements(workload, X, [Measurement(CANDIDATE, SLOW)])
    database.add_measurements(workload, X, [Measurement(CANDIDATE, FAST)])
    assert [m.outcome for m in database.show(workload.key)[2]] == [FAST]


def test_a_candidate_may_be_longer_than_an_index_takes(database, workload, caplog):
    """As that of a traced schedule may be: 60 KB that cannot be compressed."""
    traces = [Candidate.make("trace", json=random.Random(seed).randbytes(30_000).hex()) for seed in range(2)]
    for seconds in (2e-6, 1e-6):
        for trace in traces:
            database.add_suggestion(workload, trace, seconds)
            database.add_measurements(workload, X, [Measurement(trace, replace(FAST, median_s=seconds))])
    assert sorted(database.suggestions(workload), key=str) == sorted(traces, key=str)
    assert {m.candidate: m.outcome.median_s for m in database.measurements(workload.key, X)} == dict.fromkeys(
        traces, 1e-6
    )
    assert not caplog.records, "all of it was stored"


def test_the_least_time_is_the_records_or_any_candidates(database, workload):
    assert database.least_s(workload, X) == 0.0
    wrong = Measurement(Candidate.make("tiled", mr=1), Failure(FailureKind.WRONG_RESULT, "no"))
    database.add_measurements(workload, X, [wrong])
    assert database.least_s(workload, X) == 0.0
    database.add_measurements(workload, X, [Measurement(CANDIDATE, SLOW), Measurement(Candidate.make("a"), FAST)])
    assert database.least_s(workload, X) == FAST.min_s
    record = replace(record_of(workload), timing=SLOW)
    database.add_record(workload, record, TODAY)
    assert database.least_s(workload, X) == SLOW.min_s, "what was confirmed, not what it seemed at a glance"


def test_listing_filters_by_key_and_device(database):
    workloads = [matmul(n) for n in (4, 8, 16)]
    for w in workloads:
        database.add_record(w, record_of(w, "cpu/x/t2"), TODAY)
    database.add_record(workloads[0], record_of(workloads[0], "cpu/y/t4"), TODAY)
    assert len(database.list_records()) == 4
    assert {r.workload_key for r in database.list_records(key=workloads[1].key[:8])} == {workloads[1].key}
    assert len(database.list_records(device="/t4")) == 1
    assert database.list_records(key="%") == ()


def test_show_of_an_unknown_or_ambiguous_key_says_so(database):
    with pytest.raises(DatabaseError, match="no workload has a key beginning with 'zz'"):
        database.show("zz")
    for n in (4, 8):
        database.add_record(matmul(n), record_of(matmul(n)), TODAY)
    with pytest.raises(DatabaseError, match="2 workloads"):
        database.show("")


def test_gc_drops_other_versions_old_rows_and_orphans(database, workload, monkeypatch):
    earlier = Versions("tvm-0/cpu-1", TODAY.families)
    database.add_record(matmul(8), record_of(matmul(8)), earlier)
    database.add_record(workload, record_of(workload), TODAY)
    assert database.gc(older_than_s=3600, versions=[TODAY]) == 2  # the other version's winner, and its workload
    assert database.workload(matmul(8).key) is None
    assert database.lookup(workload, X) is not None
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: time.time() + 3601))
    database.gc(older_than_s=3600)
    assert database.list_records() == ()
    assert database.workload(workload.key) is None


def test_workloads_are_stored_compressed(database, workload):
    database.add_record(workload, record_of(workload), TODAY)
    ((blob,),) = database.read(Select(WORKLOADS, ("func",)))
    assert zlib.decompress(blob).decode() == workload.to_json()


def test_a_file_of_a_newer_format_is_refused_and_left_alone(tmp_path, workload):
    path = tmp_path / "t.db"
    with Database(path) as database:
        database.add_record(workload, record_of(workload), TODAY)
        database._connection.handle.execute("PRAGMA user_version=99")
    content = path.read_bytes()
    with pytest.raises(DatabaseError, match="format 99"):
        Database(path)
    assert [(file, file.read_bytes()) for file in tmp_path.iterdir()] == [(path, content)]


def test_threads_share_an_open_database(database, workload, caplog):
    """More rows than a transaction's, of one workload and of one each."""
    workloads = [matmul(n) for n in range(2, 6)]

    def store(turn):
        for i in range(20):
            candidate = Candidate.make("tiled", mr=i, turn=turn)
            database.add_measurements(workload, X, [Measurement(candidate, FAST), Measurement(CANDIDATE, SLOW)])
            database.add_record(workloads[turn], record_of(workloads[turn]), TODAY)
            assert database.outcomes(workload, X)[candidate] == FAST

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store, range(4)))
    assert not caplog.records
    assert len(database.measurements(workload.key, X)) == 81
    assert [database.lookup(w, X) for w in workloads] == [record_of(w) for w in workloads]


# -- MetaSchedule ------------------------------------------------------------------------------------------


def traced(workload, candidate, device):
    """A template whose kernel is a trace of its workload, or is none."""
    if candidate.family == "untraced":
        return Kernel(workload.func)
    sch = Schedule(tvm.IRModule({"main": workload.func}))
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    i, j, k = sch.get_loops(block)
    jo, ji = sch.split(j, [None, 8])
    sch.reorder(i, jo, k, ji)
    sch.vectorize(ji)
    sch.parallel(i)
    return Kernel(sch.mod["main"], (), sch.trace)


SCHEDULE = f"{__name__}:traced"


@pytest.fixture
def exported(database, device, tmp_path, monkeypatch):
    """Two winners, of which one can go over to a MetaSchedule database."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    for n, template in ((16, "traced"), (8, "untraced")):
        w = matmul(n)
        database.add_record(
            w, record_of(w, device.fingerprint(), Candidate(template)), as_device(device).backend.versions()
        )
    directory = tmp_path / "ms"
    return directory, export_metaschedule(database, directory, as_device(device), SCHEDULE)


def _this_module():
    return SimpleNamespace(traced=traced)


def test_export_takes_what_is_a_trace_and_says_why_it_leaves_the_rest(exported, database, device):
    directory, result = exported
    assert result.count == 1
    reasons = dict(result.skipped)
    assert "not a trace" in reasons[matmul(8).key]
    assert (directory / "database_workload.json").stat().st_size > 0
    assert (directory / "database_tuning_record.json").stat().st_size > 0
    with pytest.raises(DatabaseError, match="already"):
        export_metaschedule(database, directory, as_device(device), SCHEDULE)


def calling(func):
    """A Relax module whose main calls `func`, which keeps the attributes it has."""
    bb = relax.BlockBuilder()
    square = relax.TensorType((16, 16), "float32")
    x, y = relax.Var("x", square), relax.Var("y", square)
    with bb.function("main", [x, y]):
        out = bb.emit(relax.call_tir(bb.add_func(func, "matmul"), relax.Tuple([x, y]), square))
        bb.emit_func_output(out)
    return bb.get()


def applied(mod, directory, target):
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    with target, JSONDatabase(work_dir=str(directory)):
        return relax.transform.MetaScheduleApplyDatabase()(mod)


def test_the_exported_database_schedules_a_relax_module(exported, device):
    directory, _ = exported
    target = device.target()
    mod = calling(matmul(16).func.without_attr("global_symbol"))
    scheduled = applied(mod, directory, target)
    assert scheduled["matmul"].attrs["tirx.is_scheduled"]
    assert not mod["matmul"].attrs.get("tirx.is_scheduled", False)
    assert "T.parallel" in scheduled["matmul"].script()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16), np.float32) for _ in range(2))
    results = []
    for module in (mod, scheduled):
        machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
        results.append(machine["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy())
    np.testing.assert_allclose(results[1], a @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attribute", [("layout_free_buffers", [1]), ("global_symbol", "matmul")])
def test_every_attribute_of_a_function_takes_part_in_the_look_up(exported, device, attribute):
    directory, _ = exported
    func = matmul(16).func.without_attr("global_symbol").with_attr(*attribute)
    scheduled = applied(calling(func), directory, device.target())
    assert not scheduled["matmul"].attrs.get("tirx.is_scheduled", False)


def test_what_was_exported_can_be_imported_and_replayed(exported, device, tmp_path):
    directory, _ = exported
    workload = matmul(16)
    with Database(tmp_path / "other.db") as other:
        other.add_record(workload, record_of(workload, device.fingerprint()), as_device(device).backend.versions())
        assert import_metaschedule(other, directory).count == 1
        (candidate,) = other.suggestions(workload)
        assert candidate.family == "trace"
        assert not other.lookup(workload, as_device(device).scope()).complete  # so that the next compile tries it
    kernel = backends.schedule(workload, candidate, device)
    tvm.ir.assert_structural_equal(kernel.func, traced(workload, Candidate("traced"), device).func)
    assert kernel.trace is not None
    misfit = backends.schedule(matmul(4), replace(candidate, knobs=(("json", '[["no such thing"], []]'),)), device)
    assert "does not fit" in misfit.reason


def test_import_of_what_is_no_metaschedule_database(database, tmp_path):
    with pytest.raises(DatabaseError, match=r"database_workload\.json"):
        import_metaschedule(database, tmp_path)
    (tmp_path / "database_workload.json").write_text("not json\n")
    (tmp_path / "database_tuning_record.json").write_text("[0, []]\n")
    with pytest.raises(DatabaseError, match="no MetaSchedule database"):
        import_metaschedule(database, tmp_path)


def test_default_is_a_candidate_like_any_other(database, workload):
    database.add_record(workload, record_of(workload, candidate=DEFAULT), TODAY)
    assert database.lookup(workload, X).is_default


def test_another_process_reads_a_quantised_workload(tmp_path):
    """Its division is an operator of our own, which a process has to know; what speaks to a server it need not."""
    x, scale = relax.Var("x", relax.TensorType((8, 16), "float32")), relax.const(np.float32(0.1))
    body = relax.op.quantize(x, scale, relax.const(3, "uint8"), axis=0, out_dtype="uint8")
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(bb.normalize(body))
        bb.emit_func_output(result)
    mod = bb.finalize()
    (subgraph,) = extract(outline(mod, partition(mod)))
    assert "subtune_fma" in subgraph.workload.func.script()
    with Database(tmp_path / "t.db") as database:
        database.add_measurements(subgraph.workload, X, [Measurement(CANDIDATE, FAST)])
    program = "import sys; from subtune.database import Database\n"
    program += "with Database(sys.argv[1]) as database: print(database.workload(sys.argv[2]).key)\n"
    program += "print(sorted({'sqlalchemy', 'psycopg'} & sys.modules.keys()))"
    command = [sys.executable, "-c", program, str(tmp_path / "t.db"), subgraph.workload.key]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout.splitlines() == [subgraph.workload.key, "[]"], found.stderr

"""Kernels that are built here and run behind TVM's RPC: their times, what is found of bad ones, a lost connection."""

from __future__ import annotations

import math
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm

from subtune import load
from subtune.backends import as_device, device_at
from subtune.backends.cpu.lowering.pack_there import numbers_of
from subtune.backends.cpu.lowering.ring import COMPARE, PACK, PUT, RING, SPREAD, tools, write
from subtune.backends.cpu.timing import there
from subtune.backends.cpu.timing.there import There
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError, TargetError
from subtune.core.kernel import Packing
from subtune.core.measurement import Comparison, Failure, FailureKind, Timing
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.measure.guarded import GUARD_BYTES, Guarded, as_bytes
from subtune.measure.inputs import repeated
from subtune.measure.messages import Library
from subtune.measure.session import LocalSession
from subtune.measure.site import Site
from subtune.models import reduced
from subtune.runtime import remote as remote_runtime
from subtune.runtime.remote import Facts, Remote, SessionExpired, close, facts_of, read_remote
from tests.dynamic.models import layer
from tests.measure.rpc_server import rpc_server

ADDRESS = Remote("127.0.0.1", 9090)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with rpc_server(tmp_path_factory.mktemp("server") / "log.txt") as port:
        yield Remote("127.0.0.1", port)


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """A server has one session at a time, and `session` has that of the first."""
    with rpc_server(tmp_path_factory.mktemp("server") / "log.txt") as port:
        yield Remote("127.0.0.1", port)


@pytest.fixture(scope="module")
def session(remote, doubles, device) -> Iterator[LocalSession]:
    search_path, sites = [doubles.DIRECTORY], [Site(remote)]
    with (
        LocalMeasurer(builders=1, schedule="doubles:schedule", search_path=search_path, sites=sites) as measurer,
        measurer.session(doubles.workload(), device) as opened,
    ):
        yield opened


def test_addresses():
    assert read_remote("127.0.0.1:9090") == ADDRESS
    assert read_remote("127.0.0.1:9190/pi4") == Remote("127.0.0.1", 9190, "pi4")
    assert read_remote("[::1]:9090") == Remote("::1", 9090)
    assert read_remote("8.8.8.8:9090", insecure=True).host == "8.8.8.8"
    assert str(Remote("h", 1, "k")) == "h:1/k"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.1", "write host:port"),
        ("127.0.0.1:", "write host:port"),
        (":9090", "write host:port"),
        ("127.0.0.1:99999", "write host:port"),
        ("8.8.8.8:9090", "public address"),
        ("8.8.8.8:9190/board", "public address"),
        ("[2001:4860:4860::8888]:9090", "public address"),
        ("there.is.no.such.host.invalid:9090", "is not known"),
    ],
)
def test_addresses_that_are_refused(text, said):
    with pytest.raises(TargetError, match=said):
        read_remote(text)


def test_a_device_says_what_it_is(remote, device):
    facts = facts_of(remote)
    assert facts.target["mcpu"] == tvm.get_global_func("target.llvm_get_system_cpu")()
    assert facts.threads == 2
    found = device_at(remote, facts).model
    assert found.fingerprint() == device.fingerprint(), "it is this machine"
    with pytest.raises(TargetError, match="start it with TVM_NUM_THREADS=3"):
        device_at(remote, facts, threads=3)
    with pytest.raises(TargetError, match="not by --remote"):
        device_at(remote, facts, "H100")


def test_a_name_with_one_public_address_is_public(monkeypatch):
    of_name = [(socket.AF_INET, 0, 0, "", (address, 0)) for address in ("10.0.0.3", "8.8.4.4")]
    monkeypatch.setattr(remote_runtime.socket, "getaddrinfo", lambda *_: of_name)
    with pytest.raises(TargetError, match=r"8\.8\.4\.4 is a public address, .* or say --insecure"):
        read_remote("board.example:9090")
    assert read_remote("board.example:9090", insecure=True).host == "board.example"


@pytest.mark.parametrize(
    ("triple", "target", "said"),
    [
        ("aarch64-linux-gnu", "znver4", "znver4: it is x86_64-.*, and the device at .* is aarch64-linux-gnu; leave"),
        ("x86_64-conda-linux-gnu", "cortex-a72", "cortex-a72: it is aarch64-linux-gnu, and the device at .* is x86_64"),
        ("aarch64-linux-gnu", "apple-m1", "apple-m1: it is arm64-apple"),
        ("arm64-apple-macosx14.0", "auto", "only Linux can be measured on"),
    ],
)
def test_a_device_of_another_kind(triple, target, said):
    facts = Facts({"mcpu": "", "mtriple": triple, "num-cores": 4}, {}, False)
    with pytest.raises(TargetError, match=said):
        device_at(ADDRESS, facts, target)


def test_models_of_many_shapes_are_refused(tmp_path):
    with pytest.raises(TargetError, match="compile without --remote"):
        compile_model(layer(), tmp_path / "m.subtune", dynamic={"seq": "1..4"}, remote=str(ADDRESS))


def test_nobody_there(monkeypatch):
    monkeypatch.setattr(remote_runtime, "_ANSWERS_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Remote("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(SubtuneError, match="cannot be reached"):
            facts_of(address)
        taken.listen(1)  # and accepts nobody, as a server whose thread has ended
        with pytest.raises(SubtuneError, match="it is busy with somebody else's session, or has to be started again"):
            facts_of(address)


def test_a_device_that_has_gone_is_waited_for_once(monkeypatch):
    """And again, once it was there."""
    tries, is_there = [], []

    def connected(remote):
        tries.append(remote)
        if not is_there:
            raise ConnectionError("nobody")
        return object()

    monkeypatch.setattr(remote_runtime, "connected", connected)
    monkeypatch.setattr(remote_runtime, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(remote_runtime, "_PAUSE_S", 0.01)
    connection = remote_runtime.Connection(ADDRESS, lambda _: None, lambda: None)
    counts = []
    for _ in range(2):
        with pytest.raises(remote_runtime.DeviceGone, match="nobody"):
            connection.session()
        counts.append(len(tries))
    assert counts[0] > 3
    assert counts[1] - counts[0] == 1
    is_there.append(True)
    assert connection.session() is connection.session()
    is_there.clear()
    connection.drop()
    before = len(tries)
    with pytest.raises(remote_runtime.DeviceGone):
        connection.session()
    assert len(tries) - before > 3


def test_another_kind_of_server():
    class Greets(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"SSH-2.0-OpenSSH_9.2")

    with socketserver.TCPServer(("127.0.0.1", 0), Greets) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        with pytest.raises(SubtuneError, match="no server of TVM's RPC is there"):
            facts_of(Remote("127.0.0.1", other.server_address[1]))


def test_good_candidates_are_checked_and_timed(session):
    session.build([DEFAULT, Candidate("vector"), Candidate("packed"), Candidate("slow")], math.inf)
    for name in ("vector", "packed"):
        assert isinstance(session.check(Candidate(name)), Comparison)
        timing = session.time(Candidate(name), 0.01, math.inf)
        assert isinstance(timing, Timing)
        assert 0 < timing.min_s < 1e-3
        faster = session.compare(Candidate(name), 0.02)
        assert isinstance(faster, Comparison)
        assert faster.gain > 1  # the default sleeps 0.3 ms
        assert faster.default_timing.min_s >= 0.0003
    assert session.time(Candidate("slow"), 0.01, math.inf).min_s >= 0.1


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("nan", "[17]"),
        ("swallows", "on special inputs"),
        ("beyond", "out of bounds of C, 0 bytes behind its end"),
        ("before", "out of bounds of C, 64 bytes before its start"),
        ("unwritten", "[999]"),
        ("scribbler", "changed its input A"),
    ],
)
def test_what_bad_candidates_do_is_found(session, template, words):
    session.build([Candidate(template), Candidate("vector")], math.inf)
    failure = session.time(Candidate(template), 0.01, math.inf)
    assert isinstance(failure, Failure)
    assert failure.kind == FailureKind.WRONG_RESULT
    assert words in failure.message
    assert isinstance(session.time(Candidate("vector"), 0.001, math.inf), Timing)


def test_what_ends_its_process_costs_itself_alone(session):
    candidates = [Candidate(name) for name in ("segfault", "abort", "vector")]
    session.build([DEFAULT, *candidates], math.inf)
    for bad in candidates[:2]:
        failure = session.time(bad, 0.01, math.inf)
        assert isinstance(failure, Failure)
        assert failure.kind == FailureKind.CRASH
        assert "while it ran" in failure.message
        assert isinstance(session.time(candidates[2], 0.001, math.inf), Timing)


@pytest.fixture(scope="module")
def library(doubles, device, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of C[i] = A[i] * W[i] + 1."""
    return sent(doubles.graph, device, tmp_path_factory.mktemp("ring"))


def sent(func: tvm.tirx.PrimFunc, device, folder: Path) -> str:
    made = as_device(device)
    path = made.backend.build_to_send(func, made, str(folder / func.attrs.get("global_symbol", "k")), True)
    assert isinstance(path, str)
    return path


def arguments() -> tuple[list[Guarded], Guarded, np.ndarray]:
    a, w = (np.random.default_rng(i).standard_normal(1000).astype(np.float32) for i in (0, 1))
    return [Guarded.like(a, "float32"), Guarded.like(w, "float32")], Guarded(4000, (1000,), "float32"), a * w + 1


def test_a_ring_goes_through_all_sets(library, device, tmp_path):
    ring = tvm.runtime.load_module(library)
    write(tools(), as_device(device).model, tmp_path / "tools.so")
    module = tvm.runtime.load_module(str(tmp_path / "tools.so"))
    inputs, output, expected = arguments()
    arrays = [tvm.runtime.empty((one.whole.size * 3,), "uint8") for one in (*inputs, output)]
    for one, array in zip((*inputs, output), arrays, strict=True):
        module[SPREAD](tvm.runtime.tensor(one.whole), array, 3)
    stride = [one.whole.size for one in (*inputs, output)]
    offsets = np.array([[GUARD_BYTES + copy * each for each in stride] for copy in range(3)], np.int64).reshape(-1)
    taken = ring[RING](1, 2, 3, 9, tvm.runtime.tensor(offsets), *arrays)  # the second and the third set
    results = arrays[-1].numpy().reshape(3, -1)[:, GUARD_BYTES : GUARD_BYTES + 4000].copy().view(np.float32)
    np.testing.assert_allclose(results[1:], [expected, expected], rtol=1e-5, atol=1e-6)
    assert not np.allclose(results[0], expected)
    assert 0 < taken < 10**9, "nanoseconds"
    one, other = (np.array(values, np.uint8) for values in ([0, 1, 2, 3, 4], [0, 9, 2, 3, 5]))
    assert module[COMPARE](tvm.runtime.tensor(one), tvm.runtime.tensor(other), 0, 0) == 2


@pytest.mark.parametrize(
    ("shape", "packing"),
    [
        ((64, 3, 3, 5), Packing(((2, 32), (3,), (3,), (5,)), (0, 2, 3, 4, 1))),
        ((64, 48), Packing(((64,), (3, 16)), (1, 0, 2))),
        ((48,), Packing(((48,),), (0,))),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_constants_are_packed_there(shape, packing, dtype, device, tmp_path):
    write(tools(), as_device(device).model, tmp_path / "tools.so")
    module = tvm.runtime.load_module(str(tmp_path / "tools.so"))
    constant = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    expected = packing(constant)
    array = tvm.runtime.tensor(np.full(expected.nbytes + 64, 7, np.uint8))
    given = [tvm.runtime.tensor(one) for one in (as_bytes(constant), numbers_of(packing))]
    module[f"{PACK}{constant.itemsize}"](given[0], array, 32, given[1])
    found = array.numpy()
    assert (found[:32] == 7).all()
    assert (found[-32:] == 7).all()
    np.testing.assert_array_equal(found[32:-32].copy().view(dtype).reshape(packing.shape), expected)


@pytest.mark.parametrize("form", [None, Packing(((125, 200),), (1, 0)), Packing(((126, 200),), (1, 0))])
def test_large_constants_are_laid_out_there(form, another, device):
    place = There(another, as_device(device).model)
    constant = np.arange(25000, dtype=np.float32)
    one = Guarded.like(form(constant) if form else constant, "float32")
    one.origin = constant, form
    np.testing.assert_array_equal(place._placed(one).numpy()[: one.whole.size], one.whole)
    place._connection.drop()


def test_large_inputs_are_repeated_there(another, device):
    place = There(another, as_device(device).model)
    block = np.arange(7001, dtype=np.float32)
    one = Guarded.like(repeated(block, (150, 200)), "float32")
    one.origin = block, None
    np.testing.assert_array_equal(place._placed(one).numpy()[: one.whole.size], one.whole)
    place._connection.drop()


@pytest.mark.parametrize("is_past", [False, True])
@pytest.mark.parametrize(("change", "is_near"), [(0.0, True), (1e-5, True), (1.0, False), (np.nan, False)])
def test_a_large_result_is_brought_where_it_is_wrong(change, is_near, is_past, another, device):
    place = There(another, as_device(device).model)
    right = np.arange(50000, dtype=np.float32)
    found = right.copy()
    found[3] += change
    result = Guarded(right.nbytes, right.shape, "float32")
    result.fill(0xFF)
    result.right = right, 1e-4
    array, before = place._result(0, result)
    place._tool[PUT](place._sent(as_bytes(found)), array, GUARD_BYTES)
    if is_past:  # as a kernel may
        place._tool[PUT](place._sent(np.array([0], np.uint8)), array, result.whole.size - 1)
    place._bring_result(result, array, before)
    assert result.is_near == (is_near and not is_past)
    assert ("behind its end" in result.overwritten()) == is_past
    if not result.is_near:
        np.testing.assert_array_equal(result.bytes.view(np.float32), found)
    place._connection.drop()


def test_large_results_are_filled_there(another, device):
    place = There(another, as_device(device).model)
    one = Guarded(123457, (123457,), "uint8")
    one.fill(0x7F)
    for _ in range(2):
        np.testing.assert_array_equal(place._result(0, one)[0].numpy()[: one.whole.size], one.whole)
    place._connection.drop()


def test_a_connection_that_was_lost_is_made_again(library, another, device):
    place, (inputs, output, expected) = There(another, device), arguments()
    kernel = place.load(Library(library, "", (), 0.0))
    assert place.run(kernel, inputs, [output]) > 0
    np.testing.assert_allclose(output.bytes.view(np.float32), expected, rtol=1e-5, atol=1e-6)
    output.fill(0)
    close(place._connection.session())  # as it would be by a cable
    with pytest.raises(ConnectionError, match="was lost"):
        place.run(kernel, inputs, [output])
    assert place.run(kernel, inputs, [output]) > 0
    np.testing.assert_allclose(output.bytes.view(np.float32), expected, rtol=1e-5, atol=1e-6)
    place._connection.drop()


def test_what_hangs_is_ended(another, doubles, device, tmp_path, monkeypatch):
    monkeypatch.setattr(there, "_HANGS_S", 1)
    place, (inputs, output, _) = There(another, device), arguments()
    hangs = place.load(Library(sent(doubles.hang, device, tmp_path), "", (), 0.0))
    with pytest.raises(SessionExpired, match="more than 1 s"):
        place.run(hangs, inputs, [output])
    assert place.run(place.load(Library(sent(doubles.graph, device, tmp_path), "", (), 0.0)), inputs, [output]) > 0
    place._connection.drop()


def test_a_model(another, tmp_path: Path):
    report = compile_model(
        reduced("mlp"), tmp_path / "m.subtune", remote=str(another), topk=2, threads=2, database=tmp_path / "db"
    )
    assert report.verified
    assert all(row.tuned_s > 0 for row in report.rows)
    assert load(report.path).inputs

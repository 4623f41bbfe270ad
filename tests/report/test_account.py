"""What a compile leaves in the artifact to be looked at: the partition, what was tried, where tensors lie and when."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from subtune.artifact import load
from subtune.artifact import manifest as manifests
from subtune.artifact.account import read_account, write_account
from subtune.core.account import ACCOUNT_NAME, Account, Life, MemoryUse
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import ArtifactError
from subtune.core.manifest import Manifest
from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
from subtune.database import Database
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.pipeline import prepare
from subtune.report import account as accounts
from tests.small_model import small_onnx

MODEL = "zoo:unet?image=32&base=8&levels=2"


@pytest.fixture(scope="module")
def compiled(workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("account")
    compile_model(
        MODEL, folder / "m.subtune", topk=2, verify=False, threads=2, database=folder / "t.db", measurer=workers
    )
    return folder / "m.subtune"


def account_of(path: Path) -> tuple[Manifest, Account]:
    manifest = manifests.read(path)
    found = read_account(path, manifest)
    assert found is not None
    return manifest, found


def test_it_has_all_of_the_partition(compiled: Path) -> None:
    manifest, account = account_of(compiled)
    kernels = Counter(node.subgraph for node in account.nodes if node.subgraph)
    assert kernels == {one.name: one.uses for one in account.subgraphs}
    assert {one.name for one in account.subgraphs} <= {one.name for one in manifest.subgraphs}
    assert all(before < len(account.nodes) for node in account.nodes for before in node.after)
    ops = [op for node in account.nodes for op in node.ops]
    assert len(ops) == len(set(ops)) == len(prepare(MODEL).graph.dag)
    assert any(node.ends for node in account.nodes)


def test_its_figures_are_those_of_the_manifest(compiled: Path) -> None:
    manifest, account = account_of(compiled)
    entries = {one.name: one for one in manifest.subgraphs}
    for one in account.subgraphs:
        entry = entries[one.name]
        assert (one.default_s, one.tuned_s) == (entry.default_s, entry.tuned_s)
        assert entry.candidate.startswith(one.schedule.rstrip("…"))
        assert one.tuned_s > 0
        assert one.bound_s > 0
        assert one.tried >= one.failed
        assert one.failed == sum(count for _, count in one.failures)
    assert sum(one.tried for one in account.subgraphs) > 0
    assert dict(account.seconds)["tune"] > 0


def test_memory_is_that_of_the_plan(compiled: Path) -> None:
    """The largest sum of live tensors is the plan's lower bound, but for how each is aligned."""
    manifest, account = account_of(compiled)
    use = account.memory
    assert use.lives
    assert len(use.steps) >= len({one.name for one in account.subgraphs})
    assert max(use.live_bytes) <= manifest.memory.bound_nbytes <= max(use.live_bytes) + 64 * len(use.lives)
    assert max(life.offset + life.nbytes for life in use.lives) <= manifest.memory.arena_nbytes
    for i, one in enumerate(use.lives):
        for other in use.lives[i + 1 :]:
            is_apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
            assert is_apart or one.last < other.first or other.last < one.first


def test_live_bytes() -> None:
    use = MemoryUse(("a", "b", "c"), (Life(0, 10, 0, 1), Life(64, 5, 1, 2)))
    assert use.live_bytes == (10, 15, 5)


def test_a_damaged_account_is_found(compiled: Path, tmp_path: Path) -> None:
    manifest, account = account_of(compiled)
    write_account(tmp_path, replace(account, notes=("other",)))
    (tmp_path / ACCOUNT_NAME).write_bytes(b"{}" * 20)
    with pytest.raises(ArtifactError, match=r"report\.json is damaged"):
        read_account(tmp_path, manifest)
    entry = next(one for one in manifest.files if one.name == ACCOUNT_NAME)
    for text in ('{"subgraphs": 3}', "no JSON"):
        (tmp_path / ACCOUNT_NAME).write_text(text)
        sha256 = manifests.sha256_of(tmp_path / ACCOUNT_NAME)
        changed = replace(manifest, files=(replace(entry, sha256=sha256, nbytes=len(text)),))
        with pytest.raises(ArtifactError, match=r"report\.json is of another version"):
            read_account(tmp_path, changed)


def test_an_older_artifact_has_none(compiled: Path) -> None:
    manifest = manifests.read(compiled)
    older = replace(manifest, files=tuple(one for one in manifest.files if one.name != ACCOUNT_NAME))
    assert read_account(compiled, older) is None


def test_it_counts_neither_as_code_nor_as_weights(compiled: Path) -> None:
    manifest = manifests.read(compiled)
    sizes = {one.name: one.nbytes for one in manifest.files}
    assert manifest.code_bytes + manifest.weights_nbytes + sizes[ACCOUNT_NAME] <= sum(sizes.values())
    assert manifest.code_bytes == sizes["model.so"]


def test_pauses_between_compiles_are_left_out() -> None:
    clock = accounts._clock([100.0, 101.5, 1e6, 1e6 + 2])
    assert [clock(at) for at in (100.0, 101.5, 1e6, 1e6 + 2)] == [0.0, 1.5, 1.5, 3.5]


def test_failures_stay_where_there_are_many_candidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few are listed and all are counted; messages are cut."""
    from subtune.backends import device_of
    from subtune.tuning.winners import Winners

    monkeypatch.setattr(accounts, "_CANDIDATES", 1)
    prepared = prepare(small_onnx())
    device = device_of("llvm -mcpu=x86-64-v3", 2, is_measured=False)
    subgraph = prepared.subgraphs[0]
    timed = [Measurement(Candidate.make("f", 1e-6, i=i), Timing(i * 1e-6, i * 1e-6, 0.0, 3)) for i in range(1, 30)]
    failed = [
        Measurement(Candidate.make("f", 1e-6, i=-i), Failure(FailureKind.BUILD, "too\nlong " * 99)) for i in range(9)
    ]
    with Database(tmp_path / "t.db") as store:
        default = Measurement(DEFAULT, Timing(1.0, 1.0, 0.0, 3))
        store.add_measurements(subgraph.workload, device.scope(), [*timed, *failed, default])
        account = accounts.account(
            prepared, prepared.alternatives(), (), accounts.Tuning({}, Winners({}), device, store)
        )
    found = next(one for one in account.subgraphs if one.name == subgraph.name)
    assert (found.tried, found.failed, found.tuned_s) == (38, 9, 0.0)
    assert account.failures == {"build": 9}
    assert [one.failure for one in found.candidates] == [""] * 4 + ["build"] * 2
    assert [one.measured_s for one in found.candidates[:2]] == [1e-6, 2e-6]
    assert all(len(one.message) <= 160 and "\n" not in one.message for one in found.candidates)


def test_it_shows_itself_in_a_notebook(compiled: Path) -> None:
    html = load(compiled)._repr_html_()
    assert "<strong" in html
    assert "image: float32[1, 3, 32, 32]" in html
    assert html.count("<tr>") > 5
    assert html.count("<div") == html.count("</div>")


def test_json_is_compact(compiled: Path) -> None:
    text = (compiled / ACCOUNT_NAME).read_text()
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
    assert len(text) < 100_000

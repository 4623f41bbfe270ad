"""The road of one model, in order: import, normalise, partition, outline, extract, tune, choose, splice, write.

This is the only module that knows all the rooms. `subtune.compile(...)` is `compile` below: the module itself is
made callable, because importing it binds the package's attribute `compile` to it.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subtune import backends, frontends
from subtune.artifact import Artifact
from subtune.artifact import manifest as manifests
from subtune.artifact.writer import check_destination, write_files
from subtune.assembly import compile_module
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError, TargetError, VerificationError
from subtune.core.graph import PartitionGraph, Subgraph
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.manifest import KernelOrigin, Source
from subtune.core.numerics import PLAIN, PRECISIONS, Numerics
from subtune.core.progress import ProgressCallback
from subtune.core.record import Record, func_hash
from subtune.core.scratch import TEMPORARY, TEMPORARY_END, scratch
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.frontends import Imported, Parameters
from subtune.measure import Measurer
from subtune.passes.bfloat16 import to_half
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.passes.pipeline import normalize
from subtune.passes.splice import splice
from subtune.report.compile_report import CompileReport, SubgraphRow
from subtune.tuning.alternatives import alternatives_to, chosen_partition, foreseen
from subtune.tuning.choose import choose
from subtune.tuning.predict import BASIS, predict
from subtune.tuning.search import Records, tune

if TYPE_CHECKING:
    import tvm

    from subtune.verification.verify import VerifyReport

logger = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]

_HALVES = {"bf16": "bfloat16", "fp16": "float16"}

_SHOWN_OF_AN_ERROR = 200
"""Characters of what a reference runtime says of a model that it cannot run."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model ready to be tuned. `mod` is frozen: tuning and building use this very module.

    `normalized` is the module that `graph` partitions, from which another partition can be outlined.
    """

    imported: Imported
    normalized: tvm.IRModule
    graph: PartitionGraph
    mod: tvm.IRModule
    subgraphs: tuple[Subgraph, ...]


def prepare(
    model: Any, shapes: Shapes | None = None, precision: str = "fp32", parameters: Parameters | None = None
) -> Prepared:
    """Import, normalise, partition and outline a model.

    Args:
        model: a path, bytes, an `onnx.ModelProto`, a Relay text, or `zoo:NAME`.
        shapes: fixed shapes of inputs with symbolic dims, by input name.
        precision: "fp32" keeps the model's types; "bf16" multiplies in bfloat16, "fp16" in float16
            (`passes.bfloat16`).
        parameters: the weights of a Relay model.
    """
    imported = frontends.load(model, shapes, parameters)
    return prepare_imported(imported, precision)


def parameters_of(params: Any = None, random_params: bool = False, inputs: Sequence[str] | None = None) -> Parameters:
    """`compile_model`'s arguments as the frontends take them."""
    return Parameters(params, random_params, None if inputs is None else tuple(inputs))


def prepare_imported(imported: Imported, precision: str = "fp32") -> Prepared:
    """`prepare` for a model that is imported already."""
    normalized = _normalized(imported.mod, precision)
    graph = partition(normalized)
    return _outlined(imported, normalized, graph)


def _normalized(mod: tvm.IRModule, precision: str) -> tvm.IRModule:
    if precision not in PRECISIONS:
        raise SubtuneError(f"there is no precision {precision!r}: choose {' or '.join(PRECISIONS)}")
    normalized = normalize(mod)
    return to_half(normalized, _HALVES[precision]) if precision in _HALVES else normalized


def _outlined(imported: Imported, normalized: tvm.IRModule, graph: PartitionGraph) -> Prepared:
    mod = outline(normalized, graph)
    return Prepared(imported, normalized, graph, mod, extract(mod))


def arranged(prepared: Prepared, graph: PartitionGraph) -> Prepared:
    """The same model under another partition of its ops."""
    return prepared if graph is prepared.graph else _outlined(prepared.imported, prepared.normalized, graph)


def untuned(mod: tvm.IRModule, device: Device) -> tvm.IRModule:
    """An imported module in call_tir form with default schedules: nothing is measured."""
    normalized = _normalized(mod, "fp32")
    outlined = outline(normalized, partition(normalized))
    return splice(outlined, schedule_kernels(extract(outlined), {}, device))


def device_model(
    target: Any = "auto",
    threads: int | None = None,
    device_file: Any = None,
    numerics: Numerics = PLAIN,
    is_measured: bool = True,
) -> Device:
    """`subtune.backends.device_of`."""
    return backends.device_of(target, threads, device_file, numerics, is_measured)


def schedule_kernels(
    subgraphs: Sequence[Subgraph], chosen: Mapping[str, Candidate], device: Device
) -> dict[str, Kernel]:
    """Each subgraph's candidate, scheduled on the frozen PrimFunc; the default schedule where none was chosen.

    Args:
        chosen: by workload key.
    """
    kernels = {}
    for subgraph in subgraphs:
        candidate = chosen.get(subgraph.workload.key, DEFAULT)
        kernel = applied(subgraph.workload, candidate, device)
        if isinstance(kernel, NotApplicable):  # a record of another version of the templates
            logger.warning("%s: %s does not apply any more: %s", subgraph.name, candidate, kernel.reason)
            kernel = backends.schedule(subgraph.workload, DEFAULT, device)
        assert isinstance(kernel, Kernel)
        kernels[subgraph.name] = kernel
    return kernels


def applied(workload: Workload, candidate: Candidate, device: Device) -> Kernel | NotApplicable:
    """The kernel of a candidate that was chosen elsewhere, or why there is none: a template may not foresee it."""
    try:
        return backends.schedule(workload, candidate, device)
    except Exception as e:  # as in a worker process, where it would cost the candidate only
        return NotApplicable(f"{type(e).__name__}: {e}")


def compile_model(
    model: Any,
    output: str | Path,
    *,
    target: str = "auto",
    shapes: Shapes | None = None,
    budget_s: float | None = None,
    topk: int = 20,
    threads: int | None = None,
    database: Database | str | Path | None = None,
    device_file: str | Path | None = None,
    exact: bool = False,
    precision: str = "fp32",
    verify: bool = True,
    tune: bool = True,
    measurer: Measurer | None = None,
    progress: ProgressCallback | None = None,
    gpu: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | str | Path | bytes | None = None,
    random_params: bool = False,
    inputs: Sequence[str] | None = None,
) -> CompileReport:
    """Tune `model` and write its artifact to the directory `output`.

    Args:
        budget_s: wall-clock seconds for tuning, spent on the subgraphs with most time at stake first.
        topk: candidates per subgraph.
        database: an open database or its path; None is the one in the user's cache directory.
        exact: only kernels that round as the model says: no Winograd, no polynomials for exp, tanh and erf.
        precision: "fp32", the model as it is, or "bf16": products of bfloat16 with sums and all else in float32,
            activations in memory as bfloat16, inputs and results in their own types. The comparison with the reference
            allows what that costs, and the report says how much it was. "fp16", for a GPU: the same with float16.
        gpu: switches of a GPU's model: `tensor_core`, `allow_tf32`, `wgmma`.
        verify: compare the whole model with ONNX Runtime, or without it with the untuned build, before it is
            written; a model that disagrees is refused (VerificationError).
        target: a machine that is not this one gets kernels that were measured there, if the database has them, and
            for the rest those that the policy predicts to be the fastest.
        tune: False takes what the database has, and default schedules for the rest.
        measurer: worker processes that are warm already; None starts some and ends them.
        progress: called with a `subtune.core.progress.Progress` after every measured candidate.
        params: the weights of a Relay model: name -> array, or a file (or its bytes) that `relay.save_param_dict` or
            `numpy.savez` wrote.
        random_params: weights of a Relay model that have no value get random ones.
        inputs: the names of all parameters of a Relay model that are its inputs; None leaves it to their use.

    Ctrl-C while tuning keeps what was tuned, and the artifact is still written; the report says so.
    """
    output = check_destination(output)
    numerics = Numerics(exact, precision=precision, **(gpu or {}))
    device = device_model(target, threads, device_file, numerics, is_measured=False)
    is_elsewhere = bool(device.model.obstacle())
    stand_in = device.backend.stand_in(device) if is_elsewhere else device
    verify = verify and stand_in is not None  # the kernels can run nowhere here
    if verify and stand_in is not None and is_elsewhere:
        try:
            stand_in.backend.check(stand_in, is_measured=False)
        except TargetError as e:
            raise TargetError(f"{e}, to verify it here; compile with --no-verify") from e
    runs_here = backends.host_device(numerics)
    clock = _Clock()
    with clock.stage("prepare"):
        prepared = prepare(model, shapes, precision, parameters_of(params, random_params, inputs))
        others = alternatives_to(prepared.normalized, prepared.graph, prepared.subgraphs)
    with opened(database) as store, clock.stage("tune"):
        is_tuning = tune and not is_elsewhere
        later, reasons = foreseen(others.subgraphs, device, store)
        records = _tuned(prepared.subgraphs, later, device, store, topk, budget_s, is_tuning, measurer, progress)
    with clock.stage("choose"):
        choices = choose(others, records, reasons | records.failures, device.model.between_kernels_s)
        prepared = arranged(prepared, chosen_partition(prepared.graph, others, choices))
        guesses = predict(prepared.subgraphs, device, known=records) if tune and is_elsewhere else {}
    with clock.stage("build"), ThreadPoolExecutor(1) as beside:
        subgraphs, imported = prepared.subgraphs, prepared.imported
        kernels = _tuned_kernels(subgraphs, records, guesses, device)
        checked = _verification(imported, shapes, runs_here, beside, precision) if verify else None
        specs, outputs, name, notes = imported.inputs, imported.outputs, imported.name, imported.notes
        outlined = [prepared.mod]
        del prepared, imported  # a large model's constants stay as long as somebody needs them, and no longer
        path = write_files(
            output,
            mod=splice(outlined.pop(), kernels),
            inputs=specs,
            outputs=outputs,
            name=name,
            device=device,
            kernels=_origins(subgraphs, records, guesses),
            source=replace(_source(model, shapes), precision=precision),
            check=checked.run if checked else None,
        )
    return CompileReport(
        path=str(path),
        rows=tuple(_row(s, records.get(s.workload.key), guesses) for s in subgraphs),
        seconds=clock.seconds,
        verified=checked.summary + (", the same kernels built for this machine" if is_elsewhere else "")
        if checked
        else "",
        is_interrupted=records.interrupted,
        failures=_failures(subgraphs, records),
        notes=notes + (_notes(device, records, guesses) if is_elsewhere else ()),
        memory=manifests.read(path).memory_summary(),
        precision=precision,
        choices=choices,
    )


def compile(
    model: Any,
    target: str = "auto",
    *,
    output: str | Path | None = None,
    budget: float | None = None,
    **options: Any,
) -> Artifact:
    """Tune `model` and load the result. `budget` in seconds; other options as `compile_model`.

    Without `output` the artifact lives in a temporary directory until the process ends.

    >>> import numpy as np, onnx.helper as h
    >>> import subtune
    >>> x, y = (h.make_tensor_value_info(n, 1, [4]) for n in "xy")
    >>> model = h.make_model(h.make_graph([h.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    >>> artifact = subtune.compile(model, tune=False)
    >>> artifact.run({"x": np.array([-1, 0, 1, 2], "float32")})["y"]
    array([0., 0., 1., 2.], dtype=float32)
    """
    if output is None:
        place = scratch(TEMPORARY, TEMPORARY_END)
        atexit.register(place.remove)
        output = place.path / "model.subtune"
    from subtune.artifact import load

    return load(compile_model(model, output, target=target, budget_s=budget, **options).path)


def _failures(subgraphs: Sequence[Subgraph], records: Records) -> tuple[tuple[str, str], ...]:
    """Of what ships; alternatives that failed were not taken."""
    keys = {subgraph.workload.key for subgraph in subgraphs}
    return tuple(sorted((key, reason) for key, reason in records.failures.items() if key in keys))


def _tuned(
    subgraphs: Sequence[Subgraph],
    later: Sequence[Subgraph],
    device: Device,
    store: Database,
    topk: int,
    budget_s: float | None,
    is_tuning: bool,
    measurer: Measurer | None,
    progress: ProgressCallback | None,
) -> Records:
    return tune(
        subgraphs,
        device,
        topk=topk,
        budget_s=budget_s if is_tuning else 0.0,
        database=store,
        measurer=measurer,
        progress=progress,
        later=later,
    )


def _tuned_kernels(
    subgraphs: Sequence[Subgraph], records: Records, guesses: Mapping[str, Candidate], device: Device
) -> dict[str, Kernel]:
    """The winners' kernels. A record whose kernel is not the one that was timed any more is dropped from `records`."""
    chosen = {key: record.candidate for key, record in records.items()}
    kernels = schedule_kernels(subgraphs, {**guesses, **chosen}, device)
    for subgraph in subgraphs:
        record = records.get(subgraph.workload.key)
        if record is None or func_hash(kernels[subgraph.name].func) == record.func_hash:
            continue
        logger.warning("%s: the database's record is of another kernel than %s", subgraph.name, record.candidate)
        del records[subgraph.workload.key]
        kernels |= schedule_kernels([subgraph], {}, device)
    return kernels


@contextmanager
def opened(database: Database | str | Path | None) -> Any:
    """The database to use; one that was given open stays open."""
    if isinstance(database, Database):
        yield database
        return
    with Database(database) as opened:
        yield opened


class _Clock:
    """Seconds of each stage of a compile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Any:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin


class _Verification:
    """Compares an artifact with a reference, which is made for it then, before it is put in its place."""

    def __init__(
        self,
        reference: Callable[[bool], tuple[Callable[..., Any], str]],
        limits: Mapping[str, int],
        is_exact: bool,
        precision: str,
        own: Callable[..., Any] | None = None,
    ) -> None:
        self._reference, self._limits, self._is_exact = reference, limits, is_exact
        self._precision, self._own = precision, own
        self.summary = ""

    def run(self, artifact: Artifact) -> None:
        from subtune.verification.verify import CannotRun

        try:
            try:
                reference, name = self._reference(True)
                report = self._compared(artifact, reference, name)
            except CannotRun as e:
                reference, name = self._reference(False)
                report = self._compared(artifact, reference, name)
                name += f", as ONNX Runtime cannot run the model ({str(e)[:_SHOWN_OF_AN_ERROR]})"
        except VerificationError as e:
            if self._precision in _HALVES:
                raise VerificationError(
                    f"{e}; {self._precision} costs this model too much, use --precision fp32"
                ) from e
            if self._is_exact:
                raise
            raise VerificationError(f"{e}; --exact leaves out the kernels that round differently") from e
        if self._precision in _HALVES:
            self.summary = (
                f"against {name} in float32: largest error {report.max_rel:.1e} of the largest value, "
                f"cosine similarity {report.min_cosine:.5f}"
            )
            if report.own_rel:
                self.summary += f"; with default schedules {self._precision} loses {report.own_rel:.1e}"
            return
        self.summary = f"agrees with {name}: largest relative error {report.max_rel:.1e}"

    def _compared(self, artifact: Artifact, reference: Callable[..., Any], name: str) -> VerifyReport:
        from subtune.verification.verify import verify

        return verify(artifact, reference, name, limits=self._limits, precision=self._precision, own=self._own)


def _verification(
    imported: Imported, shapes: Shapes | None, device: Device, beside: Executor, precision: str
) -> _Verification:
    """The comparison with ONNX Runtime, or with the untuned build, which `beside` compiles beside the tuned one.

    ONNX Runtime has copies of the weights of its own: it starts once ours are in the artifact's file. A model that it
    cannot run is imported again.
    """
    from importlib.util import find_spec

    from subtune.verification.verify import integer_limits, onnxruntime_reference

    source = imported.source
    if source is None:  # no other runtime knows such models
        own = _untuned_reference(imported, device, beside)
        return _Verification(lambda _: (own, "the untuned build"), {}, device.numerics.exact, precision)
    untuned = None if find_spec("onnxruntime") else _untuned_reference(imported, device, beside)

    def reference(with_onnxruntime: bool) -> tuple[Callable[..., Any], str]:
        found = (
            None
            if untuned or not with_onnxruntime
            else onnxruntime_reference(source, threads=device.model.host.threads)
        )
        if found is not None:
            return found, "ONNX Runtime"
        return untuned or _untuned_reference(frontends.load(source, shapes), device, beside), "the untuned build"

    model = source
    if isinstance(source, Path):
        import onnx

        model = onnx.load(source, load_external_data=False)
    plain = precision_reference(precision, source, shapes, device) if precision in _HALVES else None
    return _Verification(reference, integer_limits(model), device.numerics.exact, precision, plain)


def precision_reference(precision: str, source: Any, shapes: Shapes | None, device: Device) -> Callable[..., Any]:
    """What a precision makes of the model by itself: the same rounding, default schedules, built when it is called."""

    def run(arrays: Mapping[str, Any]) -> dict[str, Any]:
        prepared = prepare_imported(frontends.load(source, shapes), precision)
        mod = splice(prepared.mod, schedule_kernels(prepared.subgraphs, {}, device))
        compiled, _ = compile_module(mod, device)
        return _called(compiled, prepared.imported.inputs, prepared.imported.outputs, arrays)

    return run


def _untuned_reference(imported: Imported, device: Device, beside: Executor) -> Callable[..., Any]:
    """The imported module op by op, as TVM legalises it: none of our passes and templates has touched it."""
    from tvm import relax

    # Relax's Python builders keep global state: only what runs in C++ may leave this thread.
    with device.model.target():
        mod = relax.transform.LegalizeOps()(relax.backend.DispatchSortScan()(imported.mod))
    compiled = beside.submit(compile_module, mod, device)
    inputs, outputs = imported.inputs, imported.outputs
    return lambda arrays: _called(compiled.result()[0], inputs, outputs, arrays)


def _called(compiled: Any, inputs: Sequence[Any], outputs: Sequence[Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """One call of a compiled module on this machine's CPU; `inputs` and `outputs` are its specs."""
    import tvm
    from tvm import relax

    result = relax.VirtualMachine(compiled, tvm.cpu())["main"](
        *(tvm.runtime.tensor(arrays[spec.name]) for spec in inputs)
    )
    found = [result] if hasattr(result, "numpy") else list(result)
    return {spec.name: tensor.numpy() for spec, tensor in zip(outputs, found, strict=True)}


def _notes(device: Device, records: Records, guesses: Mapping[str, Candidate]) -> tuple[str, ...]:
    """What the report of a model for another machine must say, in one line."""
    model = device.model
    note = f"for {model.description} ({model.obstacle()}): {len(guesses)} kernels are {BASIS}, "
    note += f"{len(records)} were measured there"
    if device.backend.stand_in(device) is None:
        note += "; the model was not verified, which needs the device"
    return (note,)


def _origins(
    subgraphs: Sequence[Subgraph], records: Mapping[str, Record], guesses: Mapping[str, Candidate]
) -> tuple[KernelOrigin, ...]:
    origins = []
    for subgraph in subgraphs:
        key = subgraph.workload.key
        record = records.get(key)
        if record is None:
            basis = BASIS if key in guesses else ""
            origins.append(KernelOrigin(subgraph.name, key, str(guesses.get(key, DEFAULT)), basis=basis))
            continue
        origins.append(
            KernelOrigin(
                subgraph.name,
                subgraph.workload.key,
                str(record.candidate),
                record.func_hash,
                record.default_s,
                record.timing.median_s,
                basis="measured",
            )
        )
    return tuple(origins)


def _source(model: Any, shapes: Shapes | None) -> Source:
    fixed = tuple(sorted((name, tuple(int(d) for d in dims)) for name, dims in (shapes or {}).items()))
    if isinstance(model, str) and model.startswith("zoo:"):
        return Source(model, "", fixed)
    if isinstance(model, str | Path):
        from subtune.artifact.manifest import sha256_of

        if frontends.is_relay_text(model):
            return Source("", "", fixed)
        path = Path(model).resolve()
        return Source(str(path), sha256_of(path), fixed)
    return Source("", "", fixed)


def _row(subgraph: Subgraph, record: Record | None, guesses: Mapping[str, Candidate]) -> SubgraphRow:
    if record is None:
        guess = guesses.get(subgraph.workload.key, DEFAULT)
        predicted_s = 0.0 if guess == DEFAULT else guess.predicted_s
        return SubgraphRow(subgraph.name, subgraph.uses, str(guess), 0.0, 0.0, 0, 0, predicted_s)
    return SubgraphRow(
        subgraph.name,
        subgraph.uses,
        str(record.candidate),
        record.default_s,
        record.timing.median_s,
        record.tried,
        record.failed,
    )


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Artifact:
        return compile(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule

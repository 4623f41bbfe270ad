"""One model from its file to its artifact, top to bottom. The phases and passes are listed in `subtune.pipeline`."""

from __future__ import annotations

import atexit
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from subtune import frontends
from subtune.artifact import Artifact, load
from subtune.artifact.destination import check_destination
from subtune.assembly import Package, write_artifact
from subtune.backends.base import Device
from subtune.core.clock import Clock
from subtune.core.durations import budget_seconds
from subtune.core.scratch import TEMPORARY, TEMPORARY_END, scratch
from subtune.database import Database, opened
from subtune.dynamic.driver import compile_dynamic
from subtune.dynamic.in_place import check_cache
from subtune.measure import Measurer
from subtune.options import Options
from subtune.passes.denormals import hides_denormals
from subtune.passes.run import Dump
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare
from subtune.report.account import Tuning, account
from subtune.report.compile_report import CompileReport
from subtune.report.provenance import failures, kernel_origins, note_of_elsewhere, rows, sizes, source_of, transfer_of
from subtune.tuning.alternatives import Plan, chosen_partition, plan
from subtune.tuning.predict import predict
from subtune.tuning.records import Records
from subtune.tuning.search import Search, tune
from subtune.tuning.weights import known_to_be_slower, within
from subtune.tuning.winners import Winners
from subtune.verification.verification import Verification
from subtune.workplace import workplace


def compile(
    model: Any,
    target: Any = "auto",
    *,
    output: str | Path | None = None,
    budget: float | str | None = None,
    **options: Any,
) -> Artifact:
    """Tune `model` and load the result. `options` are the fields of `subtune.options.Options`.

    `budget` is the longest time to tune, in seconds or as `30s`. Without `output` the artifact lives in a temporary
    directory until the process ends.

    >>> import numpy as np, onnx.helper as h
    >>> import subtune
    >>> x, y = (h.make_tensor_value_info(n, 1, [4]) for n in "xy")
    >>> model = h.make_model(h.make_graph([h.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    >>> artifact = subtune.compile(model, tune=False)
    >>> artifact.run({"x": np.array([-1, 0, 1, 2], "float32")})["y"]
    array([0., 0., 1., 2.], dtype=float32)
    """
    budget_s = budget_seconds(budget)
    if output is None:
        place = scratch(TEMPORARY, TEMPORARY_END)
        atexit.register(place.remove)
        output = place.path / "model.subtune"
    return load(compile_model(model, output, target=target, budget_s=budget_s, **options).path)


def compile_model(model: Any, output: str | Path, **given: Any) -> CompileReport:
    """Tune `model` and write its artifact to the directory `output`; `given` are fields of `subtune.options.Options`.

    Ctrl-C while tuning keeps what was tuned, and the artifact is still written; the report says so.
    """
    output, options, clock = check_destination(output), Options(**given), Clock()
    check_cache(options)
    if options.dynamic:
        return compile_dynamic(model, output, options)
    with ExitStack() as until_chosen:
        place = until_chosen.enter_context(workplace(options))
        device, is_elsewhere = place.device, place.is_elsewhere
        measurer = until_chosen.enter_context(place.measurer(options))
        with clock.stage("prepare"):
            dump = Dump(Path(options.dump)) if options.dump is not None else None
            forms = device.backend.forms(device.model)
            prepared = prepare(model, options.shapes, options.numerics, options.parameters, dump, forms)
            others, device = prepared.alternatives(), device.for_working_set(prepared.working_set_bytes)
        store = until_chosen.enter_context(opened(options.database))
        with clock.stage("tune"):
            planned = plan(prepared.subgraphs, others, device, store)
            records = _tuned(planned, device, options, is_elsewhere, measurer, store)
        with clock.stage("choose"):
            choices = planned.choices(others, records)
            prepared = prepared.arranged(chosen_partition(prepared.graph, others, choices))
            guesses = predict(prepared.subgraphs, device, known=records) if options.tune and is_elsewhere else {}
            ships = Winners(records, guesses).kernels(prepared.subgraphs, device)
            slower = known_to_be_slower(store, device)
            kernels, winners, weights = within(prepared.mod, prepared.subgraphs, *ships, slower, options.weights_limit)
            story = account(prepared, others, choices, Tuning(records, winners, device, store, clock.seconds))
    with clock.stage("build"), ThreadPoolExecutor(1) as beside:
        subgraphs, imported, left = prepared.subgraphs, prepared.imported, prepared.in_floats
        products = prepared.graph.products()
        verification = _verification(model, prepared, device, options, beside)
        source, origins = source_of(model, options.shapes, options.precision), kernel_origins(subgraphs, winners)
        hides = not options.exact and hides_denormals(prepared.normalized)
        about = (imported.inputs, imported.outputs, origins, source, imported.name, hides)
        notes = (*imported.notes, *((note_of_elsewhere(device, winners),) if is_elsewhere else ()))
        spliced = [splice(prepared.mod, kernels)]
        if dump is not None:
            dump("splice", spliced[0])
        del prepared, imported, kernels  # a large model's constants stay as long as somebody needs them, and no longer
        package = Package(spliced.pop(), *about, account=story, is_traced=options.trace)
        path = write_artifact(output, package, device, verification.check if verification else None)
    return CompileReport(
        path=str(path),
        rows=rows(subgraphs, winners, device),
        seconds=clock.seconds,
        verified=_verified(verification, bool(device.model.obstacle())),
        is_interrupted=records.interrupted,
        failures=failures(subgraphs, records.failures),
        notes=notes,
        **sizes(path),
        precision=options.precision,
        products=products,
        choices=choices,
        weights=weights,
        in_floats=left,
        transfer=transfer_of(records),
    )


def _tuned(
    planned: Plan,
    device: Device,
    options: Options,
    is_elsewhere: bool,
    measurer: Measurer | None,
    store: Database,
) -> Records:
    budget_s = options.budget_s if options.tune and not is_elsewhere else 0.0
    return tune(
        planned.first,
        device,
        Search(options.topk, budget_s, transfer=options.transfer),
        database=store,
        measurer=measurer,
        progress=options.progress,
        rivals=planned.rivals,
        later=planned.later,
        worth=planned.prospects.worth_tuning,
    )


def _verification(
    model: Any, prepared: Prepared, device: Device, options: Options, beside: Executor
) -> Verification | None:
    """None where nobody wants it, or nothing here runs the kernels."""
    is_possible = not device.model.obstacle() or device.backend.stand_in(device) is not None
    if not options.verify or not is_possible:
        return None
    shapes, parameters = options.shapes, options.parameters
    return Verification(prepared.imported, lambda: frontends.load(model, shapes, parameters), options.numerics, beside)


def _verified(verification: Verification | None, is_elsewhere: bool) -> str:
    if verification is None:
        return ""
    return verification.summary + (", the same kernels built for this machine" if is_elsewhere else "")

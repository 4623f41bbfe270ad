"""A model with symbolic dimensions from its file to its artifact, top to bottom."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subtune import backends, frontends
from subtune.assembly import Package, write_artifact
from subtune.backends.base import Device
from subtune.core.clock import Clock
from subtune.core.domain import Domain
from subtune.core.errors import SubtuneError
from subtune.core.kernel import Kernel
from subtune.core.manifest import KernelOrigin
from subtune.core.variants import Variants
from subtune.dynamic.assemble import that_read_inputs, variants_of
from subtune.dynamic.choose import Chosen, Tuned, chosen
from subtune.dynamic.constants import with_corners
from subtune.dynamic.declare import declared
from subtune.dynamic.model import DynamicModel, corner_workloads, dynamic_model
from subtune.dynamic.tune import tuned, untuned
from subtune.dynamic.verify import DynamicVerification
from subtune.dynamic.workload import DynamicWorkload, has_growing_constants
from subtune.frontends import Imported, SymbolicInput
from subtune.measure import LocalMeasurer
from subtune.options import Options
from subtune.passes.pad_attention import Lengths
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare_imported
from subtune.report.compile_report import CompileReport
from subtune.report.dynamic_report import DynamicRow
from subtune.report.provenance import sizes, source_of
from subtune.tuning.order import bound_s
from subtune.tuning.weights import spare_bytes

_log = logging.getLogger(__name__)

_LITTLE = 0.01
"""Of the model's time: what has less is tuned in haste."""


@dataclass(frozen=True)
class _Source:
    """A model that can be imported at any instance of its symbols."""

    model: Any
    inputs: tuple[SymbolicInput, ...]
    fixed: Mapping[str, int]
    options: Options

    def load(self, point: Mapping[str, int]) -> Imported:
        shapes = frontends.instance(self.inputs, {**self.fixed, **point}, self.options.shapes)
        return frontends.load(self.model, shapes, self.options.parameters)


def compile_dynamic(model: Any, output: Path, options: Options) -> CompileReport:
    """Tune a model for the domain of shapes that `options.dynamic` declares, and write its artifact."""
    _check_effort(options)
    # kernels are checked here even where nothing is tuned: what cannot run here is told before the work
    device = backends.device_of(options.target, options.threads, options.device_file, options.numerics)
    whole, inputs = declared(model, options)
    fixed = {one.name: one.values[0] for one in whole.symbols if len(one.values) == 1}
    domain = Domain(tuple(one for one in whole.symbols if len(one.values) > 1))
    source = _Source(model, inputs, fixed, options)
    forms = device.backend.forms(device.model)
    clock = Clock()

    def prepare(point: Mapping[str, int], lengths: Lengths) -> Prepared:
        return prepare_imported(source.load(point), options.numerics, None, forms, lengths)

    with _measurer(options) as measurer:
        measurer.start(device)
        with clock.stage("prepare"):
            dynamic = dynamic_model(domain, prepare)
            shapes = {name: one.shapes for name, one in dynamic.workloads.items()}
            mod, corners = with_corners(dynamic.greatest.mod, shapes)
            workloads = {**dynamic.workloads, **corner_workloads(corners, domain)}
        with clock.stage("tune"):
            kernels = _tuned(workloads, that_read_inputs(mod), dynamic, device, options, measurer)
    with clock.stage("build"), ThreadPoolExecutor(1) as beside:
        pairs = {name: variants_of(one, domain, device) for name, one in kernels.items()}
        variants: dict[str, Variants] = {name: pair[0] for name, pair in pairs.items()}
        static: dict[str, Kernel] = {name: pair[1] for name, pair in pairs.items()}
        verification = DynamicVerification(domain, source.load, options.numerics, beside) if options.verify else None
        imported = dynamic.greatest.imported
        package = Package(
            splice(mod, static),
            dynamic.inputs,
            dynamic.outputs,
            tuple(_origin(name, one) for name, one in kernels.items()),
            source_of(model, options.shapes, options.precision),
            imported.name,
            domain=domain,
            variants=variants,
        )
        path = write_artifact(output, package, device, verification.check if verification else None)
    return CompileReport(
        path=str(path),
        rows=(),
        dynamic=_rows(dynamic, kernels),
        seconds=clock.seconds,
        verified=verification.summary if verification else "",
        is_interrupted=False,
        notes=imported.notes,
        **sizes(path),
        precision=options.precision,
        products=dynamic.greatest.graph.products(),
    )


def _check_effort(options: Options) -> None:
    if not (0 <= options.regret < math.inf and options.max_kernels >= 1):
        raise SubtuneError(
            f"regret={options.regret} and max_kernels={options.max_kernels}: give a share from 0 on, as 0.05, and one "
            "kernel or more"
        )


@contextmanager
def _measurer(options: Options) -> Iterator[LocalMeasurer]:
    """The caller's; or one whose processes start while the model is read.

    Raises SubtuneError for one that does not measure here: kernels for many shapes go from process to process.
    """
    if options.measurer is None:
        with LocalMeasurer() as own:
            yield own
    elif isinstance(options.measurer, LocalMeasurer):
        yield options.measurer
    else:
        kind = type(options.measurer).__name__
        raise SubtuneError(f"many shapes are tuned by a LocalMeasurer, not by a {kind}: leave measurer out")


def _tuned(
    workloads: Mapping[str, DynamicWorkload],
    reads_inputs: frozenset[str],
    dynamic: DynamicModel,
    device: Device,
    options: Options,
    measurer: LocalMeasurer,
) -> dict[str, Chosen]:
    """Equal workloads are tuned once; those that count most first."""
    uses = {one.name: one.uses for one in dynamic.greatest.subgraphs}
    bounds = {name: _bound_s(one, dynamic.domain, device) * uses.get(name, 1) for name, one in workloads.items()}
    total = sum(bounds.values())
    found: dict[str, Tuned] = {}
    begin = time.monotonic()
    for name in sorted(workloads, key=lambda one: -bounds[one]):
        spent = time.monotonic() - begin
        is_late = options.budget_s is not None and spent > options.budget_s
        one = workloads[name]
        exact_only = name in reads_inputs or has_growing_constants(one, dynamic.domain)
        if options.tune and not is_late:
            is_heavy = bounds[name] > _LITTLE * total and _computes(one)
            measured = tuned(one, dynamic.domain, exact_only, is_heavy, options.topk, device, measurer)
        else:
            measured = untuned(one, dynamic.domain, exact_only, device, measurer)
        found[name] = Tuned(one, measured, uses.get(name, 1))
        _log.debug("%s: %d kernels, %.1f s", name, len(measured.libraries), time.monotonic() - begin - spent)
    own = sum(one.weights_bytes(dynamic.domain) * one.uses for one in found.values())
    return chosen(found, dynamic.domain, options.regret, options.max_kernels, spare_bytes(own, options.weights_limit))


def _computes(workload: DynamicWorkload) -> bool:
    """Whether it does more than move elements: of a table of which few rows are read, the size says nothing."""
    return workload.at(workload.extents_at(dict.fromkeys(_symbols(workload), 64))).flops > 0


def _symbols(workload: DynamicWorkload) -> set[str]:
    return {name for dim in workload.extents for name in dim.symbols}


def _bound_s(workload: DynamicWorkload, domain: Domain, device: Device) -> float:
    """What the greatest instance takes at least."""
    return bound_s(workload.at(workload.extents_at(domain.greatest)), device)


def _origin(name: str, chosen: Chosen) -> KernelOrigin:
    return KernelOrigin(name, candidate=", ".join(map(str, chosen.candidates)), basis="measured")


def _rows(dynamic: DynamicModel, chosen: Mapping[str, Chosen]) -> tuple[DynamicRow, ...]:
    uses = {one.name: one.uses for one in dynamic.greatest.subgraphs}
    rows = []
    for name, one in chosen.items():
        best = one.best_s
        ends = sorted(best, key=lambda at: (math.prod(at), at))
        least, greatest = (ends[0], ends[-1]) if ends else ((), ())
        rows.append(
            DynamicRow(
                name,
                uses.get(name, 1),
                tuple(map(str, one.workload.extents)),
                tuple(map(str, one.candidates)),
                len(one.seconds) + len(one.failures),
                len(one.failures),
                len(ends),
                least,
                best.get(least, 0.0),
                greatest,
                best.get(greatest, 0.0),
                one.worst_regret,
            )
        )
    return tuple(rows)

"""A model with symbolic dimensions from its file to its artifact, top to bottom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subtune import backends, frontends
from subtune.assembly import Package, write_artifact
from subtune.backends.base import Device
from subtune.core.clock import Clock
from subtune.core.domain import Domain
from subtune.core.errors import ModelError, SubtuneError, TargetError
from subtune.core.kernel import Kernel
from subtune.core.manifest import KernelOrigin
from subtune.core.variants import Variants
from subtune.database import opened
from subtune.dynamic.account import account
from subtune.dynamic.arrange import arranged_model
from subtune.dynamic.assemble import kernels_of, variants_of
from subtune.dynamic.choose import MOST_LAYOUTS, Chosen, Tuned, chosen
from subtune.dynamic.constants import multiplies_rows, with_corners
from subtune.dynamic.contest import Contest
from subtune.dynamic.declare import declared
from subtune.dynamic.in_place import CachesInPlace
from subtune.dynamic.inputs import that_read_inputs
from subtune.dynamic.joint import Joint
from subtune.dynamic.kernel import tiles_rows
from subtune.dynamic.model import DynamicModel, corner_workloads
from subtune.dynamic.tune import Prospect, can_overlap
from subtune.dynamic.verify import DynamicVerification
from subtune.dynamic.working_set import WorkingSet
from subtune.dynamic.workload import DynamicWorkload, has_growing_constants
from subtune.frontends import Imported, SymbolicInput
from subtune.measure import LocalMeasurer
from subtune.options import Options
from subtune.passes.counted import counted
from subtune.passes.pad_attention import NO_LENGTHS, Lengths
from subtune.passes.run import Dump
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare_imported
from subtune.report.compile_report import CompileReport
from subtune.report.dynamic_report import DynamicRow
from subtune.report.provenance import sizes, source_of
from subtune.tuning.order import bound_s
from subtune.tuning.weights import spare_bytes

_LITTLE = 0.01
"""Of the model's time: what has less is tuned in haste."""
_AHEAD = 3
"""Subgraphs whose kernels are built while the first of them is measured; on a processor, while it is not timed."""


@dataclass
class _Source:
    """A model that can be imported at any instance of its symbols."""

    model: Any
    inputs: tuple[SymbolicInput, ...]
    fixed: Mapping[str, int]
    options: Options

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, the file is read once, and stays in memory."""
        given = self.model
        self.model = frontends.opened_once(given)
        try:
            yield
        finally:
            self.model = given

    def load(self, point: Mapping[str, int]) -> Imported:
        """Raises ModelError: the model cannot be imported there; and whether it could, were all symbols equal."""
        try:
            return self._loaded(point)
        except ModelError as e:
            if not self._is_of_equal(point):
                raise
            one, other, *_ = point
            where = ", ".join(f"{name}={value}" for name, value in point.items())
            said = f"{str(e).rstrip('.')} (at {where}; if some are always equal, say so: --dynamic {other}={one})."
            raise type(e)(said) from e

    def _loaded(self, point: Mapping[str, int]) -> Imported:
        shapes = frontends.instance(self.inputs, {**self.fixed, **point}, self.options.shapes)
        return frontends.load(self.model, shapes, self.options.parameters)

    def _is_of_equal(self, point: Mapping[str, int]) -> bool:
        if len(set(point.values())) < 2:
            return False
        try:
            self._loaded(dict.fromkeys(point, max(point.values())))
        except ModelError:
            return False
        return True

    def of_kernels(self, point: Mapping[str, int]) -> Imported:
        """With what TVM runs its own way in the form of kernels."""
        imported = self.load(point)
        return replace(imported, mod=counted(imported.mod))


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
    dump = Dump(Path(options.dump)) if options.dump is not None else None
    clock = Clock()

    def prepare(point: Mapping[str, int], lengths: Lengths) -> Prepared:
        shown = dump if point is domain.greatest else None  # the others are as it is, with other extents
        lengths = lengths if forms.pads_lengths else NO_LENGTHS
        return prepare_imported(source.of_kernels(point), options.numerics, shown, forms, lengths, True)

    kept = CachesInPlace(options.cache, device, domain, inputs, prepare)
    with _measurer(options) as measurer, opened(options.database) as store:
        measurer.start(device)
        contest = Contest(measurer, store, options, clock)
        with clock.stage("prepare"), source.opened():
            dynamic = arranged_model(domain, kept.prepare, device, contest.taken)
            device = device.for_working_set(dynamic.greatest.working_set_bytes)
            mod, workloads = _with_copies(dynamic, device, options.tune)
        with clock.stage("tune"):
            bounds = _bounds(workloads, dynamic, device)
            joint = Joint(bounds, domain, device, measurer, store, options, contest)
            kernels = _tuned(workloads, bounds, that_read_inputs(mod), dynamic, device, options, joint)
        with clock.stage("build"):
            made = kernels_of(kernels, domain, device, measurer)
    with clock.stage("build"), ThreadPoolExecutor(1) as beside:
        variants, static = _assembled(kernels, made, domain, device)
        verification = DynamicVerification(domain, source.load, options.numerics, beside)
        spliced = splice(mod, static)
        if dump is not None:
            dump("splice", spliced)
        notes = (*dynamic.greatest.imported.notes, *_beyond(kernels, options))
        story = account(dynamic, kernels, joint.untuned, device, clock.seconds, notes)
        origins = tuple(_origin(name, one, name not in joint.untuned) for name, one in kernels.items())
        made_of = source_of(model, options.shapes, options.precision)
        about = (dynamic.inputs, dynamic.outputs, origins, made_of, dynamic.greatest.imported.name)
        package = Package(
            spliced,
            *about,
            domain=domain,
            variants=variants,
            account=story,
            caches=kept.caches,
            is_traced=options.trace,
        )
        check = verification.check if options.verify else verification.check_sizes
        with source.opened():
            path = write_artifact(output, package, device, check)
    report = _report(path, dynamic, kernels, joint, options)
    return replace(report, seconds=clock.seconds, verified=verification.summary, notes=notes)


def _report(
    path: Path, dynamic: DynamicModel, kernels: Mapping[str, Chosen], joint: Joint, options: Options
) -> CompileReport:
    """Without what the artifact itself does not tell: how long it took, and whether it is right."""
    return CompileReport(
        path=str(path),
        rows=(),
        seconds={},
        verified="",
        dynamic=_rows(dynamic, kernels, joint.untuned),
        is_interrupted=joint.is_interrupted,
        **sizes(path),
        precision=options.precision,
        products=dynamic.greatest.graph.products(),
    )


def _assembled(
    kernels: Mapping[str, Chosen], made: Mapping[str, Sequence[Kernel]], domain: Domain, device: Device
) -> tuple[dict[str, Variants], dict[str, Kernel]]:
    """Of every subgraph its variants, and what stands for them in a static module."""
    pairs = {name: variants_of(one, made[name], domain, device) for name, one in kernels.items()}
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}


def _with_copies(
    dynamic: DynamicModel, device: Device, is_tuned: bool = False
) -> tuple[Any, dict[str, DynamicWorkload]]:
    """The greatest instance's module with what has to be copied or computed first; all its workloads by name.

    Args:
        is_tuned: there are kernels of lower and of higher tiles, for fewer and for more rows.
    """
    known, domain = dynamic.workloads, dynamic.domain
    multiply = {
        name
        for name, one in known.items()
        if tiles_rows(one, device) and multiplies_rows(one, one.extents_at(domain.greatest))
    }
    if is_tuned:
        multiply -= {
            name
            for name in multiply & that_read_inputs(dynamic.greatest.mod)
            if can_overlap(known[name], domain, device)
        }
    shapes = {name: one.shapes for name, one in known.items()}
    mod, corners, made = with_corners(dynamic.greatest.mod, shapes, dynamic.made, multiply)
    return mod, {**known, **corner_workloads(corners, dynamic.domain, dynamic.steps), **made}


def _check_effort(options: Options) -> None:
    if not (0 <= options.regret < math.inf and options.max_kernels >= 1):
        raise SubtuneError(
            f"regret={options.regret} and max_kernels={options.max_kernels}: give a share from 0 on, as 0.05, and one "
            "kernel or more"
        )
    if options.remote or options.devices or options.cluster:
        name = "--remote" if options.remote else "--devices" if options.devices else "--cluster"
        raise TargetError(f"models of many shapes are measured on one device of this machine: compile without {name}")


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


def _bounds(workloads: Mapping[str, DynamicWorkload], dynamic: DynamicModel, device: Device) -> dict[str, float]:
    """Seconds that each takes at least in the greatest instance, all its uses together; what counts most first."""
    uses = {one.name: one.uses for one in dynamic.greatest.subgraphs}
    found = {name: _bound_s(one, dynamic.domain, device) * uses.get(name, 1) for name, one in workloads.items()}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _tuned(
    workloads: Mapping[str, DynamicWorkload],
    bounds: Mapping[str, float],
    reads_inputs: frozenset[str],
    dynamic: DynamicModel,
    device: Device,
    options: Options,
    joint: Joint,
) -> dict[str, Chosen]:
    """Equal workloads are tuned once; those that count most first."""
    uses = {one.name: one.uses for one in dynamic.greatest.subgraphs}
    total, order = sum(bounds.values()), list(bounds)
    prospects: dict[str, Prospect] = {}
    working_set = WorkingSet.of(dynamic.greatest)
    for name in order:
        one = workloads[name]
        exact_only = name in reads_inputs or has_growing_constants(one, dynamic.domain)
        is_light = bounds[name] <= _LITTLE * total
        is_heavy = not is_light and _computes(one)
        prospects[name] = Prospect(
            one, dynamic.domain, exact_only, is_heavy, options.topk, device, is_light, working_set
        )
    found: dict[str, Tuned] = {}
    with ExitStack() as stack:
        for prospect in prospects.values():
            stack.callback(prospect.close)
        for at, name in enumerate(order):
            for ahead in order[at : at + _AHEAD]:
                joint.begin(ahead, prospects[ahead].begin)
            served = joint.served(name, workloads[name], prospects[name].tuned, prospects[name].untuned)
            found[name] = Tuned(workloads[name], served, uses.get(name, 1))
    own = sum(one.weights_bytes(dynamic.domain) * one.uses for one in found.values())
    return chosen(
        found,
        dynamic.domain,
        options.regret,
        options.max_kernels,
        spare_bytes(own, options.weights_limit, MOST_LAYOUTS),
    )


def _computes(workload: DynamicWorkload) -> bool:
    """Whether it does more than move elements: of a table of which few rows are read, the size says nothing."""
    return workload.at(workload.extents_at(dict.fromkeys(_symbols(workload), 64))).flops > 0


def _symbols(workload: DynamicWorkload) -> set[str]:
    return {name for dim in workload.extents for name in dim.symbols}


def _bound_s(workload: DynamicWorkload, domain: Domain, device: Device) -> float:
    """What the greatest instance takes at least."""
    return bound_s(workload.at(workload.extents_at(domain.greatest)), device)


def _beyond(chosen: Mapping[str, Chosen], options: Options) -> list[str]:
    """What is said where kernels do not keep within the regret."""
    over = sorted(
        (n for n, one in chosen.items() if one.worst_regret > options.regret), key=lambda n: -chosen[n].worst_regret
    )
    if not over:
        return []
    longer = f"{options.regret:.1%} longer than the fastest of all kernels"
    what = f"{len(over)} of {len(chosen)} subgraphs take more than {longer} at some shape, most of all {over[0]!r}"
    return [f"{what}: a larger --weights-limit or --max-kernels lets faster ones be shipped"]


def _origin(name: str, chosen: Chosen, is_tuned: bool) -> KernelOrigin:
    basis = "measured" if is_tuned else ""
    return KernelOrigin(name, candidate=", ".join(map(str, chosen.candidates)), basis=basis)


def _rows(dynamic: DynamicModel, chosen: Mapping[str, Chosen], untuned: Set[str]) -> tuple[DynamicRow, ...]:
    uses = {one.name: one.uses for one in dynamic.greatest.subgraphs}
    rows = []
    for name, one in chosen.items():
        best = {} if name in untuned else one.best_s
        ends = sorted(best, key=lambda at: (math.prod(at), at))
        least, greatest = (ends[0], ends[-1]) if ends else ((), ())
        rows.append(
            DynamicRow(
                name,
                uses.get(name, 1),
                tuple(map(str, one.workload.extents)),
                tuple(map(str, one.candidates)),
                len({*one.seconds, *one.failures}),
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

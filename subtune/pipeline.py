"""Every phase of a compile and every pass of it, in order, as one visible list; and its first half, up to tuning.

`subtune inspect --pipeline` prints the list. Phases with passes are run by `run_passes`, or step by step by the driver
where something other than a module comes out; phases without passes name the room that does their work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm
from tvm import relax

from subtune import frontends
from subtune.core.forms import ANY, Forms
from subtune.core.graph import Alternatives, InFloats, PartitionGraph, Subgraph
from subtune.core.numerics import PLAIN, Numerics
from subtune.frontends import Imported, Parameters
from subtune.frontends.dispatch import Shapes
from subtune.passes.align_channels import align_channels
from subtune.passes.alternatives import alternatives
from subtune.passes.alternatives_lower import lower_regions
from subtune.passes.byte_signs import byte_signs
from subtune.passes.byte_sums import byte_sums
from subtune.passes.byte_tables import byte_tables
from subtune.passes.bytes_as_halves import bytes_as_halves
from subtune.passes.carry_norms import carry_norms
from subtune.passes.casts import casts_past_views, casts_where_read
from subtune.passes.data_views import reshapes_to_views
from subtune.passes.extract import extract
from subtune.passes.float8 import float8_products
from subtune.passes.fold_batch_norm import fold_scales
from subtune.passes.fold_constants import fold_constants
from subtune.passes.fold_norms import fold_norms
from subtune.passes.half_precision import settle_precision
from subtune.passes.in_floats import in_floats
from subtune.passes.integer_products import integer_products
from subtune.passes.layout_nhwc import channels_to_last, settle_permutes
from subtune.passes.lift_constants import lift_constants
from subtune.passes.narrow_constants import narrow_constants
from subtune.passes.normalize_activations import recognise_activations
from subtune.passes.normalize_cleanup import clean_up
from subtune.passes.normalize_matmul import flatten_matmuls
from subtune.passes.normalize_nary import unstack_nary
from subtune.passes.normalize_norms import recognise_norms
from subtune.passes.normalize_siblings import join_siblings
from subtune.passes.outline import outline
from subtune.passes.packed_weights import packed_weights
from subtune.passes.pad_attention import NO_LENGTHS, Lengths, pad_attention
from subtune.passes.partition import partition
from subtune.passes.pool_volumes import pool_volumes
from subtune.passes.recurrences import settle_recurrences
from subtune.passes.regroup import rearrange
from subtune.passes.repeated_constants import repeated_constants
from subtune.passes.results import constants_copied, copies_for_results
from subtune.passes.run import Dump, Look, Phase, pass_name, run_passes
from subtune.passes.shared_heads import fold_shared_heads
from subtune.passes.splice import splice
from subtune.passes.static_memory import plan_memory
from subtune.passes.widen import widen
from subtune.passes.written_weights import written_weights

NORMALIZE: tuple[Phase, ...] = (
    Phase("repeated", (repeated_constants,)),
    Phase("recurrences", (settle_recurrences,)),
    Phase("written", (written_weights,)),
    Phase("halves", (widen,)),
    Phase("integers", (byte_sums, byte_signs, float8_products, integer_products)),
    Phase("weights", (packed_weights,)),
    Phase("clean", (fold_constants, clean_up, unstack_nary)),
    Phase("tables", (byte_tables,)),
    Phase("recognise", (recognise_activations, recognise_norms)),
    Phase("fold", (fold_scales,)),
    Phase("layout", (channels_to_last, settle_permutes, pool_volumes)),
    Phase("matmul", (flatten_matmuls, fold_scales, join_siblings, fold_norms)),
    Phase("heads", (fold_shared_heads,)),
    Phase("finish", (relax.transform.DeadCodeElimination(),)),
)
"""The imported module in the form the partition expects."""

# What is left of TVM's default pipeline for a module in call_tir form: no fusion, no dispatch; legalised are only the
# ops that the partition left in main (sorts, scatters), reshapes being views. Memory is planned between the halves.
TO_CALLS = Phase(
    "calls",
    (
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(skip_ops=["relax.reshape"]),
        reshapes_to_views,
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
    ),
)
TO_PROGRAM = Phase(
    "program",
    (
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the pipeline: what goes in and out, the passes that run, and the room whose work it is."""

    name: str
    what: str
    room: str
    passes: tuple[Callable[..., Any], ...] = ()


PIPELINE: tuple[Step, ...] = (
    Step("import", "a model's file -> Relax; weights are constants, shapes static", "frontends", (frontends.load,)),
    Step("normalise", "Relax -> Relax: one operator per idea, constants folded, channels last", "passes",
         tuple(one for phase in NORMALIZE for one in phase.passes)),
    Step("precision", "products in the model's half, or in the one that was asked for", "passes",
         (settle_precision, narrow_constants, casts_past_views, align_channels, copies_for_results, casts_where_read,
          carry_norms)),
    Step("partition", "ops -> groups round their anchors, and where other groups are possible", "passes",
         (partition, alternatives)),
    Step("outline", "groups -> one unscheduled PrimFunc each, frozen from here on; equal ones once", "passes",
         (outline, extract, lower_regions)),
    Step("tune", "workload -> record: candidates ranked, built, checked, timed within the budget", "tuning"),
    Step("choose", "records -> the fastest groups, outlined again where they are others", "tuning", (rearrange,)),
    Step("splice", "winners' kernels into the module, constants packed as they want them", "passes", (splice,)),
    Step("calls", "weights beside the code; what no kernel computes becomes the backend's loops, or TVM's", "passes",
         (lift_constants, *TO_CALLS.passes)),
    Step("plan memory", "every tensor gets its place before the model runs", "passes", (plan_memory,)),
    Step("lower", "Relax -> calls of kernels", "assembly", TO_PROGRAM.passes),
    Step("link", "kernels and calls -> machine code, in a library", "backends"),
    Step("verify", "the artifact against a reference, before it is put in its place", "verification"),
)  # fmt: skip


def describe() -> list[str]:
    """The pipeline as text: a line for each step, and one for each pass with the first line of its docstring."""
    lines = []
    for number, step in enumerate(PIPELINE, 1):
        lines.append(f"{number:2d}. {step.name}: {step.what} [{step.room}]")
        for one in step.passes:
            module = getattr(one, "__module__", "")
            is_ours = module.startswith("subtune.")
            about = (inspect.getdoc(one) or "").partition("\n")[0] if is_ours else "TVM's"
            where = f" ({module.removeprefix('subtune.')})" if is_ours else ""
            lines.append(f"      {pass_name(one)}{where}: {about}")
    return lines


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model ready to be tuned. `mod` is frozen: tuning and building use this very module.

    `normalized` is the module that `graph` partitions, from which another partition can be outlined. `in_floats` says
    what of a quantised model stays in floats.
    """

    imported: Imported
    normalized: tvm.IRModule
    graph: PartitionGraph
    mod: tvm.IRModule
    subgraphs: tuple[Subgraph, ...]
    forms: Forms = ANY
    in_floats: tuple[InFloats, ...] = ()

    @property
    def working_set_bytes(self) -> int:
        """Of all that kernels read and write in a run, weights among it; what several of them use counts each time."""
        return sum(one.uses * one.nbytes for one in self.subgraphs)

    def alternatives(self) -> Alternatives:
        """Where else the boundaries between the subgraphs could lie, as workloads that can be tuned."""
        return lower_regions(self.normalized, self.graph, alternatives(self.graph, self.forms), self.subgraphs)

    def arranged(self, graph: PartitionGraph) -> Prepared:
        """The same model under another partition of its ops."""
        if graph is self.graph:
            return self
        return replace(_outlined(self.imported, self.normalized, graph, self.forms), in_floats=self.in_floats)


def prepare(
    model: Any,
    shapes: Shapes | None = None,
    numerics: Numerics = PLAIN,
    parameters: Parameters | None = None,
    dump: Dump | None = None,
    forms: Forms = ANY,
) -> Prepared:
    """Import, normalise, partition and outline a model.

    Args:
        model: a path, bytes, an `onnx.ModelProto`, a Relay text, or `zoo:NAME`.
        shapes: fixed shapes of inputs with symbolic dims, by input name.
        parameters: the weights of a Relay model.
        dump: called with the module after every pass.
        forms: `Backend.forms` of the device.
    """
    return prepare_imported(frontends.load(model, shapes, parameters), numerics, dump, forms)


def prepare_imported(
    imported: Imported,
    numerics: Numerics = PLAIN,
    dump: Dump | None = None,
    forms: Forms = ANY,
    lengths: Lengths = NO_LENGTHS,
    copies_constants: bool = False,
) -> Prepared:
    """`prepare` for a model that is imported already.

    Args:
        lengths: of the attentions that are to be padded, as `pad_attention` takes them.
        copies_constants: among what the model gives back, for another instance may give back others.
    """
    left: list[InFloats] = []

    def look(name: str, mod: tvm.IRModule) -> None:
        if name == pass_name(integer_products):
            left.extend(in_floats(mod))
        if dump is not None:
            dump(name, mod)

    normalized = pad_attention(normalize(imported.mod, numerics, look, forms), lengths)
    if copies_constants:
        normalized = constants_copied(normalized)
    prepared = _outlined(imported, normalized, partition(normalized, forms), forms, dump)
    return replace(prepared, in_floats=tuple(left))


def normalize(
    mod: tvm.IRModule,
    numerics: Numerics = PLAIN,
    dump: Look | None = None,
    forms: Forms = ANY,
) -> tvm.IRModule:
    """The imported module in the form the partition expects.

    One operator per idea (no decomposed norms and activations), constants folded, BatchNorm in the weights,
    convolutions channels last, matmuls with constant [K, N] weights, no operator that does nothing. The function
    `main` keeps its parameters and results: their order, shapes and types.
    """
    precision = (
        Phase(
            "precision",
            (
                partial(settle_precision, asked=numerics.half, forms=forms),
                narrow_constants,
                partial(bytes_as_halves, forms=forms),
                casts_past_views,
                partial(align_channels, forms=forms),
                copies_for_results,
                casts_where_read,
                partial(carry_norms, forms=forms),
            ),
        ),
    )
    planes: dict[str, Any] = {
        "keeps_planes": forms.keeps_planes,
        "reads_planes": forms.reads_planes,
        "planes_of_group": 1 if numerics.half and forms.multiplies_groups else forms.planes_of_group,
        "grouped_halves": forms.halves if forms.multiplies_groups else frozenset(),
    }
    pools = partial(pool_volumes, always_in_planes=forms.pools_images)
    layout = Phase("layout", (partial(channels_to_last, **planes), settle_permutes, pools))
    whole = Phase("recurrences", (partial(settle_recurrences, whole_step_fmas=forms.whole_step_fmas),))
    written = Phase("written", (partial(written_weights, forms=forms),))
    heads = Phase("heads", (partial(fold_shared_heads, folds=forms.folds_heads),))
    of_float8 = partial(float8_products, forms=forms)
    integers = Phase("integers", (byte_sums, partial(byte_signs, forms=forms), of_float8, integer_products))
    weights = Phase("weights", (partial(packed_weights, forms=forms, asked=numerics.half),))
    own = {phase.name: phase for phase in (layout, whole, written, heads, integers, weights)}
    phases = tuple(own.get(phase.name, phase) for phase in NORMALIZE)
    return run_passes(mod, phases + precision, dump)


def _outlined(
    imported: Imported, normalized: tvm.IRModule, graph: PartitionGraph, forms: Forms, dump: Dump | None = None
) -> Prepared:
    mod = outline(normalized, graph)
    if dump is not None:
        dump("outline", mod)
    return Prepared(imported, normalized, graph, mod, extract(mod), forms)

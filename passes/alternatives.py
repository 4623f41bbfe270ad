"""Alternatives: where fusing more or less than the partition does might win, so that measuring has to say.

Analysis only. Every proposal replaces a few neighbouring groups; proposals that share a group make one region, and
every set of proposals that do not share one is an alternative of it. Few: an alternative costs tuning time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import networkx as nx

from subtune.core.forms import ANY, Forms
from subtune.core.graph import Alternative, Group, PartitionGraph, Region
from subtune.core.numerics import HALVES
from subtune.passes.alternatives_copies import copied_products, products_with_copies
from subtune.passes.alternatives_merge import chains_with_copies, merges
from subtune.passes.alternatives_norm import carried_norms, normed_products
from subtune.passes.alternatives_pool import pooled_stems
from subtune.passes.alternatives_split import splits
from subtune.passes.alternatives_sum import summed_products
from subtune.passes.neighbours import Neighbours, Proposal
from subtune.passes.regroup import between, drafts_of, exchanged, group_of_ops

AS_PARTITIONED = "as partitioned"

MAX_ALTERNATIVES = 512
"""Ways of one region. Sets of proposals cost no tuning time of their own: their kernels are the proposals'."""

MIN_SHARE = 0.005
"""An alternative that could spare less of the model's time than this is not worth tuning a contraction for seconds."""

MIN_INJECTIVE_SHARE = 0.003
"""The same where only copies and elementwise kernels have to be tuned, which is done in a moment."""


def alternatives(graph: PartitionGraph, forms: Forms = ANY) -> tuple[Region, ...]:
    """The regions of `graph` with two or more alternatives, the first its own; no group is in two regions.

    >>> from subtune import models
    >>> from subtune.frontends import load
    >>> from subtune.passes.partition import partition
    >>> from subtune.pipeline import normalize
    >>> alternatives(partition(normalize(load(models.reduced("mlp")).mod)))
    ()
    """
    around = Neighbours(graph)
    copied = copied_products(around) if forms.copies_products else {}
    wanted = [merges, splits]
    wanted += [pooled_stems] if forms.pools_stems else []
    wanted += [summed_products] if forms.sums_products else []
    wanted += [chains_with_copies] if forms.copies_operands else []
    wanted += [partial(products_with_copies, copied)]
    wanted += [partial(carried_norms, copied)] if forms.carries_norms else []
    wanted += [partial(normed_products, forms.normed_columns)] if forms.normed_columns else []
    proposals = [p for propose in wanted for p in propose(around)]
    proposals = _worthwhile(around, proposals, forms)
    trials = [_Trial(p, frozenset(around.home[op].anchor for op in p.ops if op in around.home)) for p in proposals]
    return tuple(
        region for component in _components(trials) if len((region := _region(graph, component)).alternatives) > 1
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """A proposal and the groups it replaces, by their anchors."""

    proposal: Proposal
    replaced: frozenset[str]


def _worthwhile(around: Neighbours, proposals: Iterable[Proposal], forms: Forms) -> list[Proposal]:
    """Those whose like, over all repetitions in the model, might spare a part of the model's time that one notices."""
    proposals = list(proposals)
    total = sum(_bytes_or_equivalent(around, group, forms) for group in around.graph.groups)
    stakes: dict[object, int] = {}
    kinds = [_kind(around, p) for p in proposals]
    for kind, proposal in zip(kinds, proposals, strict=True):
        stakes[kind] = stakes.get(kind, 0) + proposal.stake_bytes
    return [p for kind, p in zip(kinds, proposals, strict=True) if stakes[kind] >= _least_share(around, p) * total]


def _least_share(around: Neighbours, proposal: Proposal) -> float:
    needs_anchor = any(around.op(name).kind.is_anchor for name in proposal.ops)
    return MIN_SHARE if needs_anchor else MIN_INJECTIVE_SHARE


def _kind(around: Neighbours, proposal: Proposal) -> object:
    """Equal for the same proposal in every layer of a model."""
    ops = [around.graph.op(name) for part in proposal.parts for name in sorted(part, key=around.rank.__getitem__)]
    return proposal.name, tuple((op.op, op.movement, tuple(v.tensor for v in op.inputs), op.outputs) for op in ops)


def _bytes_or_equivalent(around: Neighbours, group: Group, forms: Forms) -> float:
    """The roofline in bytes: what the group moves, or the bytes that could move while it computes."""
    is_half = any(value.tensor.dtype in HALVES for value in group.inputs)
    per_byte = forms.half_ops_per_byte if is_half else forms.ops_per_byte
    traffic = sum(value.tensor.nbytes for value in (*group.inputs, *group.outputs) if value.tensor.is_static)
    return max(traffic, sum(around.operations(op) for op in group.ops) / per_byte)


def _components(trials: list[_Trial]) -> list[list[_Trial]]:
    """Trials that share groups, directly or through others, together; in execution order."""
    shared = nx.Graph()
    shared.add_nodes_from(range(len(trials)))
    by_group: dict[str, int] = {}
    for index, trial in enumerate(trials):
        for anchor in sorted(trial.replaced):
            shared.add_edge(by_group.setdefault(anchor, index), index)
    found = sorted(sorted(component) for component in nx.connected_components(shared))
    return [[trials[index] for index in component] for component in found]


def _region(graph: PartitionGraph, trials: list[_Trial]) -> Region:
    """Every set of trials that replace different groups is an alternative, the single ones first."""
    anchors = frozenset().union(*(trial.replaced for trial in trials))
    own = tuple(group for group in graph.groups if group.anchor in anchors)
    drafts = drafts_of(graph)
    made = {
        id(trial): tuple(group_of_ops(drafts, part, trial.proposal.why) for part in trial.proposal.parts)
        for trial in trials
    }
    concerned = frozenset[str]().union(*(trial.proposal.ops for trial in trials), *(group.ops for group in own))
    part = between(graph, concerned)
    alternatives = [Alternative(AS_PARTITIONED, "", own)]
    for chosen in _disjoint_sets(trials):
        replaced = frozenset[str]().union(*(trial.replaced for trial in chosen))
        kept = (group for group in own if group.anchor not in replaced)
        alternative = Alternative(
            " + ".join(trial.proposal.name for trial in chosen),
            "; ".join(trial.proposal.why for trial in chosen),
            (*kept, *(group for trial in chosen for group in made[id(trial)])),
        )
        if exchanged(part, alternative) is not None:  # else groups would depend on each other
            alternatives.append(alternative)
    return Region(own[0].anchor, tuple(alternatives))


def _disjoint_sets(trials: list[_Trial]) -> list[tuple[_Trial, ...]]:
    """At most `MAX_ALTERNATIVES` - 1 sets of trials that replace different groups, the small ones first."""
    found: list[tuple[int, ...]] = [()]
    for members in found:  # grows meanwhile
        replaced = frozenset[str]().union(*(trials[index].replaced for index in members))
        for index in range(members[-1] + 1 if members else 0, len(trials)):
            if len(found) < MAX_ALTERNATIVES and not replaced & trials[index].replaced:
                found.append((*members, index))
    return [tuple(trials[index] for index in members) for members in found[1:]]

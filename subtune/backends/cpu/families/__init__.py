"""The schedule families of the CPU: what each accepts, its knobs, its candidates and its schedule, side by side."""

from __future__ import annotations

from subtune.backends.cpu.families import (
    amx,
    amx_chain,
    bottleneck,
    chain,
    columns,
    contraction,
    contraction_bf16,
    default,
    elementwise,
    grouped,
    moments,
    partials,
    pieces,
    planes,
    reference,
    rowwise,
    split_k,
    strassen,
    trace,
    transpose,
    window,
    winograd,
)
from subtune.backends.cpu.family import CPUFamily

FAMILIES: tuple[CPUFamily, ...] = (
    amx.FAMILY,
    contraction_bf16.FAMILY,
    contraction.FAMILY,
    split_k.FAMILY,
    grouped.FAMILY,
    winograd.FAMILY,
    strassen.FAMILY,
    window.FAMILY,
    planes.FAMILY,
    rowwise.FAMILY,
    columns.FAMILY,
    pieces.FAMILY,
    moments.FAMILY,
    partials.FAMILY,
    amx_chain.FAMILY,
    chain.FAMILY,
    bottleneck.FAMILY,
    elementwise.FAMILY,
    transpose.FAMILY,
    default.FAMILY,
    trace.FAMILY,
    reference.FAMILY,
)

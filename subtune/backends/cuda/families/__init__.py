"""One schedule family of CUDA per folder: what it accepts, its knobs, its candidates, its schedule."""

from __future__ import annotations

from typing import Any

from subtune.backends.base import Family
from subtune.backends.cuda.families import (
    attention,
    attention_mma,
    columns,
    default,
    direct,
    each,
    elementwise,
    fma,
    gemv,
    gemv_packed,
    grouped,
    mma,
    moments,
    pooled_stem,
    reference,
    rowwise,
    simt,
    stem,
    strassen,
    strip,
    transpose,
    wgmma,
    wgmma_normed,
    window,
    winograd,
)

FAMILIES: tuple[Family[Any, Any], ...] = (
    default.FAMILY,
    reference.FAMILY,
    wgmma.FAMILY,
    wgmma_normed.FAMILY,
    stem.FAMILY,
    pooled_stem.FAMILY,
    attention.FAMILY,
    attention_mma.FAMILY,
    mma.FAMILY,
    fma.FAMILY,
    simt.FAMILY,
    grouped.MMA,
    grouped.SIMT,
    strassen.FAMILY,
    winograd.FAMILY,
    gemv.FAMILY,
    gemv_packed.FAMILY,
    window.FAMILY,
    strip.FAMILY,
    rowwise.FAMILY,
    columns.FAMILY,
    moments.FAMILY,
    elementwise.FAMILY,
    transpose.FAMILY,
    direct.FAMILY,
    each.FAMILY,
)

"""A network's first convolution on Hopper: a few input channels (RGB), whose windows are no rows of 128 bytes.

A block computes whole rows of output pixels of one image, and then of another. The input rows they need, padding
included, are copied to shared memory. There the `KW * C` values of one window row are contiguous, so the tensor cores'
fragments of A are read straight from the patch (no im2col). The weights, packed `[N, KH * (KW * C up to a multiple of
8)]`, are copied once. A fragment is read in words of two elements: where the padding is odd, a zero weight stands
before each window row. `kernel` has the code.

An image that lies channels first is read as it is: the patch has a plane for every channel, and `KW` values of a window
row are contiguous. That saves the copy of the image which would turn it.
"""

from __future__ import annotations

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.stem.kernel import Stored
from subtune.backends.cuda.families.stem.plan import StemKnobs, front
from subtune.core.kernel import Kernel, NotApplicable


def schedule(problem: Problem[CUDAModel], knobs: StemKnobs) -> Kernel | NotApplicable:
    found = front(problem.workload, problem)
    plan = found if isinstance(found, NotApplicable) else found.plan(knobs, problem.device.sms)
    if isinstance(plan, NotApplicable):
        return plan
    if plan.stem.out_height % knobs.rows or plan.tiling.m % (64 * knobs.groups):
        return NotApplicable(f"{plan.tiling.m} pixels of {knobs.groups} warpgroups, in bands of {knobs.rows} rows")
    sink = Stored(plan.store, plan.stem, 2 if plan.stem.is_copied else 1)
    return plan.kernel(sink, tuple(plan.buffers.values()), problem.device.sms)

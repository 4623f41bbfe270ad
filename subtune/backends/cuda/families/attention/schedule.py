"""Attention as one kernel for Hopper, from the chain of two products and a softmax that a model writes."""

from __future__ import annotations

from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.attention.copies import copied_of
from subtune.backends.cuda.families.attention.kernel import Operands, attention_func
from subtune.backends.cuda.families.attention.operands import operands_of
from subtune.backends.cuda.families.attention.scores import scores_of
from subtune.backends.cuda.families.attention.store import Store
from subtune.backends.cuda.families.attention.store_copies import StoreCopies
from subtune.backends.cuda.families.attention.tiling import Knobs, obstacle
from subtune.backends.cuda.families.attention.walk import Walk
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.chain_copies import copying_chain


def schedule(problem: Problem[CUDAModel], knobs: Knobs) -> Kernel | NotApplicable:
    workload, device = problem.workload, problem.device
    chain = copying_chain(workload.func, workload.num_outputs)
    if isinstance(chain, NotApplicable):
        return chain
    form = chain.form
    if not form.pattern.is_softmax or device.capability != 90:
        return NotApplicable("no softmax between two products, or no wgmma")
    params = list(workload.func.params)
    found = operands_of(form, params)
    if isinstance(found, NotApplicable):
        return found
    q, k, v = found
    scores = scores_of(form)
    copied = copied_of(chain, found, scores, params)
    if isinstance(copied, NotApplicable):
        return copied
    if why := obstacle(knobs, q.inner, v.inner, device):
        return NotApplicable(why)
    buffers = {
        param: T.buffer([int(d) for d in param.shape], str(param.dtype), align=16, buffer_name=param.name)
        for param in params
    }
    walk = Walk(form, knobs, device.sms, scores.offset, buffers)
    q_buffer, k_buffer, v_buffer = (buffers[params[lies.param]] for lies in found)
    operands = Operands((q_buffer, k_buffer, v_buffer), q, k, v)
    store = Store(walk, buffers[chain.out])
    copies = StoreCopies(walk, copied, tuple(buffers[params[copy.lies.param]] for copy in copied))
    func = attention_func(tuple(buffers.values()), operands, scores, knobs, walk, store, copies)
    return Kernel(
        func.with_attrs({"global_symbol": "main", TIRX_ATTR: 1, "tirx.is_scheduled": 1, "tirx.noalias": True}), ()
    )

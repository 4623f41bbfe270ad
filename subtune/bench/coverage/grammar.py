"""The grammar: operator family x dtype x layout x shape x epilogue, drawn case by case from a seed.

Case `index` of a seed depends on these two alone, so a shorter run is a prefix of a longer one. Every family comes once
before any comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from onnx import TypeProto
from onnx.shape_inference import InferenceError

from subtune.bench.coverage.case import Case
from subtune.bench.coverage.dialect import Dialect, Value
from subtune.bench.coverage.families_memory import FAMILIES as MEMORY
from subtune.bench.coverage.families_products import FAMILIES as PRODUCTS
from subtune.bench.coverage.families_rows import FAMILIES as ROWS
from subtune.bench.coverage.families_windows import FAMILIES as WINDOWS
from subtune.bench.coverage.family import Draw, Family
from subtune.bench.coverage.onnx_dialect import OnnxDialect
from subtune.bench.coverage.work import Work, work_of

FAMILIES = {family.name: family for family in (*PRODUCTS, *WINDOWS, *ROWS, *MEMORY)}
DEFAULT_CASES = 150

_EPILOGUES = ("relu", "gelu", "gelu-tanh", "silu", "hardswish", "relu6", "sigmoid", "scale", "residual")
_EPILOGUE_SHARE = 0.6
_SCALE = 0.125
_DTYPES = {
    False: (("float32", 85), ("float16", 10), ("bfloat16", 5)),
    True: (("float32", 25), ("float16", 50), ("bfloat16", 25)),
}
"""Of a CPU and of a GPU, with their weights in the mixture."""
_TINY_SHARE = 0.1
_ATTEMPTS = 400
_WIDER_EACH = 20
"""Attempts, after which a family's ranges are made wider by `_WIDER`."""
_WIDER = 1.3


def cases(seed: int, count: int, is_gpu: bool) -> Iterator[Case]:
    """The first `count` cases of a seed."""
    order: list[str] = []
    shuffler = Random(f"{seed}/families")
    for index in range(count):
        if not order:
            order = sorted(FAMILIES)
            shuffler.shuffle(order)
        yield _drawn(seed, index, FAMILIES[order.pop()], is_gpu)


def body(dialect: Dialect, case: Case) -> list[Value]:
    """What the case computes, in the dialect's values: the outputs."""
    found = FAMILIES[case.family].body(dialect, case.sizes)
    outputs = list(found) if isinstance(found, tuple | list) else [found]
    for name in case.epilogue:
        if name == "scale":
            outputs = [dialect.scaled(outputs[0], _SCALE)]
        elif name == "residual":
            outputs = [dialect.binary("add", outputs[0], dialect.input(case.out))]
        else:
            outputs = [dialect.unary(name, outputs[0])]
    return outputs


def _drawn(seed: int, index: int, family: Family, is_gpu: bool) -> Case:
    """Sizes are drawn until there is neither too much nor, but for some tiny cases, too little work."""
    rng = Random(f"{seed}/{index}")
    draw = Draw(rng, is_gpu)
    choices = [(name, weight) for name, weight in _DTYPES[is_gpu] if not family.dtypes or name in family.dtypes]
    dtype = rng.choices([name for name, _ in choices], [weight for _, weight in choices])[0]
    is_tiny = draw.chance(_TINY_SHARE)
    epilogue = _epilogue(draw) if family.takes_epilogue and draw.chance(_EPILOGUE_SHARE) else ()
    for attempt in range(_ATTEMPTS):
        draw = replace(draw, growth=_WIDER ** (attempt // _WIDER_EACH))
        case = Case(seed, index, family.name, family.draw(draw), dtype)
        try:
            work, out = _of_skeleton(case)
        except InferenceError:  # a window larger than its image
            continue
        if work.fits(is_gpu) and (is_tiny or work.counts(is_gpu)):
            return Case(seed, index, family.name, case.sizes, dtype, epilogue, out if epilogue else ())
    raise AssertionError(f"{family.name}: no sizes of {_ATTEMPTS} make a case that is neither too large nor too small")


def _epilogue(draw: Draw) -> tuple[str, ...]:
    count = draw.pick(1, 1, 2)
    return tuple(draw.rng.sample(_EPILOGUES, count))


def _of_skeleton(case: Case) -> tuple[Work, tuple[int, ...]]:
    """What the case has to do, and the shape of its first output. Raises InferenceError for sizes that do not fit."""
    dialect = OnnxDialect(case.dtype)
    model = dialect.model(body(dialect, case), None)
    return work_of(model), _dims(model.graph.output[0].type)


def _dims(of: TypeProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in of.tensor_type.shape.dim)

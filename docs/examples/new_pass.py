"""A new pass: `negative(subtract(a, b))` becomes `subtract(b, a)`."""

# --8<-- [start:pass]
from typing import Any

import tvm
from tvm import relax

from subtune.passes.exprs import Expr
from subtune.passes.rewriter import Rules, Walk, rewrite


def swap_difference(walk: Walk, call: Any) -> Expr | None:
    """`-(a - b)` -> `b - a`, where nobody else needs `a - b`. Exact, but for the sign of a zero."""
    difference = walk.defined_by(call.args[0], "relax.subtract")
    if difference is None:
        return None
    if not walk.has_one_use(call.args[0]):
        return None
    a, b = difference.args
    return relax.op.subtract(b, a)


RULES: Rules = {"relax.negative": (swap_difference,)}


def swap_differences(mod: tvm.IRModule) -> tvm.IRModule:
    """Negated differences as one operator."""
    return rewrite(mod, RULES)


# --8<-- [end:pass]

# --8<-- [start:test]
from tvm.script import relax as R


@R.function
def before(a: R.Tensor((4,), "float32"), b: R.Tensor((4,), "float32")):
    with R.dataflow():
        difference = R.subtract(a, b)
        result = R.negative(difference)
        R.output(result)
    return result


@R.function
def expected(a: R.Tensor((4,), "float32"), b: R.Tensor((4,), "float32")):
    with R.dataflow():
        result = R.subtract(b, a)
        R.output(result)
    return result


@R.function
def difference_is_used(a: R.Tensor((4,), "float32"), b: R.Tensor((4,), "float32")):
    with R.dataflow():
        difference = R.subtract(a, b)
        negated = R.negative(difference)
        result = R.multiply(difference, negated)
        R.output(result)
    return result


def module(func):
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


tvm.ir.assert_structural_equal(swap_differences(module(before)), module(expected))
unchanged = module(difference_is_used)
assert swap_differences(unchanged).same_as(unchanged)
# --8<-- [end:test]

# --8<-- [start:pipeline]
from subtune.passes.run import Phase, run_passes
from subtune.pipeline import NORMALIZE

run_passes(module(before), (*NORMALIZE, Phase("mine", (swap_differences,))))
# --8<-- [end:pipeline]

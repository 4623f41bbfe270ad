"""Names of operators are found again from the variables that a builder made of their hints."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from subtune.core.names import Names, name_of, names_of

NAMES = ["/encoder/layer.0/Add::1", "/encoder/layer.0/Add::12", "encoder.layer_0.Add__1", "7", "Größe", "::", "Mul_12"]


@pytest.fixture(scope="module")
def made() -> tuple[tvm.IRModule, list[tuple[str, str]]]:
    """Three operators of each name; and (variable, name)."""
    bb, names, found = relax.BlockBuilder(), Names(), []
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for name in NAMES * 3:
                y = bb.emit(relax.op.add(y, x), names.hint(name))
                found.append((str(y.name), name))
            out = bb.emit_output(y, str(y.name))
        bb.emit_func_output(out)
    return names.noted(bb.get()), found


def test_every_variable_has_its_operator_s_name(made: tuple[tvm.IRModule, list[tuple[str, str]]]) -> None:
    mod, found = made
    names = names_of(mod)
    assert len({variable for variable, _ in found}) == len(found)
    for variable, name in found:
        assert name_of(names, variable) == name
    (result,) = (b.var for b in mod["main"].body.blocks[0].bindings if not isinstance(b.var, relax.DataflowVar))
    assert name_of(names, str(result.name)) == NAMES[-1]


def test_other_variables_are_called_what_they_are(made: tuple[tvm.IRModule, list[tuple[str, str]]]) -> None:
    assert name_of(names_of(made[0]), "lv12") == "lv12"
    assert names_of(tvm.IRModule()) == {}

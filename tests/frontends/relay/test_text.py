"""Relay's text: what the grammar reads, and what it says of what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from subtune.core.errors import ModelError, SubtuneError
from subtune.frontends import Parameters, load
from subtune.frontends.relay.nodes import Call, Constant, Tensor, TupleExpr, TupleOf
from subtune.frontends.relay.text import read_text
from tests.frontends.relay.run import run_text

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
TYPE = "Tensor[(2, 3), float32]"
RELU = np.maximum(X, 0)


def main(body: str, params: str = f"%x: {TYPE}") -> str:
    return f'#[version = "0.0.5"]\ndef @main({params}) {{\n{body}\n}}\n'


PROGRAMS = {
    "graph bindings": ("%0 = nn.relu(%x);\n %1 = add(%0, %0);\n subtract(%1, %x)", 2 * RELU - X),
    "nested calls": ("add(nn.relu(negative(%x)), %x)", RELU),
    "let": (f"let %a: {TYPE} = nn.relu(%x);\n let %b = add(%a, 1f);\n multiply(%a, %b)", RELU * (RELU + 1)),
    "let shadows": ("let %a = add(%x, 1f); let %a = multiply(%a, 2f); %a", (X + 1) * 2),
    "operators' precedence": ("%x + %x * 2f - %x / 4f", X + X * 2 - X / 4),
    "comparison as a number": ('cast(%x + 1f > %x * 2f, dtype="float32")', (X + 1 > X * 2).astype(np.float32)),
    "tuples": ("%0 = (%x, (nn.relu(%x), 3f));\n add(%0.0, %0.1.0)", X + RELU),
    "a tuple of one": ("%0 = (nn.relu(%x),);\n %0.0", RELU),
    "projected call": ("split(%x, indices_or_sections=3, axis=1).1", X[:, 1:2]),
    "a function as a value": (f"%0 = fn (%p: {TYPE}) -> {TYPE} {{ add(%p, %x) }};\n %0(nn.relu(%x))", RELU + X),
    "called where it stands": (f"(fn (%p: {TYPE}) {{ nn.relu(%p) }})(%x)", RELU),
    "fused functions": (
        f'%3 = fn (%p0: {TYPE}, Primitive=1, hash="ab", Composite="dnnl.relu") -> {TYPE} {{ nn.relu(%p0) }};\n'
        "%4 = %3(%x);\n add(%4, %3(%4))",
        2 * RELU,
    ),
    "an operator as a value": ("let %f = nn.relu;\n %f(%x)", RELU),
    "a function that gets one": ("let %twice = fn (%f, %v) { %f(%f(%v)) };\n %twice(negative, %x)", X),
    "braces": ("add({ %0 = nn.relu(%x); %0 }, { let %a = %x; %a })", RELU + X),
    "bound inside braces, used outside": ("%9 = add({ %0 = nn.relu(%x); %0 }, %x);\n add(%9, %0)", 2 * RELU + X),
    "numbered anew in a function": (
        f"%0 = nn.relu(%x);\n %1 = fn (%p: {TYPE}) {{ %0 = negative(%p); %0 }};\n add(%0, %1(%x))",
        RELU - X,
    ),
    "if of a constant": ("if (True) { nn.relu(%x) } else { nothing.like_this(%x) }", RELU),
    "if of folded constants": ("if (less(add(1, 2), 3)) { %x } else { nn.relu(%x) }", RELU),
    "if of data": (
        "%0 = less(sum(%x), 100f);\n if (%0) { %1 = nn.relu(%x); (%1, %x) } else { (%x, %x) }.0",
        RELU,
    ),
    "comments": (f"/* one */ nn.relu(%x) // two\n /* ty={TYPE} span=from_string:1:2 */", RELU),
    "windows": ("%0 = nn.relu(%x);\r\n add(%0,\r\n 1f)", RELU + 1),
    "spaces before commas": ("add( %x , 1f )", X + 1),
    "old comments": ("nn.relu(%x)  # ty=Tensor", RELU),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    body, expected = PROGRAMS[name]
    np.testing.assert_allclose(run_text(main(body), X)[0], expected, rtol=1e-6)


def test_devices_of_parameters_and_functions():
    device = (
        "VirtualDevice(device_type=1, virtual_device_id=0, target=Target(id=5571f2d8, kind='llvm', keys={'cpu'}, "
        "attrs={'mcpu': \"core-avx2\", 'libs': [\"mkl\"]}, host=Target(id=7f00, kind='llvm')))"
    )
    text = f"""#[version = "0.0.5"]
    def @main(%x {{virtual_device={device}}}: {TYPE}, hash="a1", virtual_device={device}) -> {TYPE} {{
      on_device(nn.relu(%x), virtual_device={device}, constrain_result=True)
    }}"""
    np.testing.assert_array_equal(run_text(text, X)[0], RELU)


def test_several_functions_are_inlined():
    text = f"""#[version = "0.0.5"]
    def @twice[A](%x: A, Inline=1) -> A {{ add(%x, @once(%x)) }}
    def @once(%x) {{ nn.relu(%x) }}
    def @unused(%x: List[int32]) {{ match (%x) {{ Cons(%a, _) => {{ %a }}, Nil => 0 }} }}
    type List[A] {{ Cons(A, List[A]), Nil, }}
    extern type Storage
    def @main(%x: {TYPE}) -> {TYPE} {{ @twice(@twice(%x)) }}"""
    once = X + RELU
    np.testing.assert_allclose(run_text(text, X)[0], once + np.maximum(once, 0), rtol=1e-6)


def test_a_bare_function_and_a_bare_expression():
    np.testing.assert_array_equal(run_text(f"v0.0.4\nfn (%x: {TYPE}) {{\n nn.relu(%x) }}", X)[0], RELU)
    free = f"free_var %x: {TYPE};\n%0 = nn.relu(%x);\nfree_var %y: {TYPE};\nadd(%0, %y)"
    np.testing.assert_array_equal(run_text(free, X, X)[0], RELU + X)


def test_outputs_are_flattened():
    found = run_text(main("(%x, ((), nn.relu(%x)), 1f)"), X)
    assert [array.tolist() for array in found] == [X.tolist(), RELU.tolist(), 1.0]


def test_a_tuple_as_input():
    text = main("add(%p.0, %p.1.0)", f"%p: ({TYPE}, (float32,))")
    imported = load(text)
    assert [str(spec) for spec in imported.inputs] == ["p_0: float32[2, 3]", "p_1_0: float32[]"]


def test_names_as_importers_write_them():
    names = ("layer1.0.weight", "aten::relu_0.1", "x/y:0")
    text = main(
        "%0 = add(%layer1.0.weight, %aten::relu_0.1);\n add(%0, %x/y:0)", ", ".join(f"%{n}: {TYPE}" for n in names)
    )
    assert tuple(spec.name for spec in load(text, {}, Parameters(inputs=names)).inputs) == names


@pytest.mark.parametrize(
    ("literal", "value", "dtype"),
    [
        ("1", 1, "int32"), ("-7", -7, "int32"), ("5000000000", 5_000_000_000, "int64"), ("3i64", 3, "int64"),
        ("-3i16", -3, "int16"), ("2i8", 2, "int8"), ("200u8", 200, "uint8"), ("0.5f", 0.5, "float32"),
        ("1e-05f", 1e-5, "float32"), ("-1.5e+10f", -1.5e10, "float32"), ("2f16", 2.0, "float16"),
        ("0.1f64", 0.1, "float64"), ("inff", np.inf, "float32"), ("-inff", -np.inf, "float32"),
        ("nanf", np.nan, "float32"), ("True", True, "bool"), ("False", False, "bool"), ("6.", 6.0, "float32"),
    ],
)  # fmt: skip
def test_literals(literal, value, dtype):
    node = read_text(main(literal)).functions["main"].body
    assert isinstance(node, Constant)
    np.testing.assert_array_equal(node.array, np.asarray(value, dtype))
    assert str(node.array.dtype) == dtype


def test_attributes():
    attributes = (
        'a=1, b=-2.5f, c="x \\"y", d=True, e=None, f=[1, [2, 3i64], []], g=(4), h=meta[Array][0], i=float32, j=1e-05f, '
        "k=[None, ?], l=inff, m={x=1}, n='main', o.p=1, q=[1, 2,]"
    )
    node = read_text(main(f"op(%x, {attributes})")).functions["main"].body
    assert isinstance(node, Call)
    assert node.attrs == {
        "a": 1, "b": -2.5, "c": 'x "y', "d": True, "e": None, "f": [1, [2, 3], []], "g": [4], "h": None, "i": "float32",
        "j": 1e-5, "k": [None, None], "l": np.inf, "m": None, "n": "main", "o.p": 1, "q": [1, 2],
    }  # fmt: skip
    assert node.at == "3:1"


def test_types():
    params = (
        f"%a: Tensor[(1i64, ?, 3), bool], %b: ({TYPE}, int8,), %c, %d /* ty={TYPE} span=x:1 */, %e: _, %f: fn (A) -> B"
    )
    kinds = [var.type for var in read_text(main("()", params)).functions["main"].params]
    assert kinds[0] == Tensor((1, None, 3), "bool")
    assert kinds[1] == TupleOf((Tensor((2, 3), "float32"), Tensor((), "int8")))
    assert kinds[2] is None
    assert kinds[3] == Tensor((2, 3), "float32")
    assert kinds[4] is None
    assert isinstance(read_text(main("()")).functions["main"].body, TupleExpr)


METADATA = """
#[metadata]
{
  "root": 1, "nodes": [
    {"type_key": ""}, {"type_key": "Map", "keys": ["relay.Constant", "relay.attrs.LeakyReluAttrs"], "data": [2, 4]},
    {"type_key": "Array", "data": [3]},
    {"type_key": "relay.Constant", "attrs": {"_checked_type_": "0", "data": "0", "span": "0"}},
    {"type_key": "Array", "data": [5]}, {"type_key": "relay.attrs.LeakyReluAttrs", "attrs": {"alpha": "0.5"}}],
  "b64ndarrays": [
    "P6G0lvBAXt0AAAAAAAAAAAEAAAAAAAAAAgAAAAIgAQACAAAAAAAAAAMAAAAAAAAAGAAAAAAAAAAAAIA/AAAAQAAAQEAAAIBAAACgQAAAwEA="
  ], "attrs": {"tvm_version": "0.8.0"}
}"""


def test_metadata():
    text = main("%0 = nn.leaky_relu(%x, meta[relay.attrs.LeakyReluAttrs][0]);\n add(%0, meta[relay.Constant][0])")
    expected = np.where(X > 0, X, X / 2) + np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run_text(text + METADATA, X)[0], expected)
    with pytest.raises(ModelError, match=r"3:1: the metadata section has no relay.Constant with number 7"):
        load(main("meta[relay.Constant][7]") + METADATA)


def test_constants_without_their_data():
    text = main(
        "%0 = multiply(%x, meta[relay.Constant][0] /* ty=Tensor[(3), float32] */);\n add(%0, meta[relay.Constant][1])"
    )
    with pytest.raises(ModelError, match=r"no data for meta\[relay.Constant\]\[0\], meta\[relay.Constant\]\[1\]"):
        load(text)
    first, second = np.float32([1, 2, 3]), X + 4
    given = {"meta[relay.Constant][0]": first, "constant_1": second}
    np.testing.assert_array_equal(run_text(text, X, values=given)[0], X * first + second)
    assert np.isfinite(run_text(text, X, random=True)[0]).all()


def test_a_functions_parameter_types_a_constant():
    text = main("%0 = fn (%p: Tensor[(3), float32]) { add(%x, %p) };\n %0(meta[relay.Constant][0])")
    assert run_text(text, X, random=True)[0].shape == X.shape


def test_types_that_tvm_had_inferred_are_compared():
    text = main("nn.relu(transpose(%x) /* ty=Tensor[(?, 2), float32] */) /* ty=Tensor[(2, 3), float32] */")
    notes = load(text).notes
    assert (
        notes[1]
        == "1 calls give other types than the model says, the first: nn.relu at 3:1 gives Tensor[(3, 2), float32]"
    )
    assert len(load(main(f"nn.relu(%x) /* ty={TYPE} span=a.py:3:4 */")).notes) == 1


BAD = {
    "": "empty",
    '#[version = "0.0.5"]\n': "truncated",
    main("add(%x, %y)"): "3:9: the variable %y is not defined",
    main("%0"): "3:1: %0 is used before it is bound",
    main("%0 = %x; %0 = %x; %0"): "3:10: %0 is bound twice",
    main("%x", f"%x: {TYPE}, %x: {TYPE}"): "2:40: two parameters are named %x",
    main("%x") + main("%x").split("\n", 1)[1]: "5:5: the function @main is defined twice",
    main("add(%x,"): "3:8|4:1",
    main("add(%x, %x)")[:-4]: "truncated",
    main("%x $ %x"): r"3:4: '\$' does not belong here",
    main("add(%x, 99999999999999999999999999)"): "3:9: the number 99999999999999999999999999 does not fit",
    main("%x", "%x: Tensor[(-1), float32]"): "2:.*-1 is no size",
    main("nothing.like_this(%x)"): "nothing.like_this at 3:1 is not supported",
    main("add(nn.nope(%x), vision.nope(%x))"): "nn.nope at 3:5 is not supported; vision.nope at 3:18 is not supported",
    main("@nowhere(%x)"): "@nowhere at 3:1 is not defined",
    main("%x(%x)"): "a tensor or tuple at 3:3 is called",
    main("%x.0"): "field 0 at 3:1 is taken of what is no tuple",
    main("(%x, %x).2"): "field 2 at 3:9 is not in a tuple of 2",
    main("nn.relu"): "nn.relu at 3:1 is used as a value",
    main("fn (%p) { %p }"): "a function at 3:5 is used as a value",
    main("let %loop = fn (%p) { %loop(%p) };\n %loop(%x)"): "%loop at 3:28 calls itself",
    main("let %f = fn (%p) { %p };\n %f(%x, %x)"): "%f at 4:4 takes 1 arguments and is given 2",
    main("ref(%x)"): "ref at 3:1 is not supported",
    main("match (%x) { Some(%a) => %a, }"): "match at 3:1 is not supported",
    main("Cons(%x, Nil)") + "type List { Cons(int32, List), Nil }": "Cons at 3:1 is a constructor of List",
    main("()"): "returns no tensor",
    main("nn.dense(%x, 1f, units=True, banana=7)"): "nn.dense at 3:1",
    main('sum(%x, axis="one")'): "sum at 3:1",
    main("reshape(%x, newshape=[7, 7])"): "reshape at 3:1",
    main("add(%x)"): "add at 3:1",
    main("%x", "%x: Tensor[(?, 3), float32]"): r"give its shape as --shape x=D0,D1",
    main("add(%x, %y)", "%x, %y"): "neither a type nor a value",
    main("%x", "%x: Tensor[(3), complex64]"): "complex64, which is not supported",
    main("%x", "%x: Tensor[(3), handle]"): "handle, which is not supported",
    '#[version = "0.0.5"]\ndef @a(%x: int32) { %x }\ndef @b(%x: int32) { %x }': "no function @main: it has @a, @b",
    '#[version = "0.0.5"]\ndef @ext = meta[ExternalFunc][0]\n'
    + main("@ext(%x)").split("\n", 1)[1]: "external function",
    main("%x") + '#[metadata]\n{"root": 1': "JSON is damaged",
    main("%x") + '#[metadata]\n{"root": 1, "nodes": []}': "not what tvm.ir.save_json writes",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_texts(text):
    with pytest.raises(SubtuneError, match=BAD[text]) as raised:
        load(text.encode() if text else b"", {}, Parameters(inputs=None)) if text else read_text(text)
    assert str(raised.value).count("\n") == 0


def test_depth_is_no_problem():
    depth = 3000
    nested = "nn.relu(" * depth + "%x" + ")" * depth
    imported = load(main(nested))
    assert len(imported.mod["main"].body.blocks[0].bindings) == depth + 1
    for text in ("{" * 300 + "%x" + "}" * 300, "(" * 300 + "%x" + ")" * 300):
        assert load(main(text)).outputs[0].shape == (2, 3)
    with pytest.raises(ModelError, match="nested too deeply"):
        load(main("(" * 5000 + "%x" + ",)" * 5000))


def test_functions_that_explode_are_refused():
    functions = "".join(f"def @f{i}(%x) {{ add(@f{i + 1}(%x), @f{i + 1}(negative(%x))) }}\n" for i in range(40))
    text = f'#[version = "0.0.5"]\ndef @main(%x: {TYPE}) {{ @f0(%x) }}\n{functions}def @f40(%x) {{ %x }}'
    with pytest.raises(ModelError, match="once its functions are inlined"):
        load(text)

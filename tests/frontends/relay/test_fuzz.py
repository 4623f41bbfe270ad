"""Whatever is fed to the Relay frontend, it imports it or says in one sentence why not."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from subtune.core.errors import SubtuneError
from subtune.frontends import Parameters, load
from subtune.frontends.relay.params import load_params
from tests.frontends.relay.test_json import conv_document

SEEDS = (
    """#[version = "0.0.5"]
type List[A] { Cons(A, List[A]), Nil, }
def @main(%x: Tensor[(1, 4, 8, 8), float32], %w, %b /* ty=Tensor[(6), float32] */) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=6, kernel_size=[3, 3]) /* ty=Tensor[(1, 6, 8, 8), float32] */;
  %1 = nn.bias_add(%0, %b);
  %2 = split(nn.relu(%1), indices_or_sections=2, axis=1);
  %3 = fn (%p: Tensor[(1, 3, 8, 8), float32], Primitive=1) { add(%p, 0.5f) };
  let %s = %3(%2.0);
  if (less(1i64, 2i64)) { mean(%s, axis=[2, 3], keepdims=True) } else { @other(%2.1) }
}
def @other(%a) { let %c = (%a, meta[relay.Constant][0] /* ty=float32 */); multiply(%c.0, %c.1) }
""",
    """v0.0.4
fn (%data: Tensor[(2, 6), int32], %table: Tensor[(9, 4), float32], %w: Tensor[(3, 24), float32]) {
  %0 = take(%table, %data, axis=0); // ty=Tensor[(2, 6, 4), float32]
  %1 = reshape(%0, newshape=[0, -1]);
  %2 = transpose(%1, axes=None) * -1e-05f + 2f;
  %3 = strided_slice(%2, begin=[0], end=[24], strides=[1], slice_mode="end");
  nn.softmax(nn.dense(transpose(%3, axes=[1, 0]), %w, units=3)).0
}
""",
)
TOKENS = re.compile(r"[%@]?[\w.]+|\s+|.", re.DOTALL)
PIECES = (
    *sorted({token for seed in SEEDS for token in TOKENS.findall(seed) if not token.isspace()}),
    *"-1 5i64 inff nanf 2f16 99999999999999999999 None True [] [1,[2]] () %0 %x.0 meta[Array][0] #[metadata] /* */ // "
    "\r \0 é Tensor[(0),int8] Tensor[(?),bool] match ref free_var extern float16 NHWC -> => == (%x,) {".split(" "),
)
SETTINGS = settings(suppress_health_check=list(HealthCheck))


def message_of(read: Callable[[], object]) -> str:
    """What an error says, in one line; "" where there is none."""
    try:
        read()
    except SubtuneError as error:
        return str(error) or "nothing\n"
    return ""


def imports_or_says_why(data: bytes, parameters: Parameters) -> None:
    assert "\n" not in message_of(lambda: load(data, {}, parameters))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A seed with some of its tokens removed, replaced, doubled, moved, or with its end cut off."""
    tokens = TOKENS.findall(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 5))):
        where = draw(st.integers(0, len(tokens) - 1))
        what = draw(st.sampled_from(("remove", "replace", "replace", "insert", "double", "swap", "cut")))
        if what == "remove":
            del tokens[where : where + draw(st.integers(1, 4))]
        elif what == "replace":
            tokens[where] = draw(st.sampled_from(PIECES))
        elif what == "insert":
            tokens.insert(where, draw(st.sampled_from(PIECES)))
        elif what == "double":
            tokens[where:where] = tokens[where : where + draw(st.integers(1, 12))]
        elif what == "swap":
            other = draw(st.integers(0, len(tokens) - 1))
            tokens[where], tokens[other] = tokens[other], tokens[where]
        else:
            del tokens[where + 1 :]
        if not tokens:
            break
    return "".join(tokens)


@SETTINGS
@given(mutated(), st.booleans())
@example(SEEDS[0].replace("1i64", "inff2"), True)
def test_mutated_texts(text: str, random: bool) -> None:
    imports_or_says_why(text.encode(), Parameters(random=random))


@SETTINGS
@given(st.data(), st.booleans())
def test_mutated_json(data: st.DataObject, boxed: bool) -> None:
    document = list(conv_document(boxed))
    for _ in range(data.draw(st.integers(1, 4))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.sampled_from('0123456789"{}[],:-x'))
    imports_or_says_why("".join(document).encode(), Parameters())


@SETTINGS
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join)))
def test_random_texts(text: str) -> None:
    imports_or_says_why(f'#[version = "0.0.5"]\n{text}'.encode("utf-8", "replace"), Parameters(random=True))


@SETTINGS
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    imports_or_says_why(data, Parameters())
    for head in (b"", b"\xb7\x9c\x04\x05\x4f\x8d\xe5\xf7" + bytes(8), b"PK\x03\x04"):
        assert "\n" not in message_of(functools.partial(load_params, head + data))

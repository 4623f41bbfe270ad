"""What is said of the sums of several convolutions holds for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.byte_sizes import sums_are_small
from subtune.passes.partition import partition
from subtune.passes.partition_read import read_dataflow
from tests.backends.cpu.test_bf16 import NHWC
from tests.passes.test_outline import module


@pytest.mark.parametrize(("weights", "are_small"), [((100, 113), True), ((100, 114), False), ((127, 100), False)])
def test_the_largest_sums_decide(weights: tuple[int, int], are_small: bool) -> None:
    """128 * 113 * 9 * 256 is the last below 2^25."""

    def body(emit: Any, x: Any) -> Any:
        sums = []
        for weight in weights:
            array = relax.const(np.full((8, 3, 3, 256), weight, np.int8))
            sums.append(emit(op.nn.conv2d(x, array, padding=1, **{**NHWC, "out_dtype": "int32"})))
        return op.add(*sums)

    mod = module(body, ((1, 4, 4, 256), "uint8"))
    graph = partition(mod)
    nodes = [graph.op(name) for group in graph.groups for name in group.ops]
    assert sums_are_small(nodes, read_dataflow(mod).constants) == are_small
    assert not sums_are_small([node for node in nodes if node.op == "add"], {})

"""A new schedule family of the CPU: elementwise subgraphs in blocks, each block by one thread."""

# --8<-- [start:knobs]
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a candidate of the family decides."""

    vectors: int
    """Written one after the other by one step of a thread's loop."""
    serial: bool = False
    """On the calling thread alone."""


# --8<-- [end:knobs]

# --8<-- [start:accepts]
from subtune.backends.base import Problem
from subtune.backends.cpu.device import CPUModel
from subtune.patterns.elementwise import Elementwise


def accepts(problem: Problem[CPUModel]) -> str:
    """Why there is nothing for a problem; "" where there is. No schedule is tried here."""
    pattern = problem.pattern
    if not isinstance(pattern, Elementwise):
        return "it reduces"
    if pattern.transposed is not None:
        return "an operand is read across its rows"
    return ""


# --8<-- [end:accepts]

# --8<-- [start:candidates]
from collections.abc import Sequence

from subtune.core.candidate import Candidate

_START_S = 1e-6
"""To wake the other threads."""


def candidates(problem: Problem[CPUModel]) -> Sequence[Candidate]:
    """Bytes over bandwidth, and the start of the threads. In any order: the backend ranks what all families propose."""
    device, nbytes = problem.device, problem.workload.nbytes
    moving_s = nbytes / device.dram_bytes_per_s
    found = [Candidate.of("blocks", Knobs(vectors), moving_s + _START_S) for vectors in (1, 2, 4)]
    return [*found, Candidate.of("blocks", Knobs(4, serial=True), moving_s * device.threads)]


# --8<-- [end:candidates]

# --8<-- [start:schedule]
from tvm.s_tir import Schedule, ScheduleError

from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.stages import inline


def schedule(problem: Problem[CPUModel], knobs: Knobs) -> Kernel | NotApplicable:
    """The scheduled PrimFunc, or the reason why there is none. Whatever is illegal is refused here."""
    sch = Schedule(problem.workload.func)  # a copy: the workload is never touched
    stages = inline(sch)  # prologue and epilogue move into the blocks that are left
    if isinstance(stages, NotApplicable):
        return stages
    try:
        for output in stages.outputs:
            fused = sch.fuse(*sch.get_loops(output))
            outer, step, lane = sch.split(fused, [None, knobs.vectors, problem.device.lanes()])
            sch.unroll(step)
            sch.vectorize(lane)
            if not knobs.serial:
                sch.parallel(outer)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    return Kernel(sch.mod["main"], (), sch.trace)


# --8<-- [end:schedule]

# --8<-- [start:family]
from subtune.backends.base import Family

FAMILY = Family(
    name="blocks",
    version=1,
    knobs=Knobs,
    accepts=accepts,
    candidates=candidates,
    schedule=schedule,
)
# --8<-- [end:family]

# --8<-- [start:test]
import numpy as np
import onnx.helper as h
import tvm

from subtune.backends import device_of
from subtune.pipeline import prepare


def workload(op: str):
    """One operator and the multiplication behind it, as the partition fuses them."""
    x, y = (h.make_tensor_value_info(name, 1, [3, 40]) for name in "xy")
    nodes = [h.make_node(op, ["x"], ["t"]), h.make_node("Mul", ["t", "x"], ["y"])]
    graph = h.make_graph(nodes, "g", [x], [y])
    return prepare(h.make_model(graph)).subgraphs[0].workload


device = device_of("auto")
problem = Problem(workload("Relu"), device.model)
assert FAMILY.accepts(problem) == ""
for candidate in FAMILY.candidates(problem):
    kernel = FAMILY.kernel(problem, candidate)
    assert isinstance(kernel, Kernel), kernel
    run = device.backend.lower(kernel.func, device)
    x = np.random.default_rng(0).normal(size=(3, 40)).astype("float32")
    result = tvm.runtime.empty((3, 40), "float32")
    run["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_array_equal(result.numpy(), np.maximum(x, 0) * x)

assert FAMILY.accepts(Problem(workload("Softmax"), device.model)) == "it reduces"
assert FAMILY.kernel(problem, Candidate.make("blocks", magic=1)).reason == "blocks has no knob magic"
# --8<-- [end:test]

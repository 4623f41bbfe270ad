"""What the bench and its worker processes say to one another."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from subtune.core.errors import SubtuneError


class BenchError(SubtuneError):
    """A framework to be timed does not start, or died; or a benchmark that there is not was asked for."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker process runs.

    Attributes:
        framework: a name of `subtune.bench.peers`, for devices of this `kind`.
        path: the artifact or the ONNX file; for a limit of the processor, its kernels.
        inputs: the .npz file with the input arrays, `arr_0` belonging to the first of `names` and of `dtypes`.
        outputs: where the worker leaves the outputs of its first call, likewise; "" if nobody looks at them.
        to_ours: axes that turn each of its outputs into subtune's, where the two were given different layouts.
        cores: the worker's affinity; empty leaves it alone.
        precision: what frameworks on a GPU compute in, as `compile`'s; `allow_tf32` as the artifact was compiled.
        torch_function: `package.module:function` of a user, which gives the nn.Module of the ONNX file; "" for none.
    """

    framework: str
    path: str
    threads: int
    inputs: str = ""
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    outputs: str = ""
    target: str = ""
    to_ours: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    precision: str = "fp32"
    allow_tf32: bool = False
    kind: str = "cpu"
    torch_function: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        data = json.loads(text)
        return cls(**{**data, **{name: tuple(data[name]) for name in ("names", "dtypes", "to_ours", "cores")}})


@dataclass(frozen=True, slots=True)
class Round:
    """One framework's turn: seconds of each call and of all, CPU seconds of other processes meanwhile, bytes.

    Attributes:
        peak_rss_bytes: high-water mark of the process since it began to load the model, calls included.
        rss_bytes: what it holds now.
    """

    seconds: tuple[float, ...]
    wall_s: float
    foreign_s: float
    peak_rss_bytes: int
    rss_bytes: int

    @classmethod
    def from_reply(cls, reply: dict) -> Round:
        return cls(
            tuple(reply["seconds"]), reply["wall_s"], reply["foreign_s"], reply["peak_rss_bytes"], reply["rss_bytes"]
        )

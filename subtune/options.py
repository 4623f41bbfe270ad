"""What a user may choose of a compile, as one frozen record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subtune.core.cache import COPIED
from subtune.core.numerics import Numerics
from subtune.core.progress import ProgressCallback

if TYPE_CHECKING:
    from subtune.database import Database
    from subtune.frontends import Parameters
    from subtune.measure import Measurer


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The keywords of `subtune.compile` and of the commands."""

    target: Any = "auto"
    """Text as the command line takes it, a TVM target or its fields, a hardware model. A machine that is not this one
    gets kernels that were measured there, if the database has them, and else those that are predicted the fastest."""
    threads: int | None = None
    """That the model runs on; None: all usable cores."""
    devices: Sequence[int] = ()
    """Numbers of this machine's GPUs, all of one kind, on which kernels are measured side by side; none: the first."""
    remote: str = ""
    """A device behind TVM's RPC, on which kernels are measured: host:port of its server, or host:port/key of a tracker
    that lends such devices. With `target="auto"` it is asked what it is."""
    cluster: str = ""
    """A Ray cluster, on whose nodes kernels are built and measured: `auto`, host:port, or ray://host:port."""
    insecure: bool = False
    """The server of `remote` may be in the open net, where everybody can run code on it."""
    device_file: str | Path | None = None
    """A JSON file whose fields take the place of what the machine reports."""
    exact: bool = False
    """Only kernels that round as the model says (`Numerics.exact`)."""
    precision: str = "fp32"
    """`fp32`, `bf16`, or on a GPU `fp16`: products of such operands, sums in float32; inputs and results keep their
    types. The comparison with the reference allows what that costs, and the report says how much it was."""
    tf32: bool = False
    """On a GPU, float32 products may be rounded to tf32."""
    tensor_core: str = "auto"
    """Of a GPU: `auto`, `off` or `only`."""
    shapes: Mapping[str, Sequence[int] | int] | None = None
    """Shapes of inputs, or values of symbols."""
    dynamic: Mapping[str, Any] | None = None
    """The values that symbols of the model's inputs may have, for one artifact of all of them: a symbol -> a range, its
    values, value -> weight (of how often it is met), or text as of `--dynamic`, which may be an expression of other
    symbols, `past + seq`. Values without a weight share 1 %."""
    regret: float = 0.03
    """With `dynamic`: how much longer than the fastest of all measured kernels the chosen one may take, as a share."""
    max_kernels: int = 24
    """With `dynamic`: of one subgraph."""
    cache: str = COPIED
    """With `dynamic`: `copied`, or `in-place` for a decoder whose caches are inputs and, with new rows behind them,
    outputs. A run then writes the new rows behind those of the arrays that the run before gave, and copies none."""
    params: Mapping[str, Any] | str | Path | bytes | None = None
    """Weights of a Relay model: name -> array, or a file, or its bytes, of `relay.save_param_dict` or `numpy.savez`."""
    random_params: bool = False
    """Weights of a Relay model that have no value get random ones."""
    inputs: Sequence[str] | None = None
    """Names of the parameters of a Relay model that are its inputs; None leaves it to their use."""
    budget_s: float | None = None
    """Wall-clock seconds for tuning; None: none but the candidates' own."""
    topk: int = 20
    """Candidates per subgraph."""
    transfer: bool = False
    """Begin with the winners of near workloads and near devices that the database has, and try fewer other candidates
    where those were enough there. Not with `dynamic`. No default: on a busy machine the model came out 2.5 % slower."""
    weights_limit: float | None = None
    """Times the model's own weights: what they take at most in the layouts that kernels want, the whole model together.
    Above it those kernels give way that lose the least time for a byte. None: 1.25, or 128 MiB more if that is more;
    with `dynamic` four times as much is added."""
    tune: bool = True
    """False takes what the database has, and default schedules for the rest."""
    verify: bool = True
    """Compare the whole model with a reference before it is written; one that disagrees is refused."""
    database: Database | str | Path | None = None
    """An open database, its path or `postgresql://USER@HOST/NAME`; None is the file in the user's cache directory."""
    measurer: Measurer | None = None
    """Worker processes that are warm already; None starts some and ends them."""
    progress: ProgressCallback | None = None
    """Called with a `subtune.core.progress.Progress` after every measured candidate."""
    trace: bool = False
    """Write a second library into the artifact, `trace.so`, which `subtune run --trace` and `Artifact.trace` want. The
    model's own library is the same with and without. On a GPU only models of many shapes have one; others need none."""
    dump: str | Path | None = None
    """A directory that gets the module after every pass."""

    @property
    def numerics(self) -> Numerics:
        """Raises TargetError where a switch has no such value."""
        return Numerics(self.exact, self.tf32, self.tensor_core, self.precision)

    @property
    def parameters(self) -> Parameters:
        from subtune.frontends import Parameters  # TVM is loaded with it

        names = None if self.inputs is None else tuple(self.inputs)
        return Parameters(self.params, self.random_params, names)

"""`subtune run ARTIFACT`: one inference from the command line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from subtune.cli import arguments, instance
from subtune.cli.files import check_writable, write_text
from subtune.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from subtune.core.tensor_spec import TensorSpec


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("run", parents=[common], help="run an artifact once")
    parser.add_argument("artifact", metavar="ARTIFACT")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        type=arguments.assignment,
        metavar="NAME=FILE.npy",
        help="an input's array (bits in uint8 for int4, float8 and so on); repeatable (default: random arrays)",
    )
    instance.add_instance(parser)
    parser.add_argument(
        "--output", metavar="FILE.npz", help="write the outputs (bits in uint8 for int4, float8 and so on)"
    )
    parser.add_argument("--threads", type=arguments.positive, metavar="N")
    parser.add_argument("--check", action="store_true", help="check the SHA-256 of the artifact's files first")
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        help="write another run, kernel by kernel, for https://ui.perfetto.dev (of what `compile --trace` wrote)",
    )
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from subtune.artifact import load
    from subtune.artifact.random_inputs import random_inputs
    from subtune.runtime import carried

    if args.trace:
        check_writable(args.trace)
    artifact = load(args.artifact, check=args.check, threads=args.threads, share_weights=True)  # for one run
    if args.input and args.shape:
        raise InputError("--shape is for random arrays: those of --input have shapes of their own, leave it out")
    if args.input:
        specs = {spec.name: spec for spec in artifact.inputs}
        inputs = {name: _read(name, path, specs.get(name)) for name, path in args.input}
    else:
        values = instance.instance_of(args.shape, artifact.manifest)
        inputs = random_inputs(artifact.inputs, values=values)
        if artifact.inputs:
            which = f" of {instance.shown(values)}" if values else ""
            print(f"subtune: no --input given, running on random arrays{which}", file=sys.stderr)
    start = time.perf_counter()
    outputs = artifact.run(inputs)
    seconds = time.perf_counter() - start
    if args.trace:
        from subtune.report.traced import chrome_trace

        write_text(args.trace, chrome_trace(artifact, artifact.trace(inputs)))
    if args.output:
        try:
            with open(args.output, "wb") as f:
                np.savez(f, **{name: carried(array) for name, array in outputs.items()})  # type: ignore[arg-type]
        except OSError as e:
            raise InputError(f"cannot write {args.output}: {e.strerror or e}") from e
    rows = [_summary(name, array) for name, array in outputs.items()]
    if args.json:
        print(json.dumps({"seconds": seconds, "outputs": rows}))
        return 0
    for row in rows:
        print(f"{row['name']}: {row['dtype']}{row['shape']} min {row['min']:g} mean {row['mean']:g} max {row['max']:g}")
    print(f"{seconds * 1e3:.3f} ms (one cold run, {artifact.threads} threads)")
    if args.trace:
        print(f"wrote {args.trace}: another run, kernel by kernel; open it with https://ui.perfetto.dev")
    return 0


def _read(name: str, path: str, spec: TensorSpec | None) -> np.ndarray:
    """The array of a file, which has no name for narrow types: numpy writes their bits without a type."""
    import numpy as np

    from subtune.runtime import uncarried

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise InputError(f"cannot read {path} for input {name}: {e}; give a .npy file") from e
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} for input {name} holds several arrays; give a .npy file with one")
    are_bits = array.dtype == np.uint8 or array.dtype == np.dtype("V1")
    return uncarried(array, spec.dtype) if spec is not None and are_bits else array


def _summary(name: str, array: np.ndarray) -> dict[str, Any]:
    import numpy as np

    wide = array.astype(np.float64)
    low, mean, high = (float(f(wide)) for f in (np.min, np.mean, np.max)) if array.size else (0.0, 0.0, 0.0)
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "min": low,
        "mean": mean,
        "max": high,
    }

"""Command-line values and options that several commands share."""

from __future__ import annotations

import argparse
import math
from typing import Any

from subtune.core.cache import COPIED, IN_PLACE
from subtune.core.durations import seconds_of
from subtune.core.errors import ModelError, ShapeError

TARGET_HELP = (
    "auto, LLVM's name of a processor (znver4, cortex-a76), a TVM tag, or JSON with mcpu and mtriple; "
    "for a GPU cuda (the one here), sm_90a, H100 or nvidia/nvidia-h100; "
    "for a machine other than this one kernels are predicted, not measured"
)


def duration(text: str) -> float:
    """`500ms`, `60s`, `2m`, `1h` or plain seconds -> seconds."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> int:
    """A whole number above zero."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers: write 0,1")
    return tuple(map(int, parts))


def factor(text: str) -> float:
    """A number of at least 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return value


def share(text: str) -> float:
    """`5%` or `0.05`, from 0 on."""
    number, scale = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        value = float(number) * scale
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 5% or 0.05")
    return value


def assignment(text: str) -> tuple[str, str]:
    """`NAME=VALUE`, split at the first "="."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def add_model(parser: argparse.ArgumentParser, is_optional: bool = False) -> None:
    text = "an ONNX file, Relay's text or JSON, or zoo:NAME"
    parser.add_argument("model", metavar="MODEL", nargs="?" if is_optional else None, help=text)
    add_shapes(parser)


def add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=D0,D1,…",
        help="the shape of an input, or the value of a symbolic dimension; may be repeated",
    )


def add_dynamic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="SYMBOL=VALUES",
        help="what a symbolic dimension may be: 1..512, 16..512/16 or 16,32,64, with weights :FILE.json behind it, or "
        "an expression of other symbols, past+seq; a dimension without a name is INPUT.AXIS; may be repeated",
    )


def add_dispatch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--regret",
        type=share,
        default=0.03,
        metavar="SHARE",
        help="with --dynamic: how much longer than the fastest kernel the chosen one may take (default: 3%%)",
    )
    parser.add_argument(
        "--max-kernels",
        type=positive,
        default=24,
        metavar="N",
        help="with --dynamic: of one subgraph (default: 24); 1 is one kernel for all shapes",
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        choices=(COPIED, IN_PLACE),
        default=COPIED,
        help="with --dynamic: in-place writes new rows of a decoder's caches behind those that are there (default: "
        "copied)",
    )


def dynamic_of(args: argparse.Namespace) -> dict[str, str]:
    """The --dynamic options as a dictionary."""
    found: dict[str, str] = {}
    for text in args.dynamic:
        name, equals, values = text.partition("=")
        if not name.strip() or not equals:
            raise ShapeError(f"--dynamic {text!r} names no symbol: write SYMBOL=VALUES, for example seq=1..512.")
        if name.strip() in found:
            raise ShapeError(f"--dynamic has {name.strip()!r} twice: give all of its values at once.")
        found[name.strip()] = values
    return found


def add_parameters(parser: argparse.ArgumentParser) -> None:
    relay = parser.add_argument_group("Relay models")
    relay.add_argument(
        "--params", metavar="FILE", help="weights: of relay.save_param_dict, or an .npz of arrays by name"
    )
    relay.add_argument("--random-params", action="store_true", help="random weights where there are no others")
    relay.add_argument("--inputs", metavar="NAME,…", help="the parameters that are inputs (default: told by their use)")


def parameters_of(args: argparse.Namespace) -> dict[str, Any]:
    """What `add_parameters` added, under the names of the Python API."""
    names = None if args.inputs is None else tuple(name.strip() for name in args.inputs.split(",") if name.strip())
    return {"params": args.params, "random_params": args.random_params, "inputs": names}


def shapes_of(args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The --shape options as a dictionary."""
    if not args.shape:
        return {}
    from subtune.frontends import parse_shape_flag

    return dict(parse_shape_flag(text) for text in args.shape)


def add_tuning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="auto", help=TARGET_HELP)
    parser.add_argument("--device", dest="device_file", metavar="FILE.json", help="overrides what the machine reports")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads the model runs on (default: all cores)")
    parser.add_argument("--budget", type=duration, metavar="TIME", help="longest time to tune: 60s, 2m (default: none)")
    parser.add_argument("--topk", type=positive, default=20, metavar="K", help="candidates per subgraph (default: 20)")
    add_database(parser)
    parser.add_argument("--tensor-core", choices=("auto", "off", "only"), help="of a GPU (default: auto, the fastest)")
    parser.add_argument("--allow-tf32", action="store_true", help="on a GPU: float32 products may be rounded to tf32")


def add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--db",
        metavar="FILE|URL",
        help="tuning database, or postgresql://USER@HOST/NAME (default: a file in the user's cache directory)",
    )


def add_sites(parser: argparse.ArgumentParser) -> None:
    """Where kernels are measured."""
    parser.add_argument(
        "--devices", type=numbers, default=(), metavar="0,1", help="measure on these of this machine's GPUs at once"
    )
    add_remote(parser, "measure on a device behind TVM's RPC server, or a tracker's devices of that key")
    add_cluster(parser)


def add_remote(parser: argparse.ArgumentParser, text: str, required: bool = False) -> None:
    parser.add_argument("--remote", default="", required=required, metavar="HOST:PORT[/KEY]", help=text)
    parser.add_argument("--insecure", action="store_true", help="that server may have a public address")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        default="",
        metavar="auto|ADDRESS",
        help="build and measure on the nodes of a Ray cluster: auto, HOST:PORT, or ray://HOST:PORT",
    )


def tuning_of(args: argparse.Namespace) -> dict[str, Any]:
    """What `add_tuning` added, under the names of the Python API."""
    return {
        "target": args.target,
        "device_file": args.device_file,
        "threads": args.threads,
        "budget_s": args.budget,
        "topk": args.topk,
        "database": args.db,
        **_switches_of(args),
    }


def _switches_of(args: argparse.Namespace) -> dict[str, Any]:
    """The switches of `Numerics` that mean something for a GPU, where they were given."""
    given: dict[str, Any] = {"tensor_core": args.tensor_core} if args.tensor_core else {}
    if args.allow_tf32:
        given["tf32"] = True
    return given


DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=tuple(DTYPES.values()),
        help="bf16, fp16 (on a GPU): products of such operands, sums in float32; inputs and results keep their types",
    )
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="the same under NumPy's names")


def precision_of(args: argparse.Namespace) -> str | None:
    """What `add_precision` added; None where nothing was said."""
    given: str | None = args.precision or DTYPES.get(args.dtype or "")
    return given


def model_of(args: argparse.Namespace, model: str) -> str:
    """`model`, of the zoo with the `--batch` that was given."""
    if args.batch is None:
        return model
    if not model.startswith("zoo:"):
        raise ModelError(f"--batch is for models of the zoo; give {model} the batch as --shape INPUT=N,… instead")
    return f"{model}{'&' if '?' in model else '?'}batch={args.batch}"


def add_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=positive, metavar="N", help="batch size of a model of the zoo")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")

"""`subtune compile MODEL... -o OUT.subtune`: tune models and write an artifact of each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from subtune.cli import arguments
from subtune.cli.compile_many import holds_models, run_many
from subtune.cli.default_names import default_output
from subtune.cli.progressbar import progress_bar

if TYPE_CHECKING:
    from subtune.report.compile_report import CompileReport


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("compile", parents=[common], help="tune models and write an artifact of each")
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="an ONNX file, Relay's text or JSON, zoo:NAME, or a directory, of which all ONNX files are taken",
    )
    arguments.add_shapes(parser)
    arguments.add_dynamic(parser)
    arguments.add_dispatch(parser)
    arguments.add_cache(parser)
    arguments.add_parameters(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.subtune",
        help="the artifact (default: MODEL.subtune, here); of several models, the directory that theirs are put in",
    )
    arguments.add_tuning(parser)
    arguments.add_sites(parser)
    parser.add_argument(
        "--weights-limit",
        type=arguments.factor,
        metavar="X",
        help="what weights may take as kernels want them, times the model's own (default: 1.25, or 128 MiB more; "
        "with --dynamic four times as much is added; inf)",
    )
    parser.add_argument(
        "--transfer",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="begin with what the database says won for like subgraphs and on like devices, and try fewer others",
    )
    parser.add_argument("--no-verify", action="store_true", help="do not compare the result with a reference")
    parser.add_argument("--no-tune", action="store_true", help="use default schedules, and what the database has")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="no Winograd, no float32 in parts on tensor cores, no polynomials for exp, tanh, erf; denormals stay",
    )
    arguments.add_precision(parser)
    arguments.add_batch(parser)
    parser.add_argument(
        "--trace", action="store_true", help="put a second library into the artifact, for `subtune run --trace`"
    )
    parser.add_argument("--dump", metavar="DIR", help="write the module after every pass into this directory")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.artifact.destination import check_destination

    if len(args.models) > 1 or holds_models(args.models[0]):
        return run_many(args, compile_one)
    output = args.output or default_output(args.models[0])
    check_destination(output)  # before minutes of tuning, not after
    report = compile_one(args, args.models[0], output, args.dump)
    print(report.to_json() if args.json else report)
    return 130 if report.is_interrupted else 0


def compile_one(args: argparse.Namespace, model: str, output: str, dump: str | None) -> CompileReport:
    """Compile one of the models under the command's options."""
    from subtune.driver import compile_model

    with progress_bar() as progress:
        return compile_model(
            arguments.model_of(args, model),
            output,
            shapes=arguments.shapes_of(args),
            dynamic=arguments.dynamic_of(args),
            regret=args.regret,
            max_kernels=args.max_kernels,
            cache=args.cache,
            verify=not args.no_verify,
            tune=not args.no_tune,
            weights_limit=args.weights_limit,
            transfer=args.transfer,
            exact=args.exact,
            precision=arguments.precision_of(args) or "fp32",
            trace=args.trace,
            progress=progress,
            dump=dump,
            devices=args.devices,
            remote=args.remote,
            insecure=args.insecure,
            cluster=args.cluster,
            **arguments.parameters_of(args),
            **arguments.tuning_of(args),
        )

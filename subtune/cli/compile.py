"""`subtune compile MODEL -o OUT.subtune`: tune a model and write its artifact."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from subtune.cli import arguments
from subtune.cli.progressbar import progress_bar


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("compile", parents=[common], help="tune a model and write an artifact")
    arguments.add_model(parser)
    arguments.add_dynamic(parser)
    arguments.add_dispatch(parser)
    arguments.add_parameters(parser)
    parser.add_argument("-o", "--output", metavar="OUT.subtune", help="the artifact (default: MODEL.subtune, here)")
    arguments.add_tuning(parser)
    parser.add_argument(
        "--weights-limit",
        type=arguments.factor,
        metavar="X",
        help="what weights may take as kernels want them, times the model's own (default: 1.25, or 128 MiB more; inf)",
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
    parser.add_argument("--dump", metavar="DIR", help="write the module after every pass into this directory")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def default_output(model: str) -> str:
    """`zoo:resnet18?batch=8` -> `resnet18.subtune`; `dir/model.onnx` -> `model.subtune`."""
    return f"{stem_of(model)}.subtune"


def stem_of(model: str) -> str:
    """`zoo:resnet18?batch=8` -> `resnet18`; `dir/model.onnx` -> `model`."""
    if model.startswith("zoo:"):
        return model.removeprefix("zoo:").partition("?")[0]
    return Path(model).stem


def run(args: argparse.Namespace) -> int:
    from subtune.artifact.destination import check_destination
    from subtune.driver import compile_model

    output = args.output or default_output(args.model)
    check_destination(output)  # before minutes of tuning, not after
    with progress_bar() as progress:
        report = compile_model(
            arguments.model_of(args, args.model),
            output,
            shapes=arguments.shapes_of(args),
            dynamic=arguments.dynamic_of(args),
            regret=args.regret,
            max_kernels=args.max_kernels,
            verify=not args.no_verify,
            tune=not args.no_tune,
            weights_limit=args.weights_limit,
            exact=args.exact,
            precision=arguments.precision_of(args) or "fp32",
            progress=progress,
            dump=args.dump,
            **arguments.parameters_of(args),
            **arguments.tuning_of(args),
        )
    print(report.to_json() if args.json else report)
    return 130 if report.is_interrupted else 0

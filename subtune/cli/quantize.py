"""`subtune quantize MODEL --data calib.npz`: a float model -> one whose products are of 8 bits, and what that loses."""

from __future__ import annotations

import argparse
from typing import Any

from subtune.cli import arguments
from subtune.quantization.settings import CALIBRATIONS, FORMATS


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("quantize", parents=[common], help="make a model of 8 bits, with ONNX Runtime")
    parser.add_argument("model", metavar="MODEL", help="an ONNX file of float32, or zoo:NAME")
    arguments.add_shapes(parser)
    parser.add_argument("-o", "--output", metavar="FILE.onnx", help="what to write (default: MODEL.int8.onnx, here)")
    parser.add_argument(
        "--data",
        nargs="+",
        action="extend",
        metavar="FILE.npz",
        help="what the model sees in use: arrays of samples, named after its inputs; files, or directories of them",
    )
    parser.add_argument("--random", type=arguments.positive, metavar="N", help="N seeded random inputs instead")
    parser.add_argument("--calibration", choices=CALIBRATIONS, default="minmax", help="(default: minmax)")
    parser.add_argument(
        "--exclude", nargs="+", action="extend", default=[], metavar="NODE", help="nodes that stay in float"
    )
    parser.add_argument("--format", choices=FORMATS, default="qdq", help="of the operators (default: qdq)")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.cli.default_names import stem_of
    from subtune.quantizer import quantize

    report = quantize(
        args.model,
        args.output or f"{stem_of(args.model)}.int8.onnx",
        data=args.data,
        random=args.random,
        shapes=arguments.shapes_of(args),
        calibration=args.calibration,
        exclude=args.exclude,
        format=args.format,
    )
    print(report.to_json() if args.json else report)
    return 0

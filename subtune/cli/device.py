"""`subtune device`: what subtune knows of this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from subtune.cli import arguments


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("device", parents=[common], help="show the hardware model")
    parser.add_argument("--target", default="auto", help=arguments.TARGET_HELP)
    parser.add_argument("--device", dest="device_file", metavar="FILE.json", help="overrides what the machine reports")
    parser.add_argument("--threads", type=arguments.positive, metavar="N")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.device import CPU, source

    device = CPU(args.target, args.threads)
    if args.device_file:
        device = device.overridden(args.device_file)
    if args.json:
        print(device.to_json())
        return 0
    for name, value in asdict(device).items():
        print(f"{name:<18}{' '.join(value) if isinstance(value, tuple) else value}")
    print(f"{'peak GFLOP/s':<18}{device.peak_flops() / 1e9:.0f}")
    print(f"{'fingerprint':<18}{device.fingerprint()}")
    print(f"{'source':<18}{source(device)}")
    return 0

"""`subtune device`: what subtune knows of this machine, or of its GPU."""

from __future__ import annotations

import argparse
import json
from typing import Any

from subtune.cli import arguments


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("device", parents=[common], help="show the hardware model")
    parser.add_argument("--target", default="auto", help=arguments.TARGET_HELP)
    parser.add_argument("--device", dest="device_file", metavar="FILE.json", help="overrides what the machine reports")
    parser.add_argument("--threads", type=arguments.positive, metavar="N")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure what this device does, in a minute, and use that from now on"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE.json", help="with --calibrate: keep it there, for --device, and not for all use"
    )
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.backends import Device, described
    from subtune.core.errors import TargetError

    if args.output and not args.calibrate:
        raise TargetError("--output says where to keep what --calibrate measures: give both")
    device: Device = described(args.target, args.threads, args.device_file)
    if args.calibrate:
        return _calibrate(device, args.output, args.json)
    if args.json:
        print(device.model.to_json())
        return 0
    fields = json.loads(device.model.to_json())
    costs = fields.pop("calibration", {})
    _show(fields | dict(device.backend.facts(device.model)))
    if costs:
        print("\ncosts")
        _show(costs)
    return 0


def _calibrate(device: Any, output: str | None, as_json: bool) -> int:
    from subtune.backends.calibration import calibration_path, write_calibration

    path = output or calibration_path(device.model.fingerprint())
    found = device.backend.calibrate(device.model)
    write_calibration(found, path)
    if as_json:
        print(found.to_json())
        return 0
    width = max(map(len, found.figures)) + 2
    for name, figure in found.figures.items():
        print(f"{name:<{width}}{figure.value:<12.4g}{figure.how}")
    costs = json.loads(device.model.to_json()).get("calibration", {})
    if kept := [name for name in costs if name not in found.figures]:
        print(f"not measured, as shipped: {', '.join(kept)}")
    print(f"kept in {path}")
    return 0


def _show(values: dict[str, Any]) -> None:
    width = max(18, *(len(name) + 2 for name in values))
    for name, value in values.items():
        text = " ".join(map(_pair, value)) if isinstance(value, list) else value
        print(f"{name:<{width}}{text}")


def _pair(value: Any) -> str:
    return f"{value[0]}={value[1]}" if isinstance(value, list) else str(value)

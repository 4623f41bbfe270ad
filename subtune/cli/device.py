"""`subtune device`: what subtune knows of this machine, or of its GPU."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from subtune.cli import arguments


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("device", parents=[common], help="show the hardware model")
    parser.add_argument("--target", default="auto", help=arguments.TARGET_HELP)
    parser.add_argument("--device", dest="device_file", metavar="FILE.json", help="overrides what the machine reports")
    parser.add_argument("--threads", type=arguments.positive, metavar="N")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the GPU's bandwidths and rates, and use them from now on"
    )
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.backends.cpu.device import CPU, source
    from subtune.backends.cuda.device import is_cuda_target
    from subtune.core.errors import TargetError

    if is_cuda_target(args.target):
        return _gpu(args)
    if args.calibrate:
        raise TargetError("--calibrate measures a GPU: add --target cuda")
    device = CPU(args.target, args.threads)
    if args.device_file:
        device = device.overridden(args.device_file)
    if args.json:
        print(device.to_json())
        return 0
    _show(asdict(device))
    print(f"{'peak GFLOP/s':<18}{device.peak_flops() / 1e9:.0f}")
    print(f"{'fingerprint':<18}{device.fingerprint()}")
    print(f"{'source':<18}{source(device)}")
    return 0


def _gpu(args: argparse.Namespace) -> int:
    from subtune.backends.cuda.device import CUDA
    from subtune.core.errors import TargetError

    device = CUDA(args.target)
    if args.device_file:
        device = device.overridden(args.device_file)
    if args.calibrate:
        if obstacle := device.obstacle():
            raise TargetError(f"{device.name} cannot be calibrated: {obstacle}")
        from subtune.backends.cuda.timing.calibrate import calibrate, store

        found = calibrate(device)
        store(device, found)
        if args.json:
            print(json.dumps(asdict(found), indent=2))
            return 0
        _show({name: value for name, value in asdict(found).items() if name != "mma_sync"})
        for dtype, rate in found.mma_sync:
            print(f"{'mma.sync ' + dtype:<26}{rate / 1e12:.0f} TFLOP/s")
        return 0
    if args.json:
        print(device.to_json())
        return 0
    _show(asdict(device))
    for dtype, _ in device.mma_flops_per_cycle:
        print(f"{'peak ' + dtype:<26}{device.mma_flops(dtype) / 1e12:.0f} TFLOP/s")
    print(f"{'peak float32':<26}{device.fma_flops() / 1e12:.1f} TFLOP/s")
    print(f"{'fingerprint':<26}{device.fingerprint()}")
    print(f"{'source':<26}{device.source}")
    if obstacle := device.obstacle():
        print(f"{'not here':<26}{obstacle}")
    return 0


def _show(values: dict[str, Any]) -> None:
    width = max(18, *(len(name) + 2 for name in values))
    for name, value in values.items():
        text = " ".join(map(_pair, value)) if isinstance(value, tuple) else value
        print(f"{name:<{width}}{text}")


def _pair(value: Any) -> str:
    return f"{value[0]}={value[1]}" if isinstance(value, tuple) else str(value)

"""`subtune bench ARTIFACT|MODEL`, `subtune bench --suite cpu|cpu-ops`: latency and memory beside other frameworks."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from subtune.cli import arguments
from subtune.cli.progressbar import progress_bar
from subtune.scratch import temporary

_PRINT = "-"


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("bench", parents=[common], help="time an artifact or a model beside other frameworks")
    parser.add_argument(
        "subject", nargs="?", metavar="ARTIFACT|MODEL", help="a model is compiled first, into a temporary place"
    )
    parser.add_argument(
        "--suite", choices=("cpu", "cpu-ops"), help="the zoo, or single operators, instead of one model"
    )
    parser.add_argument(
        "--models", "--ops", default="", metavar="LIST", help="of a suite, only these; * stands for anything"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=D0,D1,…", help="for a MODEL, as compile's"
    )
    parser.add_argument(
        "--against",
        metavar="LIST",
        help="of onnxruntime, openvino-f32, openvino, torch-compile, torch, numpy, default (TVM's own pipeline), or "
        "none; by default onnxruntime and default, and for a suite all that it is about; on a GPU of torch-graph "
        "(eager, channels last), torch-max-autotune, dlight, by default all",
    )
    arguments.add_tuning(parser)
    parser.add_argument("--exact", action="store_true", help="compile without Winograd and polynomials")
    arguments.add_precision(parser)
    arguments.add_batch(parser)
    parser.add_argument("--rounds", type=arguments.positive, metavar="N", help="interleaved rounds (default: 7)")
    parser.add_argument("--round-time", type=arguments.duration, metavar="TIME", help="of each framework in a round")
    parser.add_argument(
        "--json",
        nargs="?",
        const=_PRINT,
        metavar="FILE",
        help="print JSON instead of text, or write it to FILE as well",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.bench.job import BenchError

    if not args.subject and not args.suite and args.json not in (None, _PRINT):
        args.subject, args.json = args.json, _PRINT  # `bench --json ARTIFACT`
    if bool(args.subject) == bool(args.suite):
        raise BenchError("give an ARTIFACT, a MODEL, or --suite cpu or cpu-ops")
    if args.json not in (None, _PRINT) and not Path(args.json).resolve().parent.is_dir():
        raise BenchError(f"cannot write {args.json}: there is no such directory")
    return _suite(args) if args.suite else _one(args)


def _one(args: argparse.Namespace) -> int:
    from subtune import manifest as manifests
    from subtune.bench.artifact_race import bench, default_against, require_known
    from subtune.bench.source import onnx_file
    from subtune.cuda import is_cuda_target

    if not Path(args.subject).is_dir():  # said before minutes of tuning, not after
        require_known(_against(args, ()), "cuda" if is_cuda_target(args.target) else "cpu")
    with temporary() as scratch:
        artifact = Path(args.subject)
        if not artifact.is_dir() and artifact.suffix != ".subtune":
            artifact = _compile(args, scratch)
        manifest = manifests.read(artifact)
        against = _against(args, default_against(manifest.kind))
        is_asked = args.against is not None
        with onnx_file(manifest.source, scratch, needed=is_asked and bool(against)) as (model, limits):
            report = bench(
                artifact,
                model=model,
                against=against if model else (),
                threads=args.threads,
                rounds=args.rounds or 7,
                round_s=args.round_time or 0.5,
                limits=limits,
            )
    _show(args, str(report), report.to_json())
    if not model and not is_asked and not args.json:
        print("the model that it was compiled from is not known: nothing to compare with")
    return 0


def _compile(args: argparse.Namespace, scratch: Path) -> Path:
    from subtune.cli.compile import default_output
    from subtune.compile import compile_model

    output = scratch / default_output(args.subject)
    with progress_bar() as progress:
        model = arguments.model_of(args, args.subject)
        compile_model(model, output, shapes=arguments.shapes_of(args), progress=progress, **_options(args))
    return output


def _suite(args: argparse.Namespace) -> int:
    from subtune.bench import suite_cpu, suite_ops
    from subtune.bench.artifact_race import require_known
    from subtune.bench.ops_table import ops_json, ops_table
    from subtune.bench.race import Pace
    from subtune.bench.suite import Settings, chosen
    from subtune.bench.table import cpu_json, cpu_table
    from subtune.database import Database

    is_models = args.suite == "cpu"
    cases: Any = suite_cpu.MODELS if is_models else suite_ops.CASES
    cases = chosen(cases, [name for name in args.models.split(",") if name], args.suite)
    against = _against(args, suite_cpu.AGAINST if is_models else suite_ops.AGAINST)
    require_known(against)
    options = _options(args)
    table: Any = cpu_table if is_models else ops_table
    to_json: Any = cpu_json if is_models else ops_json
    with Database(options.pop("database")) as database, progress_bar() as progress:
        settings = Settings(
            database,
            against,
            tuple(options.items()),
            Pace(args.rounds or 7, args.round_time or (0.5 if is_models else 0.2)),
            progress,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
        settings.device()  # a target that this machine cannot run is refused now

        def keep(report: Any) -> None:
            if args.json not in (None, _PRINT):
                _write(Path(args.json), to_json(report))

        run_suite: Any = suite_cpu.run_cpu if is_models else suite_ops.run_ops
        report = run_suite(cases, settings, keep)
    _show(args, table(report), to_json(report))
    return 130 if report.is_interrupted else 0


def _against(args: argparse.Namespace, default: tuple[str, ...]) -> tuple[str, ...]:
    if args.against is None:
        return default
    return tuple(dict.fromkeys(name for name in args.against.split(",") if name and name != "none"))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """For `compile_model`; `precision` only where it was given."""
    options = {**arguments.tuning_of(args), "exact": args.exact}
    precision = arguments.precision_of(args)
    return {**options, "precision": precision} if precision else options


def _show(args: argparse.Namespace, text: str, as_json: str) -> None:
    if args.json not in (None, _PRINT):
        _write(Path(args.json), as_json)
    print(as_json if args.json == _PRINT else text)


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a reader may look while the suite goes on."""
    from subtune.bench.job import BenchError

    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text + "\n")
        part.replace(path)
    except OSError as e:
        raise BenchError(f"cannot write {path}: {e.strerror or e}") from e

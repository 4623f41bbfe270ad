"""`subtune bench ARTIFACT|MODEL`, `subtune bench --suite NAME`: latency and memory beside other frameworks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from subtune.cli import arguments, instance, verdict
from subtune.cli.progressbar import progress_bar
from subtune.core.scratch import temporary

_PRINT = "-"
_GPU_SUITES = ("fastdlight", "tensorcore", "gpu-ops")
_OF_A_KIND = (*_GPU_SUITES, "dietcode")
"""Suites whose frameworks follow from the device where nobody names some."""
_SUITES = ("cpu", "cpu-ops", "coverage", "dietcode", "budget", *_GPU_SUITES, "op-vs-subgraph")


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("bench", parents=[common], help="time an artifact or a model beside other frameworks")
    parser.add_argument(
        "subject", nargs="?", metavar="ARTIFACT|MODEL", help="a model is compiled first, into a temporary place"
    )
    parser.add_argument(
        "--suite",
        choices=_SUITES,
        help="instead of one model: the zoo, or single operators, or what each --budget gives, on the CPU; "
        "on a GPU the rows of the FastDlight RFC and of apache/tvm#4105, or more operators; on either, cases drawn "
        "from a grammar of operators (coverage), or tuning ops against tuning subgraphs (apache/tvm#10650); "
        "layers of many shapes, from one artifact and from many (dietcode)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of --suite coverage: which cases (default: 0)"
    )
    parser.add_argument(
        "--cases", type=arguments.positive, metavar="K", help="of --suite coverage: only the first K (default: 150)"
    )
    parser.add_argument(
        "--models", "--ops", default="", metavar="LIST", help="of a suite, only these; * stands for anything"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=D0,D1,…",
        help="for a MODEL, as compile's; for an ARTIFACT, the value of a symbolic dimension (default: the largest)",
    )
    arguments.add_dynamic(parser)
    parser.add_argument(
        "--against",
        metavar="LIST",
        help="of onnxruntime, openvino-f32, openvino, torch-compile, torch, numpy, default (TVM's own pipeline), or "
        "none; by default onnxruntime and default, and for a suite all that it is about; on a GPU of torch-graph "
        "(eager, channels last), torch-compile, torch-max-autotune, tensorrt, dlight, by default all that there are",
    )
    parser.add_argument(
        "--torch",
        default="",
        metavar="PACKAGE.MODULE:FUNCTION",
        help="of a MODEL or an ARTIFACT: the function, without arguments, gives the torch.nn.Module that PyTorch runs",
    )
    arguments.add_tuning(parser)
    parser.add_argument("--exact", action="store_true", help="compile without Winograd and polynomials")
    arguments.add_precision(parser)
    arguments.add_batch(parser)
    parser.add_argument("--rounds", type=arguments.positive, metavar="N", help="interleaved rounds (default: 7)")
    parser.add_argument("--round-time", type=arguments.duration, metavar="TIME", help="of each framework in a round")
    verdict.add_fail_below(parser)
    parser.add_argument(
        "--json",
        nargs="?",
        const=_PRINT,
        metavar="FILE",
        help="print JSON instead of text, or store it in FILE as well, with the machine, the date and all versions",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.bench.job import BenchError

    if not args.subject and not args.suite and args.json not in (None, _PRINT):
        args.subject, args.json = args.json, _PRINT  # `bench --json ARTIFACT`
    if bool(args.subject) == bool(args.suite):
        raise BenchError(f"give an ARTIFACT, a MODEL, or --suite {', '.join(_SUITES)}")
    if args.json not in (None, _PRINT) and not Path(args.json).resolve().parent.is_dir():
        raise BenchError(f"cannot write {args.json}: there is no such directory")
    if args.suite and args.dynamic:
        raise BenchError("--dynamic is for one model, not for a suite: leave it out")
    if args.suite and args.torch:
        raise BenchError("--torch is for one model, not for a suite: leave it out")
    if args.suite and args.fail_below is not None:
        raise BenchError("--fail-below is for one model, not for a suite: leave it out")
    return _suite(args) if args.suite else _one(args)


def _one(args: argparse.Namespace) -> int:
    from subtune import backends
    from subtune.artifact import manifest as manifests
    from subtune.bench.artifact_race import bench
    from subtune.bench.job import BenchError
    from subtune.bench.peers import peers_of
    from subtune.bench.source import onnx_file
    from subtune.bench.torch_agreement import require_function

    if not Path(args.subject).is_dir():  # said before minutes of tuning, not after
        peers_of(backends.meant_by(args.target).kind).require(_against(args, ()))
    if args.torch:
        require_function(args.torch)
    with temporary() as scratch:
        artifact = Path(args.subject)
        if not artifact.is_dir() and artifact.suffix != ".subtune":
            artifact = _compile(args, scratch)
        manifest = manifests.read(artifact)
        values = instance.instance_of(args.shape if artifact == Path(args.subject) else (), manifest)
        peers = peers_of(manifest.kind)
        own = tuple(name for name in ("torch", "torch-compile") if args.torch and name in peers.against)
        against = _against(args, tuple(dict.fromkeys((*peers.default, *own))))
        is_asked = args.against is not None
        is_needed = is_asked or args.fail_below is not None
        if args.fail_below is not None and not against:
            raise BenchError("--fail-below has nothing to compare with: name a framework with --against")
        with onnx_file(manifest.source, scratch, needed=is_needed and bool(against)) as (model, limits):
            report = bench(
                artifact,
                model=model,
                against=against if model else (),
                threads=args.threads,
                rounds=args.rounds or 7,
                round_s=args.round_time or 0.5,
                limits=limits,
                values=values,
                torch_function=args.torch,
            )
    _show(args, str(report), report.to_json())
    if not model and not is_asked and not args.json:
        print("the model that it was compiled from is not known: nothing to compare with")
    return 0 if args.fail_below is None else verdict.exit_code(report, against, args.fail_below)


def _compile(args: argparse.Namespace, scratch: Path) -> Path:
    from subtune.cli.default_names import default_output
    from subtune.driver import compile_model

    output = scratch / default_output(args.subject)
    with progress_bar() as progress:
        model = arguments.model_of(args, args.subject)
        given = {"shapes": arguments.shapes_of(args), "dynamic": arguments.dynamic_of(args)}
        compile_model(model, output, **given, progress=progress, **_options(args))
    return output


def _suite(args: argparse.Namespace) -> int:
    from subtune.bench.race import Pace
    from subtune.bench.suite import Settings, chosen
    from subtune.database import Database

    if args.suite == "coverage":
        return _coverage(args)
    suite = _suite_of(args.suite)
    cases = chosen(suite.cases, [name for name in args.models.split(",") if name], args.suite)
    against = _against(args, suite.against)
    if args.against not in (None, "none"):
        suite.require(against)
    options = _options(args)
    with Database(options.pop("database")) as database, progress_bar() as progress:
        settings = Settings(
            database,
            against if args.against != "none" or args.suite not in _OF_A_KIND else ("none",),
            tuple(options.items()),
            Pace(args.rounds or suite.rounds, args.round_time or suite.round_s),
            progress,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
        suite.check(settings)  # a target that this machine cannot run is refused now

        def keep(report: Any) -> None:
            if args.json not in (None, _PRINT):
                _store(Path(args.json), suite.to_json(report))

        report = suite.run(cases, settings, keep)
    _show(args, suite.table(report), suite.to_json(report))
    return 130 if report.is_interrupted else 0


def _coverage(args: argparse.Namespace) -> int:
    from subtune import backends
    from subtune.bench.coverage import suite
    from subtune.bench.coverage.grammar import DEFAULT_CASES
    from subtune.bench.coverage.report import CoverageReport, coverage_json, coverage_table
    from subtune.bench.peers import peers_of
    from subtune.bench.race import Pace
    from subtune.bench.suite import Settings
    from subtune.database import Database

    kind = backends.meant_by(args.target).kind
    against = _against(args, suite.AGAINST[kind])
    peers_of(kind).require(against)
    options = _options(args)
    with Database(options.pop("database")) as database:
        pace = Pace(args.rounds or 5, args.round_time or 0.03, suite.LIMIT_S)
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        settings = Settings(database, against, tuple(options.items()), pace, tell=tell)

        def keep(report: CoverageReport) -> None:
            if args.json not in (None, _PRINT):
                _store(Path(args.json), coverage_json(report))

        report = suite.run_coverage(args.seed, args.cases or DEFAULT_CASES, settings, keep)
    _show(args, coverage_table(report), coverage_json(report))
    return 130 if report.is_interrupted else 0


@dataclass(frozen=True, slots=True)
class _Suite:
    """`check` refuses a device that the suite is not for; `require` frameworks that it does not know."""

    cases: Any
    against: tuple[str, ...]
    run: Callable[..., Any]
    table: Callable[[Any], str]
    to_json: Callable[[Any], str]
    check: Callable[[Any], Any]
    require: Callable[[Any], None]
    rounds: int
    round_s: float


def _suite_of(name: str) -> _Suite:
    from subtune.bench.peers import peers_of

    if name == "cpu":
        from subtune.bench import suite_cpu
        from subtune.bench.table import cpu_json, cpu_table

        of_cpu = (suite_cpu.run_cpu, cpu_table, cpu_json, _cpu_of, peers_of("cpu").require, 7, 0.5)
        return _Suite(suite_cpu.MODELS, suite_cpu.AGAINST, *of_cpu)
    if name == "cpu-ops":
        from subtune.bench import suite_ops
        from subtune.bench.ops_table import ops_json, ops_table

        of_ops = (suite_ops.run_ops, ops_table, ops_json, _cpu_of, peers_of("cpu").require, 7, 0.2)
        return _Suite(suite_ops.CASES, suite_ops.AGAINST, *of_ops)
    if name == "dietcode":
        from subtune.bench.dietcode import cases, report, suite

        of_layers = (suite.run_dietcode, report.dietcode_table, report.dietcode_json, suite.device_for)
        return _Suite(cases.CASES, (), *of_layers, lambda against: None, 5, 0.1)
    if name == "budget":
        from subtune.bench import suite_budget as budgets

        of_budget = (budgets.run_budgets, budgets.budget_table, budgets.budget_json, _cpu_of, _no_framework)
        return _Suite(budgets.CASES, (), *of_budget, 7, 0.5)
    if name in _GPU_SUITES:
        from subtune.bench import gpu_rows, suite_gpu
        from subtune.bench.gpu_table import gpu_json, gpu_table

        of = {"fastdlight": gpu_rows.FASTDLIGHT, "tensorcore": gpu_rows.TENSORCORE, "gpu-ops": gpu_rows.GPU_OPS}
        of_gpu = (partial(suite_gpu.run_gpu, name), gpu_table, gpu_json, suite_gpu.gpu_of)
        return _Suite(of[name], peers_of("cuda").default, *of_gpu, peers_of("cuda").require, 5, 0.05)
    from subtune.bench import suite_levels as levels

    of_levels = (levels.run_levels, levels.levels_table, levels.levels_json, levels.device_of, _no_framework)
    return _Suite(levels.CASES, (), *of_levels, 5, 0.05)


def _cpu_of(settings: Any) -> Any:
    return settings.device("cpu")


def _no_framework(against: Any) -> None:
    from subtune.bench.job import BenchError

    if against:
        raise BenchError("the suite compares subtune with itself: leave --against out")


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
        _store(Path(args.json), as_json)
    print(as_json if args.json == _PRINT else text)


def _store(path: Path, report: str) -> None:
    """With where it comes from; all of it or nothing: a reader may look while the suite goes on."""
    from subtune.bench.job import BenchError
    from subtune.bench.stored import stamped

    text = stamped(report)

    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text + "\n")
        part.replace(path)
    except OSError as e:
        raise BenchError(f"cannot write {path}: {e.strerror or e}") from e

"""The official ONNX backend suite against subtune: `python tests/integrations/onnx_suite.py [--json F] [PATTERN
...]`.

Every case of `onnx.backend.test.BackendTest` (node, simple, pytorch-operator, pytorch-converted and the light
zoo models) runs in one of a few spawned worker processes under a time limit, so that a crash or a hang costs
only its own case. Outcomes: `pass`, `refused` (`BackendIsNotSupposedToImplementIt`, a skip for the official
runner), `wrong` (an answer of other numbers, shape, dtype or count) and `crash` (any other exception, process
death, hang). `--plain` runs TVM's own importer and default pipeline instead, which is the baseline.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import re
import sys
import tempfile
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as CaseTimeout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pebble
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt, Runner

from subtune.bench.stored import stamped

OUTCOMES = ("pass", "refused", "wrong", "crash")
ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECS = 600.0  # the slowest case needs 40 on a busy 2-core machine
_CASES_OF_PROCESS = 400
_TOLERANCES = {name: {"atol": 1e-5} for name in ("test_dft_inverse", "test_dft_inverse_opset19")}
"""Their zeros are sums of numbers up to 99 that cancel: float32 rounds those by 1e-5; the official limit is 1e-7."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case; `message` is empty for a pass."""

    name: str
    outcome: str
    message: str
    secs: float


class PlainTvmRep(BackendRep):
    """A model compiled by TVM alone."""

    def __init__(self, executable: Any) -> None:
        import tvm
        from tvm import relax

        self._tvm = tvm
        self._main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(self, inputs: Sequence[np.ndarray], **_: Any) -> tuple[np.ndarray, ...]:
        try:
            out = self._main(*(self._tvm.runtime.tensor(np.array(x, order="C")) for x in inputs))
            tensors = [out] if hasattr(out, "numpy") else list(out)
            return tuple(t.numpy() for t in tensors)
        except Exception as e:
            raise BackendIsNotSupposedToImplementIt(f"run: {type(e).__name__}: {e}") from e


class PlainTvmBackend(Backend):
    """TVM's ONNX importer and its default pipeline, any exception counted as a refusal."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> PlainTvmRep:
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        try:
            mod = from_onnx(model)
            return PlainTvmRep(tvm.compile(mod, target="llvm"))
        except Exception as e:
            raise BackendIsNotSupposedToImplementIt(f"import: {type(e).__name__}: {e}") from e

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class _Refusals:
    """Wraps a backend and notes refusals, which the official runner swallows."""

    def __init__(self, backend: type[Backend]) -> None:
        self._backend = backend
        self.message: str | None = None

    def supports_device(self, device: str) -> bool:
        return self._backend.supports_device(device)

    def prepare(self, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        try:
            rep = self._backend.prepare(model, device, **kwargs)
        except BackendIsNotSupposedToImplementIt as e:
            self.message = str(e)
            raise
        return _RefusalsRep(self, rep)


class _RefusalsRep:
    def __init__(self, owner: _Refusals, rep: Any) -> None:
        self._owner, self._rep = owner, rep

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        try:
            return self._rep.run(inputs, **kwargs)
        except BackendIsNotSupposedToImplementIt as e:
            self._owner.message = str(e)
            raise


@functools.cache
def _cases(plain: bool) -> tuple[_Refusals, dict[str, Any]]:
    """All CPU cases of the installed onnx, name -> callable; loading takes about 8 s."""
    if plain:
        backend: type[Backend] = PlainTvmBackend
    else:
        from subtune.integrations.onnx_backend import SubtuneBackend

        backend = SubtuneBackend
    refusals = _Refusals(backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = Runner(refusals, test_kwargs=_TOLERANCES)  # type: ignore[arg-type]
    items = {}
    for category, cases in runner._test_items.items():
        for name, item in cases.items():
            if name.endswith("_cpu"):
                items[f"{category}/{name}"] = item.func
    return refusals, items


def case_names() -> tuple[str, ...]:
    """The names of all CPU cases of the installed onnx, in a fixed order, without building anything."""
    names = [f"NodeModel/{t.name}_cpu" for t in load_model_tests(kind="node")]
    for kind, category in (
        ("real", "RealModel"),
        ("simple", "SimpleModel"),
        ("pytorch-converted", "PyTorchConvertedModel"),
        ("pytorch-operator", "PyTorchOperatorModel"),
    ):
        names += [f"{category}/{t.name}_cpu" for t in load_model_tests(kind=kind)]
    return tuple(sorted(names))


def run_case(name: str, plain: bool = False) -> CaseResult:
    """Runs one case in this process."""
    refusals, items = _cases(plain)
    refusals.message = None
    began = time.monotonic()
    outcome, message = "pass", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            items[name](unittest.TestCase())
        if refusals.message is not None:
            outcome, message = "refused", refusals.message
    except BackendIsNotSupposedToImplementIt as e:
        outcome, message = "refused", str(e)
    except AssertionError as e:
        outcome, message = "wrong", str(e)
    except unittest.SkipTest as e:
        outcome, message = "refused", f"skipped: {e}"
    except Exception as e:
        outcome, message = "crash", f"{type(e).__name__}: {e}"
    return CaseResult(name, outcome, message[-600:], time.monotonic() - began)


def _start_worker(home: str) -> None:
    """The runner writes the light models' inputs under ONNX_HOME: keep that out of the user's home."""
    import os

    os.environ["ONNX_HOME"] = home
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - TVM's importer prints; lives as long as the worker


def run_suite(
    names: Sequence[str], *, plain: bool = False, workers: int = 2, limit_secs: float = LIMIT_SECS
) -> tuple[CaseResult, ...]:
    """Runs cases in `workers` spawned processes, each case under `limit_secs`; results in the order of
    `names`.
    """
    results: list[CaseResult] = []
    with tempfile.TemporaryDirectory() as home:
        # A pool for some hundreds of cases at a time bounds what compiled modules hold in memory. One pool that
        # replaces its processes for that (`max_tasks`) was seen to wait for ever.
        for first in range(0, len(names), workers * _CASES_OF_PROCESS):
            some = names[first : first + workers * _CASES_OF_PROCESS]
            results += _run_some(some, plain, workers, limit_secs, home)
    return tuple(results)


def run_chosen(
    choose: Callable[[tuple[str, ...]], Sequence[str]], limit_secs: float = LIMIT_SECS
) -> tuple[tuple[str, ...], tuple[CaseResult, ...]]:
    """All names, and the results of those cases that `choose` takes: one process loads the cases, once for both."""
    with tempfile.TemporaryDirectory() as home, _pool(1, home) as pool:
        every: tuple[str, ...] = pool.schedule(case_names).result()
        return every, tuple(_results(pool, choose(every), False, limit_secs))


def _run_some(names: Sequence[str], plain: bool, workers: int, limit_secs: float, home: str) -> list[CaseResult]:
    with _pool(workers, home) as pool:
        return _results(pool, names, plain, limit_secs)


def _pool(workers: int, home: str) -> pebble.ProcessPool:
    if str(ROOT) not in sys.path:  # workers have this process's path, and find this module by its name
        sys.path.append(str(ROOT))
    context = multiprocessing.get_context("spawn")
    return pebble.ProcessPool(workers, context=context, initializer=_start_worker, initargs=(home,))


def _results(pool: pebble.ProcessPool, names: Sequence[str], plain: bool, limit_secs: float) -> list[CaseResult]:
    results = []
    futures = [pool.schedule(run_case, args=(n, plain), timeout=limit_secs) for n in names]
    for name, future in zip(names, futures, strict=True):
        try:
            results.append(future.result())
        except CaseTimeout:
            results.append(CaseResult(name, "crash", f"no answer in {limit_secs:.0f} s", limit_secs))
        except Exception as e:
            results.append(CaseResult(name, "crash", f"process died: {type(e).__name__}: {e}", 0.0))
    return results


def counts(results: Sequence[CaseResult]) -> dict[str, int]:
    """How many cases ended in each outcome."""
    counted = Counter(r.outcome for r in results)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the official ONNX backend suite and count.")
    parser.add_argument("patterns", nargs="*", help="regular expressions; a case runs if one is found in its name")
    parser.add_argument("--plain", action="store_true", help="TVM's own importer and pipeline (the baseline)")
    parser.add_argument("--json", type=Path, help="write every case's outcome here")
    parser.add_argument("--store", type=Path, help="write how many ended how here, as a stored benchmark run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="print every case that does not pass")
    args = parser.parse_args()
    names = [n for n in case_names() if not args.patterns or any(re.search(p, n) for p in args.patterns)]
    began = time.monotonic()
    results = run_suite(names, plain=args.plain, workers=args.workers)
    if args.verbose:
        for r in results:
            if r.outcome != "pass":
                print(f"{r.outcome:8} {r.name}: {r.message[-200:]}")
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    total = counts(results)
    if args.store:
        args.store.write_text(stamped(json.dumps({"suite": "onnx", "plain": args.plain, "counts": total})) + "\n")
    print(f"onnx {onnx.__version__}: {len(results)} cases in {time.monotonic() - began:.0f} s; {total}")
    return 1 if total["wrong"] or total["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())

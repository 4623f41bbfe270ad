"""The process that compiles the cases: `python -m subtune.bench.coverage.compiling`, orders as JSON lines on stdin.

Apart from the suite, so that a crash or a compile without an end costs one case; and one for all cases, so that its
measurer stays warm. An order is {"model": ..., "output": ..., "options": {...}}, its answer a `Compiled`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from subtune.bench.process import LineProcess
from subtune.core.errors import SubtuneError
from subtune.report.compile_report import CompileReport

DEFAULT_FAMILY = "default"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a compile.

    Attributes:
        refusal: why subtune did not take the model; "" if it did. Anything but a `SubtuneError` says its type, too.
        defaults: subgraphs with the default schedule that were tuned: nothing else was found, or nothing better.
        untuned: subgraphs with the default schedule for which there was no time, or whose tuning failed.
        kernels: the candidates that ship.
    """

    refusal: str = ""
    defaults: tuple[str, ...] = ()
    untuned: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    tried: int = 0
    failed: int = 0
    tune_s: float = 0.0
    compile_s: float = 0.0

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Compiled:
        fields: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in reply.items()}
        return cls(**fields)


class Compiler:
    """The parent's end; starts a process where there is none, or none any more.

    Args:
        options: of `compile_model`, as JSON has them; the database is its path.
        limit_s: seconds that a compile may take.
    """

    def __init__(self, options: Mapping[str, Any], limit_s: float, threads: int):
        self._options, self._limit_s, self._threads = dict(options), limit_s, threads
        self._process: LineProcess | None = None

    def compile(self, model: Path, output: Path, **more: Any) -> Compiled:
        """Raises BenchError where the process dies or takes longer than it may."""
        if self._process is None or not self._process.is_alive:
            self._process = LineProcess(__name__, "compile", self._threads)
        order = {"model": str(model), "output": str(output), "options": {**self._options, **more}}
        try:
            return Compiled.from_reply(self._process.ask(json.dumps(order), self._limit_s))
        except BaseException:  # Ctrl-C, too: what it still does it does for nobody
            self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    from subtune.driver import compile_model
    from subtune.measure import LocalMeasurer

    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what is printed must not end up among the replies
    with LocalMeasurer() as measurer:
        for line in sys.stdin:
            order = json.loads(line)
            try:
                report = compile_model(
                    order["model"], order["output"], measurer=measurer, verify=False, **order["options"]
                )
                reply = asdict(_compiled(report))
            except SubtuneError as e:
                reply = asdict(Compiled(refusal=" ".join(str(e).split())))
            except Exception as e:  # whatever one case meets, the others are still to be measured
                reply = {"error": f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"}
            replies.write(json.dumps(reply) + "\n")


def _compiled(report: CompileReport) -> Compiled:
    on_default = [row for row in report.rows if row.candidate.partition("(")[0] == DEFAULT_FAMILY]
    return Compiled(
        defaults=tuple(row.name for row in on_default if row.tuned_s),
        untuned=tuple(row.name for row in on_default if not row.tuned_s),
        kernels=tuple(row.candidate for row in report.rows),
        tried=sum(row.tried for row in report.rows),
        failed=sum(row.failed for row in report.rows),
        tune_s=report.seconds.get("tune", 0.0),
        compile_s=sum(report.seconds.values()),
    )


if __name__ == "__main__":
    main()

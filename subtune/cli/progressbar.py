"""The tuner's progress as a bar on stderr."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from subtune.core.progress import Progress, ProgressCallback


@contextmanager
def progress_bar() -> Iterator[ProgressCallback | None]:
    """A callback that draws the current best and the time left; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    layout = "{desc} {percentage:3.0f}% |{bar}| [{elapsed}{postfix}]"
    with tqdm(total=1.0, desc="tuning", file=sys.stderr, leave=False, bar_format=layout, dynamic_ncols=True) as bar:

        def show(progress: Progress) -> None:
            bar.n = fraction(progress)
            bar.set_postfix_str(describe(progress), refresh=True)

        yield show


def fraction(progress: Progress) -> float:
    """How much of the work is over, from 0 to 1; the candidates of the present workload count as part of it."""
    part = progress.tried / progress.candidates if progress.candidates else 0.0
    return min(1.0, (progress.done + min(part, 1.0)) / max(progress.total, 1))


def describe(progress: Progress) -> str:
    """`subgraph 3/17, candidate 5/20, best 123.4 us, 0:42 left`, as far as it is known."""
    parts = [f"subgraph {min(progress.done + 1, progress.total)}/{progress.total}"]
    if progress.candidates:
        parts.append(f"candidate {progress.tried}/{progress.candidates}")
    if 0 < progress.best_s < math.inf:
        parts.append(f"best {progress.best_s * 1e6:.1f} us")
    if 0 < progress.eta_s < math.inf:
        minutes, seconds = divmod(round(progress.eta_s), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return ", ".join(parts)

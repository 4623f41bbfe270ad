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
            bar.n = progress.share
            bar.set_postfix_str(describe(progress), refresh=True)

        yield show


def describe(progress: Progress) -> str:
    """`3/17 subgraphs done, candidate 5/20, best 123.4 us, 0:42 left`, as far as it is known.

    The candidate is one of the subgraph whose turn it is: all have their first before one has its second.
    """
    parts = [f"{progress.done}/{progress.total} subgraphs done"]
    if progress.candidates:
        parts.append(f"candidate {progress.tried}/{progress.candidates}")
    if 0 < progress.best_s < math.inf:
        parts.append(f"best {progress.best_s * 1e6:.1f} us")
    if 0 < progress.eta_s < math.inf:
        minutes, seconds = divmod(round(progress.eta_s), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return ", ".join(parts)

"""The tuner's progress as a bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from subtune.progress import Progress, ProgressCallback


@contextmanager
def progress_bar() -> Iterator[ProgressCallback | None]:
    """A callback that draws the current best and the time left; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    layout = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
    with tqdm(total=0, desc="tuning", file=sys.stderr, leave=False, bar_format=layout, dynamic_ncols=True) as bar:

        def show(progress: Progress) -> None:
            bar.total = progress.total
            bar.n = progress.done
            bar.set_postfix_str(describe(progress), refresh=True)

        yield show


def describe(progress: Progress) -> str:
    """`conv2d_relu: best 123.4 us (2.1x), 0:42 left`, as far as it is known."""
    parts = []
    if progress.best_s:
        gain = f" ({progress.gain:.1f}x)" if progress.gain else ""
        parts.append(f"best {progress.best_s * 1e6:.1f} us{gain}")
    if progress.eta_s:
        minutes, seconds = divmod(round(progress.eta_s), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    text = ", ".join(parts)
    return f"{progress.subgraph}: {text}" if progress.subgraph and text else progress.subgraph or text

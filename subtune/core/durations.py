"""Times as users write them."""

from __future__ import annotations

import math

from subtune.core.errors import SubtuneError

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """`500ms`, `60s`, `2m`, `1h` or plain seconds -> seconds. Raises ValueError, a sentence: it is no time above 0.

    >>> seconds_of("2m"), seconds_of("0.5")
    (120.0, 0.5)
    """
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            number, scale = text.removesuffix(unit), _UNITS[unit]
            break
    else:
        number, scale = text, 1.0
    try:
        seconds = float(number) * scale
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"{text!r} is not a duration: write 60s, 2m or 500ms")
    return seconds


def budget_seconds(budget: float | str | None) -> float | None:
    """A budget as a Python program gives it, seconds or text as of `seconds_of`; None is none.

    Raises:
        SubtuneError: it is neither.
    """
    if budget is None or (isinstance(budget, int | float) and budget >= 0):
        return budget
    try:
        return seconds_of(str(budget))
    except ValueError as e:
        raise SubtuneError(f"budget: {e}") from e

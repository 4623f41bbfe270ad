"""Quantities as people read them."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """
    >>> [seconds_text(s) for s in (0.0, 2.5e-7, 0.0000123, 0.00456, 1.5)]
    ['-', '0.25 µs', '12.3 µs', '4.56 ms', '1.5 s']
    """
    return scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def bytes_text(count: float) -> str:
    """
    >>> [bytes_text(n) for n in (0, 512, 1536, 3 << 20)]
    ['-', '512 B', '1.5 KiB', '3 MiB']
    """
    return scaled(count, (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)))


def count_text(count: float, unit: str) -> str:
    """
    >>> count_text(2.3e9, "FLOP"), count_text(500, "FLOP/s")
    ('2.3 GFLOP', '500 FLOP/s')
    """
    return scaled(count, tuple((f"{prefix}{unit}", size) for prefix, size in _PREFIXES))


_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """Three digits in the largest of `units` that it reaches, else in the smallest."""
    if not value:
        return "-"
    unit, size = next((one for one in units if abs(value) >= one[1]), units[-1])
    number = value / size
    text = f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"
    return f"{text} {unit}"


def times_text(factor: float) -> str:
    """
    >>> times_text(1.234), times_text(12.34)
    ('1.23x', '12.3x')
    """
    return f"{factor:.0f}x" if factor >= 100 else f"{factor:.3g}x"

"""`--shape input=1,3,224,224` -> ("input", (1, 3, 224, 224))."""

from __future__ import annotations

from subtune.core.errors import ShapeError

_FORM = "write it as NAME=D0,D1,... (for example --shape input=1,3,224,224, or --shape batch=1 for a symbol)"


def parse_shape_flag(text: str) -> tuple[str, tuple[int, ...]]:
    """The input's (or symbol's) name and the dimensions of one `--shape` value.

    The name ends at the last "=", so names that contain one work.
    Raises ShapeError: anything but a name and positive integers.
    """
    name, equals, dims_text = text.rpartition("=")
    name = name.strip()
    if not equals or not name:
        raise ShapeError(f"--shape {text!r} names no input: {_FORM}.")
    dims = []
    for dim_text in dims_text.split(","):
        digits = dim_text.strip()
        # isdecimal alone would take other scripts' digits, which int() reads as well but nobody means
        if not (digits.isascii() and digits.isdecimal()) or int(digits) == 0:
            raise ShapeError(f"--shape {text!r}: {digits!r} is not a positive integer; {_FORM}.")
        dims.append(int(digits))
    return name, tuple(dims)

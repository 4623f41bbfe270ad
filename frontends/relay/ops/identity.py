"""Operators that tell a compiler or a device something and leave values as they are."""

from __future__ import annotations

from subtune.frontends.relay.ops.call import Call, Converter, Value


def identity(call: Call) -> Value:
    """The first argument, which may be a tuple."""
    return call.args[0] if call.args else call.refuse("has no argument")


_NAMES = (
    "copy",
    "device_copy",
    "on_device",
    "debug",
    "annotation.bitpack_end",
    "annotation.bitpack_start",
    "annotation.cast_hint",
    "annotation.checkpoint",
    "annotation.compiler_begin",
    "annotation.compiler_end",
    "annotation.stop_fusion",
    "annotation.with_funcid",
)

CONVERTERS: dict[str, Converter] = dict.fromkeys(_NAMES, identity)

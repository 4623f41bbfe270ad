"""Runs single Relay operators through their converters: many of them in one module and one build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.assembly import compile_module
from subtune.backends.cpu.device import CPU
from subtune.frontends import Parameters, load
from subtune.frontends.onnx.ops.node import array_const
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.converters import CONVERTERS
from subtune.passes.legalize import LEGALIZATIONS


@dataclass(frozen=True, slots=True)
class Known:
    """An argument whose value the converter sees: a constant of the model, not an input."""

    array: np.ndarray


@dataclass(frozen=True, slots=True)
class Case:
    """One call. `args` holds arrays, `Known` arrays, and (nested) tuples of both."""

    op: str
    args: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)


def evaluate(
    op: str, args: Sequence[Any], attrs: Mapping[str, Any] | None = None, converter: Converter | None = None
) -> list[np.ndarray]:
    """The results of one call, tuples flattened. `converter`: one that is not in `CONVERTERS` yet."""
    return evaluate_many([Case(op, args, attrs or {})], {op: converter} if converter else None)[0]


def evaluate_many(
    cases: Sequence[Case | tuple[Any, ...]], converters: Mapping[str, Converter] | None = None
) -> list[list[np.ndarray]]:
    """The results of each case, from one build. A case may be written as (op, args) or (op, args, attrs)."""
    run, feeds = build(cases, converters)
    return run(feeds)


def build(
    cases: Sequence[Case | tuple[Any, ...]], converters: Mapping[str, Converter] | None = None
) -> tuple[Callable[[Sequence[np.ndarray]], list[list[np.ndarray]]], list[np.ndarray]]:
    """A function from the arrays of all cases to the results of each, and the arrays."""
    table = {**CONVERTERS, **(converters or {})}
    all_cases = [case if isinstance(case, Case) else Case(*case) for case in cases]
    params: list[relax.Var] = []
    feeds: list[np.ndarray] = []
    arguments = [tuple(_argument(value, params, feeds) for value in case.args) for case in all_cases]
    bb = relax.BlockBuilder()
    counts = []
    with bb.function("main", params=params):
        with bb.dataflow():
            outputs: list[Any] = []
            for case, args in zip(all_cases, arguments, strict=True):
                made = _flat(table[case.op](Call(bb, case.op, args, case.attrs)))
                counts.append(len(made))
                outputs += [bb.emit(value) for value in made]
            result = bb.emit_output(relax.Tuple(outputs))
        bb.emit_func_output(result)
    main = executable(bb.get())

    def run(arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        flat = main(arrays)
        found = []
        for count in counts:
            found.append(flat[:count])
            del flat[:count]
        return found

    return run, feeds


def executable(mod: tvm.IRModule) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """`main` of an imported module, op by op as TVM legalises it."""
    device = CPU("auto", threads=1)
    with device.target():
        extremes = {name: LEGALIZATIONS[name] for name in ("relax.max", "relax.min")}
        legal = relax.transform.LegalizeOps(extremes)(relax.backend.DispatchSortScan()(mod))
    built, _ = compile_module(legal, device)
    main = relax.VirtualMachine(built, tvm.cpu())["main"]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = main(*(tvm.runtime.tensor(np.array(a, order="C")) for a in arrays))
        return [tensor.numpy() for tensor in ([found] if hasattr(found, "numpy") else found)]

    return run


def run_text(text: str, *feeds: Any, **parameters: Any) -> list[np.ndarray]:
    """The outputs of a Relay text on the arrays of its inputs. `parameters` are the fields of `Parameters`."""
    imported = load(text, {}, Parameters(**parameters))
    assert [(spec.shape, spec.dtype) for spec in imported.inputs] == [(a.shape, str(a.dtype)) for a in feeds]
    found = executable(imported.mod)(feeds)
    assert [(spec.shape, spec.dtype) for spec in imported.outputs] == [(a.shape, str(a.dtype)) for a in found]
    return found


def _argument(value: Any, params: list[Any], feeds: list[np.ndarray]) -> Any:
    if isinstance(value, tuple):
        return tuple(_argument(field, params, feeds) for field in value)
    if isinstance(value, Known):
        return array_const(np.asarray(value.array))
    array = np.asarray(value)
    params.append(relax.Var(f"x{len(params)}", relax.TensorType(array.shape, str(array.dtype))))
    feeds.append(array)
    return params[-1]


def _flat(value: Any) -> list[Any]:
    return [leaf for field in value for leaf in _flat(field)] if isinstance(value, tuple) else [value]

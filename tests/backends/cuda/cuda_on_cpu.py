"""CUDA kernels run without a GPU: the source that TVM prints, compiled as C++ with `cuda_on_cpu.h`.

What the machine code would compute is computed lane by lane: barriers, shuffles, shared memory, asynchronous copies,
`ldmatrix` and `mma.sync`; of what only Hopper has, TMA and wgmma (`hopper_on_cpu`), and clusters whose blocks read one
another's dynamic shared memory. Copies are done when they are asked for, so a wait that is missing is not seen.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tvm

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.reference.schedule import in_float64
from subtune.backends.cuda.lowering.default_schedule import pipeline
from subtune.backends.cuda.lowering.pipeline import CONFIG, s_tir_passes
from subtune.backends.cuda.timing.bench import wide_dtype
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.measure.guarded import elements, numpy_dtype
from tests.backends.cuda import emulation_compiler, hopper_on_cpu
from tests.backends.cuda.emulation_compiler import toolkit as toolkit
from tests.plain_tvm import TARGET, compiled

_ASM = re.compile(r"\b(?:asm|__asm__)(?:\s+(?:volatile|__volatile__))?\s*\(")
_STRINGS = re.compile(r'(?:\s*"(?:[^"\\]|\\.)*")+')
_OPERAND = re.compile(r'"[=+]?[rflhn]"\s*\(')
_TYPES = {
    "f16": "__half",
    "bf16": "__nv_bfloat16",
    "s8": "int8_t",
    "u8": "uint8_t",
    "e4m3": "__nv_fp8_e4m3",
    "tf32": "float",
}
_GUARD = 4096
"""Elements around every argument that must stay as they are."""


def run(kernel: Kernel, inputs: list[np.ndarray], workload: Workload, device: CUDAModel, folder: Path) -> list[Any]:
    """The outputs of `kernel`, computed with the threads of every block in one order and again in the other.

    Raises AssertionError where the two differ, or something is written outside of the outputs.
    """
    code, host = source(kernel.func, device), _host(kernel.func, device)
    launches = launches_of(host)
    path = built(code, launches, folder)
    packings = dict(kernel.packings)
    given = [packings[i](array) if i in packings else array for i, array in enumerate(inputs)]
    shapes = [(elements(arg.shape), numpy_dtype(arg.dtype)) for arg in workload.args if arg.is_output]
    names = [str(param.name) for param in kernel.func.params]
    results = []
    for backwards in (False, True):
        outputs = [guarded(np.zeros(shape, dtype)) for shape, dtype in shapes]
        arrays = [guarded(array) for array in given] + outputs
        memory = dict(zip(names, (inner for _, inner in arrays), strict=True)) | temporaries(host)
        for index, values in _calls(host, launches):
            pointers = [values[arg] if arg in values else memory[root_of(host, arg)].ctypes.data
                        for arg in launches[index][1]]  # fmt: skip
            getattr(ctypes.CDLL(str(path)), f"launch_{index}")((ctypes.c_void_p * len(pointers))(*pointers), backwards)
        check_guards(arrays, [*given, *[None] * len(outputs)])
        results.append([inner for _, inner in outputs])
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes(), "depends on the order of threads"
    return results[0]


def launch(code: str, name: str, arrays: dict[str, np.ndarray], blocks: int, threads: int, folder: Path) -> None:
    """Run the kernel `name` of `code` on `arrays`, by the names of its parameters; in both orders of threads."""
    signature = re.search(rf"\b{name}\(([^)]*)\);", code)
    assert signature
    args = [arrays[param.split()[-1].removesuffix("_ptr")] for param in signature.group(1).split(",")]
    extents = {"blockIdx.x": blocks, "threadIdx.x": threads}
    library = ctypes.CDLL(str(built(code, [(name, list(arrays), extents)], folder)))
    results = []
    for backwards in (False, True):
        library.launch_0((ctypes.c_void_p * len(args))(*(array.ctypes.data for array in args)), backwards)
        results.append([array.tobytes() for array in args])
    assert results[0] == results[1], "depends on the order of threads"


def reference(workload: Workload, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What is right, in float64, from the unscheduled function."""
    func = in_float64(workload)
    assert not isinstance(func, NotApplicable), func.reason
    wide = [np.ascontiguousarray(array, np.float64) if wide_dtype(array.dtype.name) == "float64" else array
            for array in inputs]  # fmt: skip
    outputs = [
        np.zeros(elements(arg.shape), wide_dtype(arg.dtype) if arg.dtype != "bool" else "bool")
        for arg in workload.args
        if arg.is_output
    ]
    tensors = [tvm.runtime.tensor(array) for array in (*wide, *outputs)]
    compiled(func)["main"](*tensors)
    return [tensor.numpy() for tensor in tensors[len(wide) :]]


def guarded(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Memory round a copy of an array, and that copy."""
    whole = np.zeros(array.size + 2 * _GUARD, array.dtype)
    whole.view(np.uint8)[:] = 0xAB
    inner = whole[_GUARD : whole.size - _GUARD].reshape(array.shape)
    inner[...] = array
    return whole, inner


def check_guards(arrays: list[tuple[np.ndarray, np.ndarray]], before: list[Any]) -> None:
    """Raises AssertionError where something was written beside an array, or to one that was something `before`."""
    for (whole, inner), old in zip(arrays, before, strict=True):
        edges = np.concatenate([whole[:_GUARD], whole[-_GUARD:]]).view(np.uint8)
        assert (edges == 0xAB).all(), "wrote out of bounds"
        assert old is None or inner.tobytes() == old.tobytes(), "wrote to an input"


def source(func: Any, device: CUDAModel) -> str:
    """What TVM prints for the kernels of `func`."""
    target = tvm.target.Target(device.target(), host=TARGET)  # the host's code is not wanted
    with patch.dict(os.environ, TVM_COMPILE_FORCE_FALLBACK="1"):  # nor the device's
        lib = tvm.compile(func.with_attr("global_symbol", "main"), target, tir_pipeline=pipeline())
    return str(lib.mod.imports[0].inspect_source())


def _host(func: Any, device: CUDAModel) -> str:
    """The host's part as a script: buffers, and what is launched with them."""
    passes = s_tir_passes()
    last = [one.info.name for one in passes].index("tirx.SplitHostDevice") + 1
    target = tvm.target.Target(device.target(), host="llvm")
    mod = tvm.IRModule({"main": func.with_attrs({"global_symbol": "main", "target": target})})
    with tvm.transform.PassContext(config=CONFIG), device.target():
        return str(tvm.ir.transform.Sequential(passes[:last])(mod)["main"].script())


def temporaries(host: str) -> dict[str, np.ndarray]:
    """What the host allocates for its kernels."""
    found = re.findall(r'(\w+) = T\.alloc_buffer\(\((\d+),\)(?:, "([a-z]+\d*)(?:x(\d+))?")?', host)
    return {
        name: np.zeros(int(size) * int(lanes or 1), numpy_dtype(dtype or "float32"))
        for name, size, dtype, lanes in found
    }


def root_of(host: str, name: str) -> str:
    """The buffer that `name` is a view of."""
    view = re.search(rf"^\s*{name} = (?:(\w+)\.view\(|T\.decl_buffer\(.*data=(\w+)\.data)", host, re.MULTILINE)
    return root_of(host, view.group(1) or view.group(2)) if view else name


def _calls(host: str, launches: list[Any]) -> Iterator[tuple[int, dict[str, int]]]:
    """Every launch, by its number in `launches`, with the variables of the host's loops that it is in."""
    loops: list[tuple[int, str, int]] = []  # indentation, variable, extent
    index = 0
    for line in host.splitlines():
        indent = len(line) - len(line.lstrip())
        loops = [loop for loop in loops if loop[0] < indent]
        if loop := re.match(r"\s*for (\w+) in range\((\d+)\):", line):
            loops.append((indent, loop[1], int(loop[2])))
        if "T.call_ffi_kernel(" in line:
            assert len(loops) <= 1, "loops in loops"
            for value in range(loops[0][2] if loops else 1):
                yield index, {loops[0][1]: value} if loops else {}
            index += 1
    assert index == len(launches)


def launches_of(host: str) -> list[tuple[str, list[str], dict[str, int]]]:
    """(kernel, buffers, extents by thread tag), in order."""
    found = []
    for name, rest, tags in re.findall(r'T\.call_ffi_kernel\("(\w+)", (.*), launch_params=\[(.*?)\]', host):
        values = [value.strip() for value in re.sub(r"T\.int64\((\d+)\)", r"\1", rest).split(",")]
        order = [tag for tag in re.findall(r'"([\w.]+)"', tags) if not tag.startswith("tirx.use_prog")]  # no value
        extents = dict(zip(order, (int(value) for value in values[-len(order) :]), strict=True))
        found.append((name, [value.removesuffix(".data") for value in values[: -len(order)]], extents))
    assert found, host
    return found


def built(source: str, launches: list[Any], folder: Path) -> Path:
    """A library of functions `launch_0`, `launch_1`, …, each of a list of pointers and the order of threads."""
    code = re.sub(r"__shared__ (alignas\(\d+\)) ", r"\1 __shared__ ", source)
    code = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];", r"\1* \2 = (\1*)emu::dynamic;", code)
    code = _without_assembly(code.replace("#include <mma.h>", "").replace("#include <cuda.h>", ""))
    text = [f'#include "{emulation_compiler.header()}"', code]
    for index, (name, args, extents) in enumerate(launches):
        signature = re.search(rf"\b{name}\(([^)]*)\);", source)
        assert signature
        types = [re.sub(r"__restrict__.*| \w+$", "", param).strip() for param in signature.group(1).split(",")]
        assert len(types) == len(args)
        given = ", ".join(_given(kind, i) for i, kind in enumerate(types))
        blocks, threads = (
            ", ".join(str(extents.get(f"{kind}Idx.{d}", 1)) for d in "xyz") for kind in ("block", "thread")
        )
        body = source[source.rindex(f"{name}(") :].partition("\n}")[0]
        cluster = extents.get("clusterCtaIdx.x", 1)
        is_together = "recurrent" in body or (cluster > 1 and "wgmma" not in body)
        together = "_together" if is_together else "_hopper" if "wgmma" in body else ""
        text.append(
            f'static void** given_{index};\nextern "C" void launch_{index}(void** given, int backwards) {{\n'
            f"  given_{index} = given;\n  emu::cluster = {cluster};\n"
            f"  emu::launch{together}(dim3({blocks}), dim3({threads}), backwards, "
            f"[] {{ void** given = given_{index}; {name}({given}); }});\n}}"
        )
    path = folder / "kernel.cpp"
    path.write_text("\n".join(text))
    library = folder / f"kernel{len(list(folder.iterdir()))}.so"
    emulation_compiler.compile_cpp("gcc", "-shared", str(path), "-lm", "-o", str(library))
    return library


def _given(kind: str, i: int) -> str:
    """The `i`th argument, of type `kind`, from a list of pointers."""
    if "CUtensorMap" in kind:
        return f"*(const CUtensorMap*)given[{i}]"
    return f"({kind}){'' if '*' in kind else '(intptr_t)'}given[{i}]"


def _without_assembly(code: str) -> str:
    parts, at = [], 0
    for found in _ASM.finditer(code):
        text = _parenthesised(code, found.end())
        parts += [code[at : found.start()], _statement(text)]
        at = code.index(";", found.end() + len(text)) + 1
    return "".join([*parts, code[at:]])


def _statement(text: str) -> str:
    """An inline assembly as C++ that does the same."""
    strings = _STRINGS.match(text)
    assert strings, text
    instruction = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', strings.group()))
    operands = [_parenthesised(text, found.end()) for found in _OPERAND.finditer(text)]
    if own := hopper_on_cpu.statement(instruction, operands):
        return own
    if "cp.async.commit_group" in instruction or "cp.async.wait_group" in instruction:
        return ";"
    if "setp" in instruction:
        to, origin, count, predicate = operands[:4]
        return f"emu::copy_async({to}, {origin}, {count}, ({predicate}) == 1 ? {count} : 0);"
    if "cp.async" in instruction:
        to, origin, *sizes = operands
        if "16, %2" in instruction:
            sizes = ["16", *sizes]
        return f"emu::copy_async({to}, {origin}, {sizes[0]}, {sizes[-1]});"
    if "ldmatrix" in instruction:
        *out, address = operands
        pointers = ", ".join(f"(uint32_t*)&({one})" for one in out)
        is_transposed = str(".trans" in instruction).lower()
        return f"{{ uint32_t* out[] = {{{pointers}}}; emu::ldmatrix({len(out)}, {is_transposed}, {address}, out); }}"
    if "stmatrix" in instruction:
        address, *words = operands
        is_transposed = str(".trans" in instruction).lower()
        return (
            f"{{ uint32_t words[] = {{{', '.join(words)}}}; "
            f"emu::stmatrix({len(words)}, {is_transposed}, {address}, words); }}"
        )
    if instruction.startswith("bar.sync %0, 128;"):
        return "emu::give_way(emu::AT_GROUP);"
    if shape := re.search(r"mma\.sync\.aligned\.m(8|16)n8k(\d+)\.row\.col\.(\w+)\.(\w+)\.(\w+)\.", instruction):
        tall, k, total, *kinds = int(shape[1]) // 8, int(shape[2]), *shape.groups()[2:]
        words = k * {"s8": 1, "u8": 1, "e4m3": 1, "tf32": 4}.get(kinds[0], 2) // 4
        d, rest = operands[: 2 * tall], operands[2 * tall :]
        a, b, c = (rest[slice(*ends)] for ends in pairwise((0, tall * words // 4, (tall + 1) * words // 4, None)))
        kind_of_sum = {"f32": "float", "s32": "int"}[total]
        return (
            f"{{ uint32_t a[] = {{{', '.join(a)}}}, b[] = {{{', '.join(b)}}}; {kind_of_sum} c[] = {{{', '.join(c)}}}; "
            f"{kind_of_sum}* d[] = {{{', '.join(f'&({one})' for one in d)}}}; "
            f"emu::mma<{tall}, {_TYPES[kinds[0]]}, {_TYPES[kinds[1]]}, {kind_of_sum}>({words}, a, b, c, d); }}"
        )
    if instruction.startswith("ld.global"):
        *out, origin = operands
        words = "".join(f"{one} = ((const uint32_t*)({origin}))[{i}];" for i, one in enumerate(out))
        return f"{{ {words} }}"
    if instruction.startswith(("st.global.cs.v4.b32", "st.v4.b32")):
        to, *words = operands
        return f"{{ {''.join(f'((uint32_t*)({to}))[{i}] = {one};' for i, one in enumerate(words))} }}"
    if instruction.startswith("lop3.b32") and instruction.endswith("0xea;"):
        out, *of = operands
        return f"{out} = (({of[0]}) & ({of[1]})) | ({of[2]});"
    if found := re.match(r"cvt\.rn\.(f16|bf16)x2\.f32 ", instruction):
        z, high, low = operands
        kind = _TYPES[found[1]]
        return f"{{ {kind} of[] = {{{kind}(float({low})), {kind}(float({high}))}}; {z} = *(uint32_t*)of; }}"
    if instruction.startswith("cvt.rna.tf32.f32"):
        z, x = operands
        return f"{z} = __float_as_uint({x}) + 0x1000u & 0xffffe000u;"
    if instruction.startswith("tanh.approx.f32"):
        y, x = operands
        return f"{y} = tanhf({x});"
    if instruction.startswith("barrier.cluster.arrive"):
        return "emu::sync_cluster();"
    if instruction.startswith("mov.u32 %0, %%cluster_ctarank"):
        return f"{operands[0]} = emu::block.x % emu::cluster;"
    if instruction.startswith("mapa.shared::cluster.u32"):
        there, at, rank = operands
        return f"{there} = emu::of_cluster({at}, {rank});"
    if found := re.match(r"ld\.shared::cluster\.u(32|64) ", instruction):
        value, there = operands
        return f"{value} = emu::fetch_cluster<uint{found[1]}_t>({there});"
    if "dp4a" in instruction or instruction.startswith("griddepcontrol"):  # kernels run one after the other here
        return ";"
    if found := re.match(r"max\.([us])16x2 ", instruction):
        z, x, y = operands
        return f"{z} = emu::largest_of_two<{'u' if found[1] == 'u' else ''}int16_t>({x}, {y});"
    if instruction.startswith("max.f32"):
        z, x, y = operands
        return f"{z} = fmaxf({x}, {y});"
    if found := re.match(r"(max|min)\.NaN\.f32 ", instruction):
        z, x, y = operands
        is_first = f"({x}) {'>' if found[1] == 'max' else '<'} ({y}) || ({x}) != ({x})"
        return f"{z} = {is_first} ? ({x}) : ({y});"
    raise AssertionError(f"no emulation of {instruction}")


def _parenthesised(text: str, start: int) -> str:
    """What is between a parenthesis that opened before `start` and the one that closes it."""
    depth, at = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[start : at - 1]

"""Products of bfloat16 tiles on AMX, as LLVM functions that a kernel carries with it (`pragma_import_llvm`).

A thread has eight tile registers of 16 rows of 64 bytes. `begin` says how many rows each has, before a thread's first
product; `end` gives the registers back, without which the operating system saves 8 KB at every switch of threads.
Between the two, `multiply` computes a block of m x n tiles of C:

    C[m, rows][n, 16] = sum over steps:  A[m][step][rows][32] * B[step][n][16 pairs][16 columns][2]

Linux wants a process to ask once before it uses the registers; the first `begin` does. Products of two bfloat16 are
exact, and `tdpbf16ps` rounds sums to nearest even, takes denormals for zero and flushes results that are denormal.
Sources: Intel, Architecture Instruction Set Extensions Programming Reference, 319433, chapter 3; Linux,
Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from subtune.runtime.host import ARCH_PRCTL, ASK_FOR_STATE, TILE_DATA

ROWS, COLUMNS, DEPTH = 16, 16, 32
"""Of a tile: rows of A and C at most, float32 columns of B and C, elements of k that one product sums."""
STEP_BYTES = 64
"""Of a row of A in one step."""
REGISTERS = 8

_TILE_BYTES = 1024

_COMMON = f"""
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare i64 @syscall(i64, ...)
@subtune_amx_asked = linkonce_odr hidden global i32 0
define linkonce_odr hidden void @subtune_amx_ask() noinline {{
  call i64 (i64, ...) @syscall(i64 {ARCH_PRCTL}, i64 {ASK_FOR_STATE}, i64 {TILE_DATA})
  store atomic i32 1, ptr @subtune_amx_asked monotonic, align 4
  ret void
}}
define linkonce_odr hidden void @subtune_amx_end() {{
  call void @llvm.x86.tilerelease()
  ret void
}}
"""

_BEGIN = """
@subtune_amx_shape_{name} = linkonce_odr hidden constant [64 x i8] c"{shape}", align 64
define linkonce_odr hidden void @subtune_amx_begin_{name}() {{
  %asked = load atomic i32, ptr @subtune_amx_asked monotonic, align 4
  %is_first = icmp eq i32 %asked, 0
  br i1 %is_first, label %ask, label %go
ask:
  call void @subtune_amx_ask()
  br label %go
go:
  call void @llvm.x86.ldtilecfg(ptr @subtune_amx_shape_{name})
  ret void
}}
"""


def fits(m: int, n: int) -> bool:
    """Whether m x n tiles of C, those of B, and one of A at a time are no more than there are registers."""
    return m >= 1 and n >= 1 and m * n + n + 1 <= REGISTERS


@dataclass(frozen=True, slots=True)
class TileBlock:
    """`m` x `n` tiles of C with `rows` rows each: the part of it that stays in registers."""

    m: int
    n: int
    rows: int

    def __post_init__(self) -> None:
        assert fits(self.m, self.n), f"{self} does not fit the tile registers"
        assert 1 <= self.rows <= ROWS, f"a tile of {self.rows} rows"

    @property
    def _name(self) -> str:
        """Of its functions: kernels of several blocks become one library."""
        return f"{self.m}x{self.n}_{self.rows}"

    def begin(self) -> Any:
        return _call(f"subtune_amx_begin_{self._name}")

    def end(self) -> Any:
        return _call("subtune_amx_end")

    def multiply(self, a: Any, b: Any, c: Any, c_last: Any, steps: int) -> Any:
        """A statement: `c`, row-major, becomes the product of `a` and `b` as they lie in tiles; all are addresses.

        Args:
            c_last: of the block's last element. It is not looked at, but TVM shrinks a buffer to what is named of it.
        """
        return _call(f"subtune_amx_{self._name}", a, b, c, c_last, tirx.const(steps, "int64"))

    @property
    def instructions(self) -> str:
        """The LLVM functions that it calls."""
        return _COMMON + _BEGIN.format(name=self._name, shape=self._shape()) + self._multiply()

    def _shape(self) -> str:
        """Palette 1; bytes of a row and rows of every register, those of B last."""
        first_b = REGISTERS - self.n
        rows = [self.rows if register < first_b else DEPTH // 2 for register in range(REGISTERS)]
        columns = [byte for _ in range(REGISTERS) for byte in (STEP_BYTES, 0)]
        data = [1, *[0] * 15, *columns, *[0] * (32 - len(columns)), *rows, *[0] * (16 - len(rows))]
        return "".join(f"\\{byte:02X}" for byte in data)

    def _multiply(self) -> str:
        """The function that `multiply` calls. All of a step's loads stand before its products.

        On a core that another hyper-thread uses, no register is renamed: loads then wait for products, and these wait
        once a step instead of once a load (measured on Emerald Rapids: 8 % less).
        """
        spare = REGISTERS - self.m * self.n - self.n
        c = [[i * self.n + j for j in range(self.n)] for i in range(self.m)]
        b = [REGISTERS - self.n + j for j in range(self.n)]
        a = [self.m * self.n + i % spare for i in range(self.m)]
        lines = [f"  call void @llvm.x86.tilezero(i8 {register})" for row in c for register in row]
        lines += ["  %begin = icmp sgt i64 %steps, 0", "  br i1 %begin, label %step, label %done", "step:"]
        lines += ["  %i = phi i64 [0, %0], [%next, %step]"]
        lines += [
            f"  %a_at = mul i64 %i, {self.rows * STEP_BYTES}",
            f"  %a_rows = mul i64 %steps, {self.rows * STEP_BYTES}",
            "  %a0 = getelementptr i8, ptr %a, i64 %a_at",
            f"  %b_at = mul i64 %i, {self.n * _TILE_BYTES}",
            "  %b0 = getelementptr i8, ptr %b, i64 %b_at",
        ]
        lines += [f"  %a{i} = getelementptr i8, ptr %a{i - 1}, i64 %a_rows" for i in range(1, self.m)]
        lines += [f"  %b{j} = getelementptr i8, ptr %b0, i64 {j * _TILE_BYTES}" for j in range(1, self.n)]
        load = "  call void @llvm.x86.tileloadd64(i8 {}, ptr {}, i64 64)"
        lines += [load.format(b[j], f"%b{j}") for j in range(self.n)]
        for first in range(0, self.m, spare):
            group = range(first, min(first + spare, self.m))
            lines += [load.format(a[i], f"%a{i}") for i in group]
            product = "  call void @llvm.x86.tdpbf16ps(i8 {}, i8 {}, i8 {})"
            lines += [product.format(c[i][j], a[i], b[j]) for i in group for j in range(self.n)]
        lines += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %steps"]
        lines += ["  br i1 %more, label %step, label %done", "done:"]
        stride = self.n * STEP_BYTES
        for i in range(self.m):
            for j in range(self.n):
                at = i * self.rows * stride + j * STEP_BYTES
                lines += [f"  %c{i}_{j} = getelementptr i8, ptr %c, i64 {at}"]
                lines += [f"  call void @llvm.x86.tilestored64(i8 {c[i][j]}, ptr %c{i}_{j}, i64 {stride})"]
        body = "\n".join(lines)
        arguments = "ptr %a, ptr %b, ptr %c, ptr %c_last, i64 %steps"
        head = f"define linkonce_odr hidden void @subtune_amx_{self._name}({arguments})"
        return f"{head} {{\n{body}\n  ret void\n}}\n"


def _call(name: str, *args: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("void", name, *args))

"""Products of bfloat16 or bytes in AMX tiles, as LLVM functions that a kernel carries with it (`pragma_import_llvm`).

A thread has eight tile registers of 16 rows of 64 bytes. `begin` says how many rows each has, before a thread's first
product; `end` gives the registers back, without which the operating system saves 8 KB at every switch of threads.
Between the two, `multiply` computes a block of m x n tiles of C:

    C[m, rows][n, 16] = sum over steps:  A[m][step][rows][32] * B[n][step][16 words][16 columns][2]

All of k of one column of B's tiles lies before the next column: blocks of several widths read the same weights, and
read them up to 4 % sooner than tiles that lie side by side.
Of bytes a step has 64, and a word four; sums of int32 are exact modulo 2**32, whatever the signs of A are.
Operands of float32 are sums of three bfloat16, `parts` of A[m][part][step]... and B[n][part][step]...: of their nine
products the three least are no larger than what float32 rounds, and are left out (Henry, Tang & Heinecke, "Leveraging
the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019).

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
"""Of a tile: rows of A and C at most, columns of B and C, bfloat16 along k that one product sums."""
STEP_BYTES = 64
"""Of a row of A in one step."""
WORDS = 16
"""Of 32 bits along k, in a step."""
_PRODUCTS = {"bfloat16": "tdpbf16ps", "uint8": "tdpbusd", "int8": "tdpbssd"}
"""The instruction that multiplies tiles with A of such a type; B's bytes have signs."""
REGISTERS = 8
PARTS = 3
"""Numbers of bfloat16 whose sum is a float32."""
PRODUCTS_OF_PARTS = ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))
"""Which part of A is multiplied with which of B: small ones first, and each shares a part with the one before."""

_TILE_BYTES = 1024

_COMMON = f"""
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tdpbusd(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tdpbssd(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)
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


def fits(m: int, n: int, parts: int = 1) -> bool:
    """Whether m x n tiles of C, those of B, and one of A at a time are no more than there are registers; of parts, all
    of A."""
    return m >= 1 and n >= 1 and m * n + n + (m if parts > 1 else 1) <= REGISTERS


@dataclass(frozen=True, slots=True)
class TileBlock:
    """`m` x `n` tiles of C with `rows` rows each: the part of it that stays in registers."""

    m: int
    n: int
    rows: int
    parts: int = 1
    """Of an operand: one bfloat16, or PARTS of them for a float32."""
    ahead: int = 0
    """Lines of 64 bytes that a step asks L2 for: those of B that will be needed next."""
    dtype: str = "bfloat16"
    """Of A's elements, or of their parts."""

    def __post_init__(self) -> None:
        assert fits(self.m, self.n, self.parts), f"{self} does not fit the tile registers"
        assert 1 <= self.rows <= ROWS, f"a tile of {self.rows} rows"

    @property
    def _name(self) -> str:
        """Of its registers' shapes: kernels of several blocks become one library."""
        return f"{self.m}x{self.n}_{self.rows}"

    @property
    def _multiply_name(self) -> str:
        of_type = "" if self.dtype == "bfloat16" else f"{self.dtype}_"
        return f"subtune_amx_{of_type}{self._name}_{self.parts}_{self.ahead}"

    @property
    def count(self) -> int:
        """Elements of a word."""
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def depth(self) -> int:
        """Elements along k of a step."""
        return WORDS * self.count

    @property
    def stored(self) -> str:
        """Type of A's tiles in memory."""
        return "uint16" if self.dtype == "bfloat16" else self.dtype

    def begin(self) -> Any:
        return _call(f"subtune_amx_begin_{self._name}")

    def end(self) -> Any:
        return _call("subtune_amx_end")

    def multiply(self, a: Any, b: Any, c: Any, c_last: Any, steps: int, pass_: Any) -> Any:
        """A statement: `c`, row-major, becomes the product of `a` and `b` as they lie in tiles; all are addresses.

        Args:
            c_last: of the block's last element. It is not looked at, but TVM shrinks a buffer to what is named of it.
            pass_: how often these columns of B were multiplied before: which of the next ones to ask for.
        """
        # int32, as TVM makes every index that fits
        begin = pass_.astype("int32") * (self.ahead * STEP_BYTES * steps) + self.parts * self.n * _TILE_BYTES * steps
        return _call(self._multiply_name, a, b, c, c_last, tirx.const(steps, "int64"), begin)

    @property
    def instructions(self) -> str:
        """The LLVM functions that it calls."""
        return _COMMON + _BEGIN.format(name=self._name, shape=self._shape()) + self._multiply()

    def _shape(self) -> str:
        """Palette 1; bytes of a row and rows of every register, those of B last."""
        first_b = REGISTERS - self.n
        rows = [self.rows if register < first_b else WORDS for register in range(REGISTERS)]
        columns = [byte for _ in range(REGISTERS) for byte in (STEP_BYTES, 0)]
        data = [1, *[0] * 15, *columns, *[0] * (32 - len(columns)), *rows, *[0] * (16 - len(rows))]
        return "".join(f"\\{byte:02X}" for byte in data)

    def _multiply(self) -> str:
        """The function that `multiply` calls."""
        c = [[i * self.n + j for j in range(self.n)] for i in range(self.m)]
        lines = [f"  call void @llvm.x86.tilezero(i8 {register})" for row in c for register in row]
        lines += ["  %begin = icmp sgt i64 %steps, 0", "  br i1 %begin, label %step, label %done", "step:"]
        lines += ["  %i = phi i64 [0, %0], [%next, %step]", *self._addresses()]
        lines += self._asking_ahead() + (self._products_of_parts(c) if self.parts > 1 else self._products(c))
        lines += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %steps"]
        lines += ["  br i1 %more, label %step, label %done", "done:"]
        stride = self.n * STEP_BYTES
        for i in range(self.m):
            for j in range(self.n):
                at = i * self.rows * stride + j * STEP_BYTES
                lines += [f"  %c{i}_{j} = getelementptr i8, ptr %c, i64 {at}"]
                lines += [f"  call void @llvm.x86.tilestored64(i8 {c[i][j]}, ptr %c{i}_{j}, i64 {stride})"]
        body = "\n".join(lines)
        arguments = "ptr %a, ptr %b, ptr %c, ptr %c_last, i64 %steps, i32 %begin_ahead"
        head = f"define linkonce_odr hidden void @{self._multiply_name}({arguments})"
        return f"{head} {{\n{body}\n  ret void\n}}\n"

    def _addresses(self) -> list[str]:
        """Of a step's tiles: %a of row of tiles, part; %b of column of tiles, part."""
        lines = []
        for side, count, nbytes in (("a", self.m, self.rows * STEP_BYTES), ("b", self.n, _TILE_BYTES)):
            lines += [
                f"  %{side}_at = mul i64 %i, {nbytes}",
                f"  %{side}_part = mul i64 %steps, {nbytes}",
                f"  %{side}0_0 = getelementptr i8, ptr %{side}, i64 %{side}_at",
            ]
            tiles = [f"%{side}{i}_{part}" for i in range(count) for part in range(self.parts)]  # as they lie
            for tile, before in zip(tiles[1:], tiles, strict=False):
                lines += [f"  {tile} = getelementptr i8, ptr {before}, i64 %{side}_part"]
        return lines

    def _asking_ahead(self) -> list[str]:
        if not self.ahead:
            return []
        lines = [
            f"  %ahead_at = mul i64 %i, {self.ahead * STEP_BYTES}",
            "  %ahead_b = getelementptr i8, ptr %b, i32 %begin_ahead",
            "  %ahead0 = getelementptr i8, ptr %ahead_b, i64 %ahead_at",
        ]
        for i in range(self.ahead):
            if i:
                lines += [f"  %ahead{i} = getelementptr i8, ptr %ahead0, i64 {i * STEP_BYTES}"]
            lines += [f"  call void @llvm.prefetch.p0(ptr %ahead{i}, i32 0, i32 2, i32 1)"]
        return lines

    def _products(self, c: list[list[int]]) -> list[str]:
        """A step of one part. All of its loads stand before its products.

        On a core that another hyper-thread uses, no register is renamed: loads then wait for products, and these wait
        once a step instead of once a load (measured on Emerald Rapids: 8 % less).
        """
        spare = REGISTERS - self.m * self.n - self.n
        b = [REGISTERS - self.n + j for j in range(self.n)]
        a = [self.m * self.n + i % spare for i in range(self.m)]
        lines = [_load(b[j], f"%b{j}_0") for j in range(self.n)]
        for first in range(0, self.m, spare):
            group = range(first, min(first + spare, self.m))
            lines += [_load(a[i], f"%a{i}_0") for i in group]
            lines += [self._product(c[i][j], a[i], b[j]) for i in group for j in range(self.n)]
        return lines

    def _products_of_parts(self, c: list[list[int]]) -> list[str]:
        """A step of float32. Only the side whose part is another one is loaded, and its first tile is used up first."""
        b = [REGISTERS - self.n + j for j in range(self.n)]
        a = [self.m * self.n + i for i in range(self.m)]
        lines: list[str] = []
        held = (-1, -1)
        for left, right in PRODUCTS_OF_PARTS:
            lines += [_load(a[i], f"%a{i}_{left}") for i in range(self.m) if left != held[0]]
            lines += [_load(b[j], f"%b{j}_{right}") for j in range(self.n) if right != held[1]]
            order = [(i, j) for i in range(self.m) for j in range(self.n)]
            if right != held[1]:
                order.sort(key=lambda at: at[1])
            lines += [self._product(c[i][j], a[i], b[j]) for i, j in order]
            held = (left, right)
        return lines

    def _product(self, c: int, a: int, b: int) -> str:
        return f"  call void @llvm.x86.{_PRODUCTS[self.dtype]}(i8 {c}, i8 {a}, i8 {b})"


def _load(register: int, address: str) -> str:
    return f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr {address}, i64 {STEP_BYTES})"


def _call(name: str, *args: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("void", name, *args))

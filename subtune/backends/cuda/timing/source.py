"""CUDA C++ of our own for the GPU's measuring process: outputs judged, memory hashed, the machine probed."""

from __future__ import annotations

from functools import cache
from typing import Any

from subtune.backends.cuda.api import Binary

SOURCE = r"""
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

// kinds: 0 float16, 1 bfloat16, 2 float32, 3 float64; anything else is compared bit by bit
static __device__ double load(const void* p, u64 i, int kind) {
  if (kind == 3) return ((const double*)p)[i];
  if (kind == 2) return (double)((const float*)p)[i];
  u16 h = ((const u16*)p)[i];
  if (kind == 1) return (double)__uint_as_float((u32)h << 16);
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return (double)f;
}
static __device__ bool is_finite(double x) { return x - x == 0.0; }

// found: {finite elements, bits of the largest magnitude, sum of the squares of value / unit}
extern "C" __global__ void summarise(const void* data, u64 n, int kind, double unit, double limit, u64* found) {
  double sum = 0.0, largest = 0.0;
  u64 count = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (u64)blockDim.x) {
    double x = load(data, i, kind);
    x = x < 0 ? -x : x;
    if (!is_finite(x) || x > limit) continue;
    ++count;
    sum += (x / unit) * (x / unit);
    if (x > largest) largest = x;
  }
  for (int d = 16; d; d >>= 1) {
    sum += __shfl_down_sync(0xffffffffu, sum, d);
    count += __shfl_down_sync(0xffffffffu, count, d);
    double other = __shfl_down_sync(0xffffffffu, largest, d);
    if (other > largest) largest = other;
  }
  if (threadIdx.x % 32) return;
  atomicAdd(found, count);
  atomicMax(found + 1, (u64)__double_as_longlong(largest));
  atomicAdd((double*)(found + 2), sum);
}

// the root mean square of row i / row, of `most` elements of it
static __device__ double of_row(const void* want, int kind, u64 i, u64 row, u64 most, double masked) {
  double sum = 0.0;
  u64 count = 0, begin = i / row * row;
  for (u64 j = begin; j < begin + (row < most ? row : most); ++j) {
    double x = load(want, j, kind);
    if (!is_finite(x) || x > masked || x < -masked) continue;
    ++count;
    sum += x * x;
  }
  return count ? sqrt(sum / count) : 0.0;
}

// found: {wrong elements, index of the first}; a reference beyond `limit` is infinite in the output's type
extern "C" __global__ void judge(const void* out, int out_kind, const void* want, int want_kind, u64 n, u64 row,
                                 u64 most, double tolerance, double scale, double limit, double masked,
                                 int adversarial, int nan_spreads, u64* found) {
  u64 wrong = 0, first = ~0ull;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (u64)blockDim.x) {
    double a = load(out, i, out_kind), b = load(want, i, want_kind);
    if (b > limit) b = __longlong_as_double(0x7ff0000000000000ll);
    if (b < -limit) b = __longlong_as_double((long long)0xfff0000000000000ull);
    bool bad;
    if (is_finite(b)) {
      a = a > limit ? limit : a < -limit ? -limit : a;  // sums in another order may just exceed the output's type
      double d = a > b ? a - b : b - a;
      double size = b < 0 ? -b : b;
      bad = !(d <= tolerance * (size + scale));
      if (bad && !adversarial && a == a)
        bad = !(d <= tolerance * (size + fmax(scale, of_row(want, want_kind, i, row, most, masked))));
    } else {
      bad = !adversarial && !(a == b || (a != a && b != b));
    }
    if (bad && !(nan_spreads && a != a)) {
      ++wrong;
      if (i < first) first = i;
    }
  }
  if (wrong) {
    atomicAdd(found, wrong);
    atomicMin(found + 1, first);
  }
}

extern "C" __global__ void judge_bytes(const u8* out, const u8* want, u64 n, int size, u64* found) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (u64)blockDim.x) {
    bool bad = false;
    for (int j = 0; j < size; ++j) bad |= out[i * size + j] != want[i * size + j];
    if (bad) {
      atomicAdd(found, 1ull);
      atomicMin(found + 1, i);
    }
  }
}

extern "C" __global__ void checksum(const u32* data, u64 words, u64* found) {
  u64 sum = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += gridDim.x * (u64)blockDim.x)
    sum += (u64)data[i] * (2 * i + 0x9e3779b97f4a7c15ull | 1);
  for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
  if (threadIdx.x % 32 == 0) atomicAdd(found, sum);
}

// Nothing but multiply-adds: as long as no other program has the GPU, and no less clock, always equally long.
extern "C" __global__ void spin(float* out, int rounds) {
  float a[8];
  for (int j = 0; j < 8; ++j) a[j] = threadIdx.x + j;
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) a[j] = a[j] * 1.000001f + 0.5f;
  float sum = 0;
  for (int j = 0; j < 8; ++j) sum += a[j];
  if (sum == 12345.0f) out[0] = sum;
}

// One element a thread: blocks that come and go keep more of memory busy than loops do.
extern "C" __global__ void copy(const uint4* from, uint4* to, u64 n) {
  u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}

// Every block reads all of a buffer that stays in L2, each from another place on; n is a power of two.
extern "C" __global__ void read_l2(const uint4* from, u32 n, int rounds, u32* out) {
  u32 sum = 0;
  u32 begin = blockIdx.x * 7919 * blockDim.x;
  for (int r = 0; r < rounds; ++r)
    for (u32 i = threadIdx.x; i < n; i += 4 * blockDim.x) {
      uint4 v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        u32 at = begin + i + j * blockDim.x & n - 1;
        asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w) : "l"(from + at));
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
  if (sum == 0x12345678u) out[0] = sum;
}

extern "C" __global__ void read_shared(int rounds, u32* out, u64* cycles) {
  __shared__ uint4 tile[1024];
  tile[threadIdx.x] = make_uint4(threadIdx.x, 1, 2, 3);
  __syncthreads();
  u32 sum = 0;
  u64 begin = clock64();
  for (int r = 0; r < rounds; ++r) {
    u32 at = (u32)__cvta_generic_to_shared(tile + ((threadIdx.x + 32 * r) & 1023));
    u32 x, y, z, w;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at));
    sum += x ^ y ^ z ^ w;
  }
  __syncthreads();
  u64 end = clock64();
  if (threadIdx.x == 0) atomicMax(cycles, end - begin);
  if (sum == 0x12345678u) out[0] = sum;
}

extern "C" __global__ void nothing() {}

// A small kernel, such as models have between products: it waits for all before it, then lets the next one start.
extern "C" __global__ void small(float* out) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  out[threadIdx.x] += 1.0f;
}

#if __CUDA_ARCH__ >= 800
#define MMA(NAME, TYPES, CTYPE, C)                                                                              \
  extern "C" __global__ void NAME(int rounds, float* out) {                                                     \
    CTYPE acc[8][4];                                                                                            \
    for (int j = 0; j < 8; ++j) for (int k = 0; k < 4; ++k) acc[j][k] = 0;                                      \
    u32 a = threadIdx.x & 1, b = threadIdx.x & 2;                                                               \
    for (int i = 0; i < rounds; ++i)                                                                            \
      _Pragma("unroll") for (int j = 0; j < 8; ++j)                                                             \
        asm volatile("mma.sync.aligned." TYPES " {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"          \
                     : "+" C(acc[j][0]), "+" C(acc[j][1]), "+" C(acc[j][2]), "+" C(acc[j][3]) : "r"(a), "r"(b)); \
    CTYPE sum = 0;                                                                                              \
    for (int j = 0; j < 8; ++j) for (int k = 0; k < 4; ++k) sum += acc[j][k];                                   \
    if (sum == (CTYPE)123456) out[0] = (float)sum;                                                              \
  }
MMA(mma_float16, "m16n8k16.row.col.f32.f16.f16.f32", float, "f")
MMA(mma_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "f")
MMA(mma_tfloat32, "m16n8k8.row.col.f32.tf32.tf32.f32", float, "f")
MMA(mma_int8, "m16n8k32.row.col.s32.s8.s8.s32", int, "r")
#endif
"""


@cache
def binary(arch: str) -> Binary:
    """The kernels above on this machine's GPU, compiled once in a process."""
    from tvm.target import Target

    from subtune.backends.cuda.building.compiler import compile_source

    return Binary(compile_source(SOURCE, Target({"kind": "cuda", "arch": arch})))


def grid_for(elements: int, sms: int, block: int = 256) -> int:
    """Blocks of a kernel that walks over so many elements."""
    return max(1, min(8 * sms, -(-elements // block)))


def is_float_kind(dtype: str) -> int | None:
    """The kernels' number for a floating-point type; None for what they compare bit by bit."""
    kinds: dict[str, Any] = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}
    return kinds.get(dtype)

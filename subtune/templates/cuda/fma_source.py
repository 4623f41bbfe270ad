"""CUDA C++ of float32 products on CUDA cores: a block's tile of sums, from copies that overlap with multiplications.

    for step of k, `STAGES` of them in flight:  A [BM][BK + 4], B [BK][BN] -> shared memory, by asynchronous copies
      for 4 of k:  TM float4 of A, along k;  for each of them, TN of B;  TM x TN multiply-adds

A stays as it lies in memory, channels innermost: no element is turned on its way, and copies take 16 bytes of a pixel.
What of a window lies outside of the image is a bit per tap, found once per row, and is filled with zeros by the copy.
Written in C++ as its loops stay loops until the compiler unrolls them: lowered by TVM one by one, thousands of
statements took most of a kernel's build. The lanes of a warp are 4 x 8: rows 4 apart, so that their 16 bytes lie in
different banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx

FMA = r"""
#ifndef SUBTUNE_FMA
#define SUBTUNE_FMA
namespace subtune {
template <int BYTES> __device__ __forceinline__ void copy_async(float* to, const float* from, bool is_inside) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
  int count = is_inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(count) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(count)
                 : "memory");
}

// k is KH x KW taps of C elements. A tap is STRIDE elements and STEP pixels from the one before; SIZE pixels exist
// (0: wherever a window is, it is inside). With EDGE, C spans pixels of a row of EDGE elements, and w counts elements.
// B has N columns.
template <int BM, int BN, int BK, int TM, int TN, int STAGES, int VECTOR, int KH, int KW, int C, int STRIDE_H,
          int STRIDE_W, int STEP_H, int STEP_W, int SIZE_H, int SIZE_W, int EDGE, int N>
struct Fma {
  static constexpr int THREADS = BM / TM * (BN / TN), PITCH = BK + 4, A = BM * PITCH, B = BK * BN;
  static constexpr int PER_ROW = BK / VECTOR, ROWS = BM * PER_ROW / THREADS, APART = THREADS / PER_ROW;
  static constexpr int STEPS = KH * KW * ((C + BK - 1) / BK);

  // base, h, w: of the rows this thread copies, the first element and the first pixel of their windows. Ends: unused.
  template <class... Ends>
  static __device__ __forceinline__ void run(float* sums, const float* a, const float* b, float* shared,
                                             const int* base, const int* h, const int* w, int column, int thread,
                                             Ends...) {
    float* shared_b = shared + STAGES * A;
    const int chunk = thread % PER_ROW * VECTOR, row = thread / PER_ROW;
    const int warp = thread / 32, lane = thread % 32;
    const int first_row = warp / (BN / (8 * TN)) * (4 * TM) + lane / 8;
    const int first_column = warp % (BN / (8 * TN)) * (8 * TN) + lane % 8 * 4;
    int inside[ROWS];
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
      inside[j] = 0;
#pragma unroll
      for (int i = 0; i < KH; i++)
        inside[j] |= (SIZE_H ? (unsigned)(h[j] + i * STEP_H) < (unsigned)SIZE_H : h[j] > -(1 << 28)) ? 1 << i : 0;
#pragma unroll
      for (int i = 0; i < KW; i++)
        inside[j] |= (SIZE_W ? (unsigned)(w[j] + i * STEP_W) < (unsigned)SIZE_W : true) ? 1 << (16 + i) : 0;
    }
    int kh = 0, kw = 0, c = 0;
    b += column;
    auto copy = [&](int stage) {
      float* to = shared + stage * A + row * PITCH + chunk;
      const float* from = a + (kh * STRIDE_H + kw * STRIDE_W + c + chunk);
#pragma unroll
      for (int j = 0; j < ROWS; j++) {
        bool is_inside = (inside[j] >> kh) & (inside[j] >> (16 + kw)) & 1;
        if constexpr (C % BK != 0) is_inside = is_inside && c + chunk < C;
        if constexpr (EDGE != 0) is_inside = is_inside && (unsigned)(w[j] + c + chunk) < (unsigned)EDGE;
        copy_async<VECTOR * 4>(to + j * APART * PITCH, from + base[j], is_inside);
      }
#pragma unroll
      for (int j = 0; j < B / 4 / THREADS; j++) {
        int i = thread + j * THREADS, k = i / (BN / 4), n = i % (BN / 4) * 4;
        bool is_inside = (C % BK == 0 || c + k < C) && (N % BN == 0 || column + n < N);
        copy_async<16>(shared_b + stage * B + k * BN + n, b + k * N + n, is_inside);
      }
      b += (C % BK == 0 || c + BK <= C ? BK : C % BK) * N;
      c += BK;
      if (c >= C) {
        c = 0;
        if (++kw == KW) { kw = 0; kh++; }
      }
    };
#pragma unroll
    for (int i = 0; i < TM * TN; i++) sums[i] = 0.f;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
      if (s < STEPS) copy(s);
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
    int stage = 0, next = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
      __syncthreads();
      if (step + STAGES - 1 < STEPS) copy(next);
      asm volatile("cp.async.commit_group;" ::: "memory");
      const float* at_a = shared + stage * A + first_row * PITCH;
      const float* at_b = shared_b + stage * B + first_column;
#pragma unroll
      for (int k = 0; k < BK; k += 4) {
        float4 fa[TM];
#pragma unroll
        for (int i = 0; i < TM; i++) fa[i] = *(const float4*)(at_a + i * 4 * PITCH + k);
#pragma unroll
        for (int q = 0; q < 4; q++) {
          float4 fb[TN / 4];
#pragma unroll
          for (int j = 0; j < TN / 4; j++) fb[j] = *(const float4*)(at_b + (k + q) * BN + j * 32);
#pragma unroll
          for (int i = 0; i < TM; i++) {
            float x = q == 0 ? fa[i].x : q == 1 ? fa[i].y : q == 2 ? fa[i].z : fa[i].w;
#pragma unroll
            for (int j = 0; j < TN / 4; j++) {
              float* sum = sums + i * TN + j * 4;
              sum[0] = fmaf(x, fb[j].x, sum[0]);
              sum[1] = fmaf(x, fb[j].y, sum[1]);
              sum[2] = fmaf(x, fb[j].z, sum[2]);
              sum[3] = fmaf(x, fb[j].w, sum[3]);
            }
          }
        }
      }
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      next = next + 1 == STAGES ? 0 : next + 1;
    }
  }
};
}  // namespace subtune
#endif
"""


def called(name: str, arguments: Sequence[Any], source: str) -> Any:
    """The statement `name(arguments)` of a function in CUDA C++; integers are passed in 32 bits."""
    from tvm.backend.cuda.op import cuda_func_call

    narrow = [x.astype("int32") if str(getattr(x.ty, "dtype", "")) == "int64" else x for x in arguments]
    return tirx.Evaluate(cuda_func_call(name, *narrow, source_code=source))


def address(buffer: Any, index: Any) -> Any:
    """Of element `index` of `buffer`, counted over all dims.

    TVM makes an allocation as small as what it sees: a function that is given the address of the first element of a
    buffer of the kernel's own must be given `end` as well.
    """
    zeros = [tirx.const(0, "int64")] * (len(buffer.shape) - 1)
    return tirx.address_of(tirx.BufferLoad(buffer, [*zeros, index]))


def end(buffer: Any) -> Any:
    """The address of the last element of `buffer`."""
    return address(buffer, tirx.const(prod(int(d) for d in buffer.shape) - 1, "int64"))

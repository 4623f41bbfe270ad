"""CUDA C++ of float32 products: a block's tile of sums, from copies that overlap with multiplications.

    for step of k, `STAGES` of them in flight:  A [BM][BK + 4], B [BK][BN] -> shared memory, by asynchronous copies
      for 4 of k:  TM float4 of A, along k;  for each of them, TN of B;  TM x TN multiply-adds

A stays as it lies in memory, channels innermost: no element is turned on its way, and copies take 16 bytes of a pixel.
So does B, where k is innermost there too: it is [BN][BK + 4] then, and read along k. `SLICES` groups of warps compute
the same tile, each from its part of every step, and share the sums' addition: few blocks have enough warps that way.
What of a window lies outside of the image is a bit per tap, found once per row, and is filled with zeros by the copy.
Written in C++ as its loops stay loops until the compiler unrolls them: lowered by TVM one by one, thousands of
statements took most of a kernel's build. The lanes of a warp are 4 x 8: rows 4 apart, so that their 16 bytes lie in
different banks (`fma_kernel` has their order).

`ON_TENSOR` cores 8 of k are multiplied at once, in three products (`split_tf32`). The lanes are 8 x 4 then, as
`mma.sync` has them, but for this: a lane's two elements of k lie side by side, in A and in B alike, and column c of
the n-th of J products side by side is column c * J + n of the tile, so that a lane's sums lie side by side too. All
loads from shared memory are free of bank conflicts: rows of A begin 8 banks apart, and those of B 4.
"""

from __future__ import annotations

from subtune.backends.cuda.source.split_tf32 import SPLIT_TF32

FMA = (
    SPLIT_TF32
    + r"""
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

__device__ __forceinline__ float part(float4 x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// 8 of k on tensor cores: TM x TN sums of a lane. `a`, `b`: its first elements.
template <int TM, int TN, int PITCH, int PITCH_N, bool ALONG_K, class Meanwhile>
__device__ __forceinline__ void multiply_split(float* sums, const float* a, const float* b, Meanwhile meanwhile) {
  constexpr int J = TN / 2 < 4 ? TN / 2 : 4;
  SplitA of_a[TM / 2];
#pragma unroll
  for (int i = 0; i < TM; i++) {
    float2 x = *(const float2*)(a + i * 8 * PITCH);
    tf32_parts(x.x, of_a[i / 2].high[i % 2], of_a[i / 2].low[i % 2]);
    tf32_parts(x.y, of_a[i / 2].high[i % 2 + 2], of_a[i / 2].low[i % 2 + 2]);
  }
#pragma unroll
  for (int q = 0; q < TN / (2 * J); q++) {
    float y[2][J];
    if constexpr (ALONG_K) {
#pragma unroll
      for (int j = 0; j < J; j++) {
        float2 of_k = *(const float2*)(b + (q * J + j) * 8 * PITCH);
        y[0][j] = of_k.x, y[1][j] = of_k.y;
      }
    } else {
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const float* row = b + k * PITCH_N + q * 8 * J;
        if constexpr (J == 4) *(float4*)y[k] = *(const float4*)row;
        if constexpr (J == 2) *(float2*)y[k] = *(const float2*)row;
        if constexpr (J == 1) y[k][0] = *row;
      }
    }
#pragma unroll
    for (int j = 0; j < J; j++) {
      SplitB of_b;
      tf32_parts(y[0][j], of_b.high[0], of_b.low[0]);
      tf32_parts(y[1][j], of_b.high[1], of_b.low[1]);
      float products[TM / 2][4];
      mma_split(products, of_a, of_b);
#pragma unroll
      for (int i = 0; i < TM / 2; i++) {
        float* to = sums + 2 * i * TN + q * 2 * J + j;
        to[0] += products[i][0], to[J] += products[i][1], to[TN] += products[i][2], to[TN + J] += products[i][3];
      }
      if (q == 0 && j == 0) meanwhile();
    }
  }
}

// 4 of k on CUDA cores: TM x TN sums of a thread.
template <int TM, int TN, int PITCH, int PITCH_N, bool ALONG_K, class Meanwhile>
__device__ __forceinline__ void multiply_fma(float* sums, const float* a, const float* b, Meanwhile meanwhile) {
  float4 fa[TM];
#pragma unroll
  for (int i = 0; i < TM; i++) fa[i] = *(const float4*)(a + i * 4 * PITCH);
  if constexpr (ALONG_K) {
#pragma unroll
    for (int j = 0; j < TN; j++) {
      float4 y = *(const float4*)(b + j * 8 * PITCH);
#pragma unroll
      for (int i = 0; i < TM; i++)
        sums[i * TN + j] =
            fmaf(fa[i].w, y.w, fmaf(fa[i].z, y.z, fmaf(fa[i].y, y.y, fmaf(fa[i].x, y.x, sums[i * TN + j]))));
      if (j == 0) meanwhile();
    }
  } else {
#pragma unroll
    for (int q = 0; q < 4; q++) {
      float4 fb[TN / 4];
#pragma unroll
      for (int j = 0; j < TN / 4; j++) fb[j] = *(const float4*)(b + q * PITCH_N + j * 32);
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++)
          sums[i * TN + j] = fmaf(part(fa[i], q), part(fb[j / 4], j % 4), sums[i * TN + j]);
      if (q == 0) meanwhile();
    }
  }
}

// k is KD x KH x KW taps of C elements. A tap is STRIDE elements and STEP pixels from the one before; SIZE pixels exist
// (0: wherever a window is, it is inside). With EDGE, C spans pixels of a row of EDGE elements, and w counts elements.
// B is [k][N], or [N][k] with PITCH_B elements from column to column, if that is not 0. IS_PART: only the first `last`
// channels exist.
template <int BM, int BN, int BK, int TM, int TN, int STAGES, int SLICES, int VECTOR, int KD, int KH, int KW, int C,
          int STRIDE_D, int STRIDE_H, int STRIDE_W, int STEP_D, int STEP_H, int STEP_W, int SIZE_D, int SIZE_H,
          int SIZE_W, int EDGE, int N, int PITCH_B, bool IS_PART, bool ON_TENSOR>
struct Fma {
  static constexpr bool IS_DEEP = KD > 1 || SIZE_D != 0;
  static constexpr int W_AT = IS_DEEP ? 10 : 16, D_AT = 20;  // bits of taps, behind those along h
  static constexpr bool ALONG_K = PITCH_B != 0;
  static constexpr int GROUP = BM / TM * (BN / TN), THREADS = GROUP * SLICES;
  static constexpr int PITCH = !ON_TENSOR ? BK + 4 : BK % 16 ? BK : BK + 8, PITCH_N = ON_TENSOR ? BN + 4 : BN;
  static constexpr int A = BM * PITCH, STAGE = A + (ALONG_K ? BN * PITCH : BK * PITCH_N), DEPTH = BK / SLICES;
  static constexpr int PER_ROW = BK / VECTOR, ROWS = BM * PER_ROW / THREADS, APART = THREADS / PER_ROW;
  static constexpr int APART_B = ALONG_K ? APART : THREADS / (BN / 4), ROWS_B = (ALONG_K ? BN : BK) / APART_B;
  static constexpr bool IS_RAGGED = IS_PART || C % BK != 0;
  static constexpr int STEPS = KD * KH * KW * ((C + BK - 1) / BK);

  // base, d, h, w: of the rows this thread copies, the first element and the first pixel of their windows. Of the sums
  // that this thread computes, first_row is the first row in the block; its warp's columns begin at first_column, and
  // its own are 4 from lane * 4 on of every 32; on tensor cores TN, but at most 8, from lane * TN on of four times as
  // many. Ends: unused.
  template <class... Ends>
  static __device__ __forceinline__ void run(float* sums, const float* a, const float* b, float* shared,
                                             const int* base, const int* d, const int* h, const int* w, int column,
                                             int thread, int slice, int first_row, int first_column, int lane,
                                             int last, Ends...) {
    const int chunk = thread % PER_ROW * VECTOR, row = thread / PER_ROW;
    int inside[ROWS], at[ROWS];
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
      at[j] = base[j] + chunk;
      inside[j] = 0;
#pragma unroll
      for (int i = 0; i < KH; i++)
        inside[j] |= (SIZE_H ? (unsigned)(h[j] + i * STEP_H) < (unsigned)SIZE_H : h[j] > -(1 << 28)) ? 1 << i : 0;
#pragma unroll
      for (int i = 0; i < KW; i++)
        inside[j] |= (SIZE_W ? (unsigned)(w[j] + i * STEP_W) < (unsigned)SIZE_W : true) ? 1 << (W_AT + i) : 0;
      if constexpr (IS_DEEP)
#pragma unroll
        for (int i = 0; i < KD; i++)
          inside[j] |= (SIZE_D ? (unsigned)(d[j] + i * STEP_D) < (unsigned)SIZE_D : true) ? 1 << (D_AT + i) : 0;
    }
    // along k, column l * 4 + i of 32 is row i * 8 + l: what the lanes read together lies in different banks
    auto column_of = [](int i) { return i / 32 * 32 + i % 8 * 4 + i / 8 % 4; };
    const int row_b = ALONG_K ? row : thread / (BN / 4), n_b = ALONG_K ? column_of(row) : thread % (BN / 4) * 4;
    float* to_a = shared + row * PITCH + chunk;
    float* to_b = ALONG_K ? to_a + A : shared + A + row_b * PITCH_N + n_b;
    b += ALONG_K ? (column + n_b) * PITCH_B + chunk : row_b * N + column + n_b;
    int kd = 0, kh = 0, kw = 0, c = 0;
    auto copy = [&](int stage, bool is_one) {
      const float* from = a + (kd * STRIDE_D + kh * STRIDE_H + kw * STRIDE_W);
#pragma unroll
      for (int j = 0; j < ROWS; j++) {
        bool is_inside = is_one && (inside[j] >> kh) & (inside[j] >> (W_AT + kw)) & 1;
        if constexpr (IS_DEEP) is_inside = is_inside && inside[j] >> (D_AT + kd) & 1;
        if constexpr (IS_RAGGED) is_inside = is_inside && c + chunk < (IS_PART ? last : C);
        if constexpr (EDGE != 0) is_inside = is_inside && (unsigned)(w[j] + c + chunk) < (unsigned)EDGE;
        copy_async<VECTOR * 4>(to_a + stage * STAGE + j * APART * PITCH, from + at[j], is_inside);
      }
#pragma unroll
      for (int j = 0; j < ROWS_B; j++) {
        const int i = row_b + j * APART_B;
        const int n = !ALONG_K ? 0 : APART_B % 32 == 0 ? j * APART_B : column_of(i) - n_b;
        bool is_inside = is_one && (N % BN == 0 || column + n_b + n < N);
        if constexpr (IS_RAGGED) is_inside = is_inside && c + (ALONG_K ? chunk : i) < (IS_PART ? last : C);
        float* to = to_b + stage * STAGE + j * APART_B * (ALONG_K ? PITCH : PITCH_N);
        if constexpr (ALONG_K) copy_async<VECTOR * 4>(to, b + n * PITCH_B, is_inside);
        else copy_async<16>(to, b + j * APART_B * N, is_inside);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      b += (C % BK == 0 || c + BK <= C ? BK : C % BK) * (ALONG_K ? 1 : N);
      a += BK;
      c += BK;
      if constexpr (KD * KH * KW > 1) {
        if (c >= C) {
          a -= c;
          c = 0;
          if (++kw == KW) { kw = 0; kh++; }
          if constexpr (KD > 1)
            if (kh == KH) { kh = 0; kd++; }
        }
      }
    };
#pragma unroll
    for (int i = 0; i < TM * TN; i++) sums[i] = 0.f;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) copy(s, s < STEPS);
    const int from_k = slice * DEPTH;
    constexpr int J = TN / 2 < 4 ? TN / 2 : 4, WIDE = ALONG_K ? 1 : PITCH_N;
    const int lane_k = ON_TENSOR ? lane * 2 : 0, first_n = ON_TENSOR ? thread % 32 / 4 : lane;
    const int lane_n = ALONG_K ? first_n : first_n * (ON_TENSOR ? J : 4);
    const float* of_a = shared + first_row * PITCH + from_k + lane_k;
    const float* of_b = shared + A + (from_k + lane_k) * WIDE + (first_column + lane_n) * (ALONG_K ? PITCH : 1);
    // 4 of k, or 8; `meanwhile` is done as soon as there is something to compute
    constexpr int AT_ONCE = ON_TENSOR ? 8 : 4;
    auto multiply = [&](const float* at_a, const float* at_b, auto meanwhile) {
      if constexpr (ON_TENSOR)
        multiply_split<TM, TN, PITCH, PITCH_N, ALONG_K>(sums, at_a, at_b, meanwhile);
      else
        multiply_fma<TM, TN, PITCH, PITCH_N, ALONG_K>(sums, at_a, at_b, meanwhile);
    };
    int stage = 0, next = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
      __syncthreads();
      const float *at_a = of_a + stage * STAGE, *at_b = of_b + stage * STAGE;
      multiply(at_a, at_b, [&] { copy(next, step + STAGES - 1 < STEPS); });
#pragma unroll
      for (int k = AT_ONCE; k < DEPTH; k += AT_ONCE) multiply(at_a + k, at_b + k * WIDE, [] {});
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      next = next + 1 == STAGES ? 0 : next + 1;
    }
    if constexpr (SLICES > 1) add_slices(sums, shared, thread % GROUP, slice);
  }

  // Of TM rows, every slice keeps its TM / SLICES, added up, at the beginning of `sums`.
  static __device__ __forceinline__ void add_slices(float* sums, float* shared, int thread, int slice) {
    constexpr int KEPT = TM * TN / SLICES;
    float4* other = (float4*)shared + thread;
    float kept[KEPT];
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
      const float* of_s = sums + s * KEPT;
      float4* to = other + (s * (SLICES - 1) + slice - (slice > s)) * (KEPT / 4 * GROUP);
#pragma unroll
      for (int i = 0; i < KEPT; i += 4)
        if (s == slice)
          kept[i] = of_s[i], kept[i + 1] = of_s[i + 1], kept[i + 2] = of_s[i + 2], kept[i + 3] = of_s[i + 3];
        else
          to[i / 4 * GROUP] = make_float4(of_s[i], of_s[i + 1], of_s[i + 2], of_s[i + 3]);
    }
    __syncthreads();
    other += slice * (SLICES - 1) * (KEPT / 4 * GROUP);
#pragma unroll
    for (int s = 0; s < SLICES - 1; s++)
#pragma unroll
      for (int i = 0; i < KEPT; i++) kept[i] += part(other[(s * (KEPT / 4) + i / 4) * GROUP], i % 4);
#pragma unroll
    for (int i = 0; i < KEPT; i++) sums[i] = kept[i];
  }
};
}  // namespace subtune
#endif
"""
)

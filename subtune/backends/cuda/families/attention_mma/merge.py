"""CUDA C++ that merges what warps and blocks made of their shares of a row's keys.

Source: Dao et al., "Flash-Decoding", 2023.
"""

from __future__ import annotations

MERGE = r"""
#ifndef SUBTUNE_MERGE_ATTENTION
#define SUBTUNE_MERGE_ATTENTION
namespace subtune {
// As SUBTUNE_CLUSTER defines it.
template <class T> __device__ T of_block(const T* own, unsigned block);

// What lies at `own` in the shared memory of block `block` of BLOCKS in a cluster; of one block, anywhere in memory.
template <int BLOCKS, class T> __device__ __forceinline__ T of_part(const T* own, int block) {
  if constexpr (BLOCKS == 1)
    return *own;
  else
    return of_block(own, block);
}

// Column `column` of a row from the PARTS of each of BLOCKS blocks, ROWS rows of PITCH floats apart, and their states:
// the largest score and the total of exponentials. result is the sum, the total and the largest score.
template <int BLOCKS, int PARTS, int ROWS, int PITCH>
__device__ __forceinline__ void merge_attention(float* result, const void* sums, const void* states, float factor,
                                                int row, int column, const void*) {
  const float* of_sums = (const float*)sums + row * PITCH + column;
  const float2* of_states = (const float2*)states + row;
  float best = -INFINITY, sum = 0.f, total = 0.f;
#pragma unroll 8
  for (int p = 0; p < BLOCKS * PARTS; p++)
    best = fmaxf(best, of_part<BLOCKS>(of_states + p % PARTS * ROWS, p / PARTS).x);
  const float zero = best == -INFINITY ? 0.f : best;
#pragma unroll 8
  for (int p = 0; p < BLOCKS * PARTS; p++) {
    const float2 state = of_part<BLOCKS>(of_states + p % PARTS * ROWS, p / PARTS);
    const float weight = state.x == best ? 1.f : exp2f((state.x - zero) * factor);
    total = fmaf(state.y, weight, total);
    sum = fmaf(of_part<BLOCKS>(of_sums + (size_t)(p % PARTS) * ROWS * PITCH, p / PARTS), weight, sum);
  }
  result[0] = sum, result[1] = total, result[2] = best;
}
}  // namespace subtune
#endif
"""

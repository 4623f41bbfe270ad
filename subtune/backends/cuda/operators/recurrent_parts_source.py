"""CUDA C++ that the kernels of many sequences have in common: fragments of weights, and what a layer reads and writes.

Halves are read straight into fragments, whose depth is permuted in both operands alike so that a lane reads 16 bytes in
a row. A sequence that has ended, or not begun, keeps its state. Shapes as in `recurrent_source`.
Source: PTX ISA 8, mma.m16n8k16.
"""

from subtune.backends.cuda.operators.recurrent_source import RECURRENT
from subtune.backends.cuda.source.mma_sync import MMA_SYNC

RECURRENT_PARTS = (
    MMA_SYNC
    + RECURRENT
    + r"""
#ifndef SUBTUNE_RECURRENT_PARTS
#define SUBTUNE_RECURRENT_PARTS
namespace subtune {
// Eight halves of a row of `size` from element `k` on, zeros behind its end; loads are of V, which divides `size`.
struct Eight { unsigned at[4]; };
template <int V, class T> __device__ __forceinline__ Eight eight(const T* row, int k, int size) {
  Eight found = {{0u, 0u, 0u, 0u}};
  if constexpr (V == 8) {
    if (k < size) {
      const uint4 word = __ldcg((const uint4*)(row + k));
      found.at[0] = word.x;
      found.at[1] = word.y;
      found.at[2] = word.z;
      found.at[3] = word.w;
    }
  } else if constexpr (V == 1) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (k + i < size) found.at[i / 2] |= (unsigned)__ldcg((const unsigned short*)row + k + i) << i % 2 * 16;
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (k + 2 * i < size) found.at[i] = __ldcg((const unsigned*)(row + k) + i);
  }
  return found;
}

// A fragment of the weights: rows `low` and `high` of a lane, nothing where there is none.
template <int V, class T>
__device__ __forceinline__ void fragment(unsigned (&to)[2][4], const T* low, const T* high, int k, int hidden) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const T* row = half ? high : low;
    Eight part = {{0u, 0u, 0u, 0u}};
    if (row) part = eight<V>(row, k, hidden);
#pragma unroll
    for (int i = 0; i < 4; i++) to[i / 2][half + i % 2 * 2] = part.at[i];
  }
}

// What a layer reads and writes beside its states; `direction` and the sequences are a block's own.
template <int CELL, int F, int G, int H, class X, class T, class S> struct Ends {
  static constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;
  const X* x;
  const int* lengths;
  T* y;
  S *yh, *yc;
  float* c;
  int steps, batch, hidden, directions, direction;

  __device__ __forceinline__ void read(float (&in)[GATES], int t, int b, int unit, bool exists) const {
    const X* row = x + (((long long)t * batch + b) * directions + direction) * GATES * hidden + unit;
#pragma unroll
    for (int g = 0; g < GATES; g++) in[g] = exists ? (float)row[g * hidden] : 0.0f;
  }
  __device__ __forceinline__ long long at(int b, int unit) const {
    return ((long long)direction * batch + b) * hidden + unit;
  }
  // The state after step `t`, which is stored where users see it.
  __device__ __forceinline__ float finish(const float (&in)[GATES], const float (&total)[GATES], float last,
                                          float& cell, int t, int b, int unit, bool is_last) const {
    const bool is_alive = !lengths || t < lengths[b];
    float next = cell, h = next_state<CELL, F, G, H>(in, total, last, next);
    y[(((long long)t * directions + direction) * batch + b) * hidden + unit] = (T)(is_alive ? h : 0.0f);
    if (is_alive) cell = next;
    else h = last;
    if (is_last) {
      yh[at(b, unit)] = (S)h;
      if constexpr (CELL == LSTM) yc[at(b, unit)] = (S)cell;
    }
    return h;
  }
};
}  // namespace subtune
#endif
"""
)

"""CUDA C++ of attention whose keys and values come straight into the registers that mma.sync reads.

Where few rows meet many keys, all waits for memory: nothing is gained by a way through shared memory, and one block
after the other reads what lies next. A product's depth may be taken in any order: a lane reads 16 bytes of a key, of
which two products of 16 x 8 x 16 take a part each. Of values it reads 16 bytes of the same columns of four keys, and
pairs of keys become words by `prmt`; so a lane's sums are of columns eight apart.

    for step of keys:  V of the step -> registers;  S = Q K^T;  K of the next step -> registers
      (a mask, written by the schedule);  P = softmax step of S;  O = O * scale + P V

Sources: Dao et al., "Flash-Decoding", 2023; PTX ISA 8, mma.m16n8k16.
"""

from __future__ import annotations

from subtune.backends.cuda.families.attention_mma.source import ATTENTION

ATTENTION_DIRECT = (
    ATTENTION
    + r"""
#ifndef SUBTUNE_ATTENTION_DIRECT
#define SUBTUNE_ATTENTION_DIRECT
namespace subtune {
namespace attention {
// 16 bytes that no other block will ask for; zeros where there are none.
__device__ __forceinline__ void read16(unsigned int* to, const void* from, bool inside) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = 0;
  if (inside)
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
}

// As `mma`, of which only the first eight rows are looked at: the others' sums have no registers.
template <bool BRAIN>
__device__ __forceinline__ void mma_few(float* sums, unsigned int first, unsigned int second,
                                        const unsigned int* right) {
  float all[4] = {sums[0], sums[1], 0.f, 0.f};
  const unsigned int left[4] = {first, 0, second, 0};
  mma<BRAIN>(all, left, right);
  sums[0] = all[0], sums[1] = all[1];
}
}  // namespace attention

// Of halves, KW warps with all rows each. `own` are a lane's words of K, V and Q.
template <int D, int DV, int KW, int BN, int SPLITS, int PITCH_K, int PITCH_V, bool FEW, bool BRAIN>
struct AttentionDirect : AttentionBlock<unsigned short, D, DV, 1, KW, BN, 1, SPLITS, PITCH_K, PITCH_V, FEW, 64> {
  using B = AttentionBlock<unsigned short, D, DV, 1, KW, BN, 1, SPLITS, PITCH_K, PITCH_V, FEW, 64>;
  static constexpr int DEPTHS = (D + 31) / 32, PARTS = B::DVP / 64;
  static constexpr int V = BN / 8 * DEPTHS * 4, Q = V + BN / 16 * PARTS * 16;

  static __device__ __forceinline__ bool is_key(int key, int keys) { return keys % B::STEP == 0 || key < keys; }

  static __device__ __forceinline__ int key_of(int first, int step, int thread) {
    return (first + step * SPLITS) * B::STEP + thread / 32 * BN;
  }

  template <class T>
  static __device__ __forceinline__ void take_k(unsigned int* own, const T* k, int first, int step, int keys,
                                                int thread) {
    const int key = key_of(first, step, thread) + thread % 32 / 4, column = thread % 4 * 8;
    const T* from = k + (size_t)key * PITCH_K + column;
#pragma unroll
    for (int n = 0; n < BN / 8; n++)
#pragma unroll
      for (int j = 0; j < DEPTHS; j++)
        attention::read16(own + (n * DEPTHS + j) * 4, from + (size_t)n * 8 * PITCH_K + j * 32,
                          is_key(key + n * 8, keys) && (D % 32 == 0 || column + j * 32 < D));
  }

  template <class T>
  static __device__ __forceinline__ void take_v(unsigned int* own, const T* v, int first, int step, int keys,
                                                int thread) {
    const int key = key_of(first, step, thread) + thread % 4 * 2, column = thread % 32 / 4 * 8;
    const T* from = v + (size_t)key * PITCH_V + column;
#pragma unroll
    for (int n = 0; n < BN / 16; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int down = n * 16 + i % 2 + i / 2 * 8;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
          attention::read16(own + V + ((n * PARTS + p) * 4 + i) * 4, from + (size_t)down * PITCH_V + p * 64,
                            is_key(key + down, keys) && (DV % 64 == 0 || column + p * 64 < DV));
      }
  }

  // A lane's words of one of its two rows of Q, which begins at `from`.
  template <class T>
  static __device__ __forceinline__ void take_q(unsigned int* own, const T* from, int half, int inside, int thread,
                                                const void*) {
#pragma unroll
    for (int j = 0; j < DEPTHS; j++) {
      const int column = j * 32 + thread % 4 * 8;
      attention::read16(own + Q + (j * B::HALVES + half) * 4, from + column, inside && (D % 32 == 0 || column < D));
    }
  }

  template <class T>
  static __device__ __forceinline__ void begin(float* sums, float* state, unsigned int* own, const T* k, const T*,
                                               int first, int count, int keys, int thread, const void*,
                                               const void*, const void*) {
    if (count > 0) take_k(own, k, first, 0, keys, thread);
#pragma unroll
    for (int i = 0; i < B::DVP / 2; i++) sums[i] = 0.f;
    state[0] = state[1] = -INFINITY, state[2] = state[3] = 0.f;
  }

  static __device__ __forceinline__ void multiply(float* sums, const unsigned int* q, const unsigned int* right) {
    if constexpr (FEW) {
      attention::mma_few<BRAIN>(sums, q[0], q[1], right);
    } else {
      const unsigned int left[4] = {q[0], q[4], q[1], q[5]};
      mma<BRAIN>(sums, left, right);
    }
  }

  template <class T>
  static __device__ __forceinline__ void scores(float* s, unsigned int* own, const T* k, const T* v, int first,
                                                int step, int count, int keys, int thread, const void*,
                                                const void*) {
    take_v(own, v, first, step, keys, thread);
#pragma unroll
    for (int n = 0; n < BN / 8; n++) {
      float other[4] = {0.f, 0.f, 0.f, 0.f};  // a second sum, so that products need not wait for one another
#pragma unroll
      for (int i = 0; i < 4; i++) s[n * 4 + i] = 0.f;
#pragma unroll
      for (int j = 0; j < DEPTHS; j++) {
        const unsigned int *q = own + Q + j * B::HALVES * 4, *right = own + (n * DEPTHS + j) * 4;
        multiply(s + n * 4, q, right);
        multiply(other, q + 2, right + 2);
      }
#pragma unroll
      for (int i = 0; i < 2 * B::HALVES; i++) s[n * 4 + i] += other[i];
    }
    if (step + 1 < count) take_k(own, k, first, step + 1, keys, thread);
  }

  static __device__ __forceinline__ void softmax(float* sums, float* state, float* s, unsigned int* own, float factor,
                                                 int, int, const void*, const void*, const void*, const void*) {
    B::weigh(sums, state, s, factor);
#pragma unroll
    for (int n = 0; n < BN / 16; n++) {
      unsigned int weights[8];  // as words of Q: of the first row, then of the second
#pragma unroll
      for (int r = 0; r < B::HALVES; r++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const float* p = s + (n * 2 + i) * 4 + r * 2;
          weights[r * 4 + i] = attention::pack<BRAIN>(p[0], p[1]);
        }
#pragma unroll
      for (int j = 0; j < B::DVP / 8; j++) {
        const unsigned int *w = own + V + (n * PARTS + j / 8) * 16 + j % 8 / 2, take = j % 2 ? 0x7632 : 0x5410;
        const unsigned int right[2] = {__byte_perm(w[0], w[4], take), __byte_perm(w[8], w[12], take)};
        multiply(sums + j * 4, weights, right);
      }
    }
  }

  static __device__ __forceinline__ void gather(const float* sums, const float* state, unsigned short* shared,
                                                int thread, const void*, const void*, const void*) {
    const int lane = thread % 32, row = thread / 32 * B::PART + lane / 4;
    float* to = (float*)shared;
#pragma unroll
    for (int r = 0; r < B::HALVES; r++) {
#pragma unroll
      for (int i = 0; i < B::DVP / 4; i += 4) {  // columns of a lane that lie together
        const int j = i / 16 * 8 + i % 8, e = i / 8 % 2;
        *(float4*)(to + (row + r * 8) * B::PG + i / 16 * 64 + lane % 4 * 16 + i % 16) =
            make_float4(sums[j * 4 + r * 2 + e], sums[j * 4 + 4 + r * 2 + e], sums[j * 4 + 8 + r * 2 + e],
                        sums[j * 4 + 12 + r * 2 + e]);
      }
      if (lane % 4 == 0) *(float2*)(to + B::STATES + (row + r * 8) * 2) = make_float2(state[r], state[2 + r]);
    }
    __syncthreads();
  }
};
}  // namespace subtune
#endif
"""
)

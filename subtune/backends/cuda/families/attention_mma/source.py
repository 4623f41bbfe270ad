"""CUDA C++ of attention on mma.sync: copies of keys and values, scores of a block of keys, and their softmax step.

    for step of keys, `STAGES` of them in flight:  K, V -> shared memory, by asynchronous copies
      S = Q K^T;  (a mask, written by the schedule);  P = softmax step of S;  O = O * scale + P V

A warp has 16 rows and its own `BN` of a step's keys: RW x KW warps. Rows in shared memory are 16 bytes longer than
their elements, so that the eight rows of a matrix lie in different banks. What is no key is copied as zeros.
Floats are multiplied as two numbers of tf32 each, in three products (`SPLIT_TF32`).
Sources: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023; PTX ISA 8, mma.m16n8k16, mma.m16n8k8,
ldmatrix, cp.async.
"""

from __future__ import annotations

from subtune.backends.cuda.source.mma_sync import MMA_SYNC
from subtune.backends.cuda.source.split_tf32 import SPLIT_TF32

ATTENTION = (
    MMA_SYNC
    + SPLIT_TF32
    + r"""
#ifndef SUBTUNE_ATTENTION_MMA
#define SUBTUNE_ATTENTION_MMA
namespace subtune {
namespace attention {
__device__ __forceinline__ unsigned int shared_address(const void* p) {
  return (unsigned int)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <bool TURNED> __device__ __forceinline__ void ldmatrix(unsigned int* r, const unsigned short* p) {
  if constexpr (TURNED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}

// A float in two numbers of tf32. It may be infinite, which minus itself is no number.
__device__ __forceinline__ void split(unsigned int& high, unsigned int& low, float x) {
  tf32_parts(x, high, low);
  if (__uint_as_float(high) == x) low = 0;
}

// Products of floats, a depth of 16. They begin at zero and CUDA cores add them to the sums, as of all `SPLIT_TF32`.
__device__ __forceinline__ void mma_float(float* sums, const SplitA (&left)[2], const SplitB (&right)[2]) {
  float products[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int i = 0; i < 2; i++) mma_tf32(products, left[i].low, right[i].high);
#pragma unroll
  for (int i = 0; i < 2; i++) mma_tf32(products, left[i].high, right[i].low);
#pragma unroll
  for (int i = 0; i < 2; i++) mma_tf32(products, left[i].high, right[i].high);
#pragma unroll
  for (int i = 0; i < 4; i++) sums[i] += products[i];
}

template <bool BRAIN> __device__ __forceinline__ unsigned int pack(float low, float high) {
  unsigned int r;
  if constexpr (BRAIN)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
}  // namespace attention

// Q, K have D columns, V has DV; rows of K and V are PITCH_K and PITCH_V elements apart, `keys` of them exist.
// SPLITS blocks share the keys in turn: what they read at a time lies together, which memory gives faster. `first` is a
// block's first step, `count` how many it has. FEW: eight rows at most; the other half of a warp's are not looked at.
// A row's sums are rounded up to UNIT columns.
template <class E, int D, int DV, int RW, int KW, int BN, int STAGES, int SPLITS, int PITCH_K, int PITCH_V,
          bool FEW, int UNIT = 16>
struct AttentionBlock {
  static constexpr int CHUNK = 16 / sizeof(E);  // elements of a copy
  static constexpr int DP = (D + 15) / 16 * 16, DVP = (DV + UNIT - 1) / UNIT * UNIT;
  static constexpr int PK = DP + CHUNK, PV = DVP + CHUNK;
  static constexpr int THREADS = 32 * RW * KW, STEP = KW * BN;
  static constexpr int HALVES = FEW ? 1 : 2;
  static constexpr int Q = 16 * RW * PK, K = STEP * PK, STAGE = K + STEP * PV;

  static __device__ __forceinline__ constexpr int left(int columns) {
    return columns <= 0 ? 0 : columns < CHUNK ? columns * (int)sizeof(E) : 16;
  }

  // 16 bytes of row `row` of Q, from `chunk` on; `from` is the row's first element.
  template <class T>
  static __device__ __forceinline__ void copy_q(E* shared, const T* from, int row, int chunk, int inside) {
    const int bytes = inside ? left(D - chunk * CHUNK) : 0;
    attention::copy16(shared + row * PK + chunk * CHUNK, from + (bytes ? chunk * CHUNK : 0), bytes);
  }

  template <int COLUMNS, int ROUND, int PITCH, int TO, class T>
  static __device__ __forceinline__ void rows(E* to, const T* from, int first, int keys, int thread) {
    // Threads go down whole rows where that comes out even: one address, and distances that are known. Nothing is read
    // where no bytes are asked for.
    constexpr int CHUNKS = ROUND / CHUNK, ALL = STEP * CHUNKS, DOWN = THREADS / CHUNKS;
    constexpr bool EVEN = THREADS % CHUNKS == 0;
    const int top = thread / CHUNKS, left_of = thread % CHUNKS * CHUNK;
    const T* begin = from + (size_t)(first + top) * PITCH + left_of;
#pragma unroll
    for (int i = 0; i < (ALL + THREADS - 1) / THREADS; i++) {
      const int at = thread + i * THREADS, row = EVEN ? top + i * DOWN : at / CHUNKS;
      const int c = EVEN ? left_of : at % CHUNKS * CHUNK;
      if (ALL % THREADS == 0 || at < ALL) {
        const int bytes = first + row < keys ? left(COLUMNS - c) : 0;
        const T* source = EVEN ? begin + (size_t)i * DOWN * PITCH : from + (size_t)(first + row) * PITCH + c;
        attention::copy16(to + row * TO + c, source, bytes);
      }
    }
  }

  // The step's keys and values, if there is one left, as one group of copies.
  template <class T>
  static __device__ __forceinline__ void copy(E* shared, const T* k, const T* v, int first, int step, int count,
                                              int keys, int thread) {
    if (step < count) {
      E* to = shared + Q + step % STAGES * STAGE;
      const int key = (first + step * SPLITS) * STEP;
      rows<D, DP, PITCH_K, PK>(to, k, key, keys, thread);
      rows<DV, DVP, PITCH_V, PV>(to + K, v, key, keys, thread);
    }
    attention::commit();
  }

  template <class T>
  static __device__ __forceinline__ void begin(float* sums, float* state, E* shared, const T* k, const T* v, int first,
                                               int count, int keys, int thread, const void*, const void*,
                                               const void*) {
#pragma unroll
    for (int i = 0; i < DVP / 2; i++) sums[i] = 0.f;
    state[0] = state[1] = -INFINITY, state[2] = state[3] = 0.f;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) copy(shared, k, v, first, s, count, keys, thread);
  }

  // Waits for the step's keys and values, asks for later ones, and gives the stage that they are in.
  template <class T>
  static __device__ __forceinline__ int next(E* shared, const T* k, const T* v, int first, int step, int count,
                                             int keys, int thread) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    copy(shared, k, v, first, step + STAGES - 1, count, keys, thread);
    return step % STAGES;
  }

  // Floats may be so large that what the rounded product of the largest lacks is itself large: the difference first.
  static __device__ __forceinline__ float power(float score, float largest, float factor) {
    return exp2f(sizeof(E) == 4 ? (score - largest) * factor : fmaf(score, factor, -(largest * factor)));
  }

  // Scores become weights, and the sums so far are scaled to the largest score. state: of a thread's two rows, the
  // largest scores so far and its own part of their sums of exponentials.
  static __device__ __forceinline__ void weigh(float* sums, float* state, float* s, float factor) {
    float scale[HALVES];
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
      float best = state[r];
#pragma unroll
      for (int i = 0; i < BN / 8; i++) best = fmaxf(best, fmaxf(s[i * 4 + r * 2], s[i * 4 + r * 2 + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      scale[r] = best == state[r] ? 1.f : exp2f((state[r] - best) * factor);
      const float zero = best == -INFINITY ? 0.f : best;  // of a row that has seen no key
      float total = state[2 + r] * scale[r];
#pragma unroll
      for (int i = 0; i < BN / 8; i++)
#pragma unroll
        for (int e = r * 2; e < r * 2 + 2; e++) total += s[i * 4 + e] = power(s[i * 4 + e], zero, factor);
      state[r] = best, state[2 + r] = total;
    }
#pragma unroll
    for (int i = 0; i < DVP / 2; i++)
      if (i / 2 % 2 < HALVES) sums[i] *= scale[i / 2 % 2 % HALVES];
  }

  // The sums of exponentials of whole rows.
  static __device__ __forceinline__ void finish(float* state, const void*) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
    for (int r = 2; r < 4; r++) {
      state[r] += __shfl_xor_sync(0xffffffffu, state[r], 1);
      state[r] += __shfl_xor_sync(0xffffffffu, state[r], 2);
    }
  }

  // The warps' sums and states in shared memory, where the stages were: rows of PG floats, then two for each row.
  static constexpr int PART = 16 * RW, PG = DVP + 8, STATES = KW * PART * PG;
  static __device__ __forceinline__ void gather(const float* sums, const float* state, E* shared, int thread,
                                                const void*, const void*, const void*) {
    const int lane = thread % 32, warp = thread / 32, row = warp / RW * PART + warp % RW * 16 + lane / 4;
    float* to = (float*)shared;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int i = 0; i < DVP / 8; i++)
        *(float2*)(to + (row + r * 8) * PG + i * 8 + lane % 4 * 2) =
            make_float2(sums[i * 4 + r * 2], sums[i * 4 + r * 2 + 1]);
      if (lane % 4 == 0) *(float2*)(to + STATES + (row + r * 8) * 2) = make_float2(state[r], state[2 + r]);
    }
    __syncthreads();
  }
};

// Of halves.
template <int D, int DV, int RW, int KW, int BN, int STAGES, int SPLITS, int PITCH_K, int PITCH_V, bool FEW,
          bool BRAIN>
struct AttentionMma : AttentionBlock<unsigned short, D, DV, RW, KW, BN, STAGES, SPLITS, PITCH_K, PITCH_V, FEW> {
  using B = AttentionBlock<unsigned short, D, DV, RW, KW, BN, STAGES, SPLITS, PITCH_K, PITCH_V, FEW>;

  template <class T>
  static __device__ __forceinline__ void scores(float* s, unsigned short* shared, const T* k, const T* v, int first,
                                                int step, int count, int keys, int thread, const void*,
                                                const void*) {
    const int lane = thread % 32, warp = thread / 32, stage = B::next(shared, k, v, first, step, count, keys, thread);
    const unsigned short* a = shared + (warp % RW * 16 + lane % 16) * B::PK + lane / 16 * 8;
    const unsigned short* b = shared + B::Q + stage * B::STAGE +
                              (warp / RW * BN + lane / 16 * 8 + lane % 8) * B::PK + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < BN / 2; i++) s[i] = 0.f;
#pragma unroll
    for (int kk = 0; kk < B::DP; kk += 16) {
      unsigned int fa[4];
      attention::ldmatrix<false>(fa, a + kk);
#pragma unroll
      for (int n = 0; n < BN; n += 16) {
        unsigned int fb[4];
        attention::ldmatrix<false>(fb, b + n * B::PK + kk);
        mma<BRAIN>(s + n / 2, fa, fb);
        mma<BRAIN>(s + n / 2 + 4, fa, fb + 2);
      }
    }
  }

  static __device__ __forceinline__ void softmax(float* sums, float* state, float* s, unsigned short* shared,
                                                 float factor, int step, int thread, const void*,
                                                 const void*, const void*, const void*) {
    const int lane = thread % 32, warp = thread / 32, stage = step % STAGES;
    B::weigh(sums, state, s, factor);
    const unsigned short* b =
        shared + B::Q + stage * B::STAGE + B::K + (warp / RW * BN + lane % 16) * B::PV + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < BN; n += 16) {
      const float* p = s + n / 2;
      const unsigned int a[4] = {attention::pack<BRAIN>(p[0], p[1]), attention::pack<BRAIN>(p[2], p[3]),
                                 attention::pack<BRAIN>(p[4], p[5]), attention::pack<BRAIN>(p[6], p[7])};
#pragma unroll
      for (int j = 0; j < B::DVP; j += 16) {
        unsigned int fb[4];
        attention::ldmatrix<true>(fb, b + n * B::PV + j);
        mma<BRAIN>(sums + j / 2, a, fb);
        mma<BRAIN>(sums + j / 2 + 4, a, fb + 2);
      }
    }
  }
};

// Of floats, each as two numbers of tf32: three products for one. The keys of eight are taken in the order in which a
// thread has their scores, 0 2 4 6 1 3 5 7.
template <int D, int DV, int RW, int KW, int BN, int STAGES, int SPLITS, int PITCH_K, int PITCH_V, bool FEW>
struct AttentionTf32 : AttentionBlock<float, D, DV, RW, KW, BN, STAGES, SPLITS, PITCH_K, PITCH_V, FEW> {
  using B = AttentionBlock<float, D, DV, RW, KW, BN, STAGES, SPLITS, PITCH_K, PITCH_V, FEW>;

  template <class T>
  static __device__ __forceinline__ void scores(float* s, float* shared, const T* k, const T* v, int first, int step,
                                                int count, int keys, int thread, const void*, const void*) {
    const int lane = thread % 32, warp = thread / 32, stage = B::next(shared, k, v, first, step, count, keys, thread);
    const float* a = shared + (warp % RW * 16 + lane / 4) * B::PK + lane % 4;
    const float* b = shared + B::Q + stage * B::STAGE + (warp / RW * BN + lane / 4) * B::PK + lane % 4;
#pragma unroll
    for (int i = 0; i < BN / 2; i++) s[i] = 0.f;
#pragma unroll 2
    for (int kk = 0; kk < B::DP; kk += 16) {
      SplitA left[2];
#pragma unroll
      for (int i = 0; i < 8; i++)
        tf32_parts(a[i % 2 * 8 * B::PK + kk + i / 2 * 4], left[i / 4].high[i % 4], left[i / 4].low[i % 4]);
#pragma unroll
      for (int n = 0; n < BN; n += 8) {
        SplitB right[2];
#pragma unroll
        for (int i = 0; i < 4; i++)
          tf32_parts(b[n * B::PK + kk + i * 4], right[i / 2].high[i % 2], right[i / 2].low[i % 2]);
        attention::mma_float(s + n / 2, left, right);
      }
    }
  }

  static __device__ __forceinline__ void softmax(float* sums, float* state, float* s, float* shared, float factor,
                                                 int step, int thread, const void*, const void*,
                                                 const void*, const void*) {
    const int lane = thread % 32, warp = thread / 32, stage = step % STAGES;
    B::weigh(sums, state, s, factor);
    const float* b = shared + B::Q + stage * B::STAGE + B::K + (warp / RW * BN + lane % 4 * 2) * B::PV + lane / 4;
#pragma unroll
    for (int n = 0; n < BN; n += 16) {
      SplitA left[2];
#pragma unroll
      for (int i = 0; i < 8; i++)
        tf32_parts(s[n / 2 + i / 4 * 4 + i % 2 * 2 + i / 2 % 2], left[i / 4].high[i % 4], left[i / 4].low[i % 4]);
#pragma unroll
      for (int j = 0; j < B::DVP; j += 8) {
        SplitB right[2];
#pragma unroll
        for (int i = 0; i < 4; i++)
          attention::split(right[i / 2].high[i % 2], right[i / 2].low[i % 2], b[(n + i / 2 * 8 + i % 2) * B::PV + j]);
        attention::mma_float(sums + j / 2, left, right);
      }
    }
  }
};
}  // namespace subtune
#endif
"""
)

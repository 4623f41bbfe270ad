"""CUDA C++ of up to sixteen rows times a matrix of 4 or 8-bit weights: unpacked in registers, summed by tensor cores.

    U chunks of 64 k on their way       16 bytes of a lane, all neighbours, past L1; before the kernel waits for another
    all of the rows' k of this block    into shared memory, in the order of the instruction's operands
    for chunk:                          weights as halves, exactly;  mma.sync m16n8k16: 16 weights' rows x 8 rows of x
      for group:                        sums of whole numbers times halves, in float32, times the group's scale

The weights are packed at compile time in the order in which lanes want them (`packing`), so that every lane's 16 bytes
become its own fragments of the instruction's left operand. A half 1024 + q is made of the bits of q alone; less 1024
and the zero point it is q - zero exactly. Which k an element of the operands is for is free, as long as both agree.
Scales are applied to sums, which costs a tenth of scaling every weight and rounds less.

Warps that share k, and blocks of a cluster that do, add up in shared memory.
Sources: Kim et al., "Who Says Elephants Can't Run", 2022 (halves from bits); Frantar et al., "MARLIN", 2024; PTX ISA 8,
mma.m16n8k16.
"""

from __future__ import annotations

from subtune.backends.cuda.families.weight_only.steps import STEPS
from subtune.backends.cuda.source.mma_sync import MMA_SYNC
from subtune.backends.cuda.source.totals import CLUSTER

WEIGHT_ONLY = (
    MMA_SYNC
    + CLUSTER
    + STEPS
    + r"""
#ifndef SUBTUNE_WEIGHT_ONLY
#define SUBTUNE_WEIGHT_ONLY
namespace subtune {
// y[M][N] = x[M][K] ((W[N][K] - zero) scale[N][K / GROUP])^T, in whole groups of k; GROUP 0: one scale for a row.
// ZERO: the same for all; -1: of every group. Scales are of type S; zero points, bytes, lie as scales do. x is of X:
// halves' bits, or floats, which are rounded.
// A block has ACROSS x SPLIT warps, a warp TILE times 16 rows of W with U chunks on their way; C blocks are a cluster.
template <int BITS, bool BRAIN, class X, int N, int K, int M, int ZERO, int GROUP, class S, int ACROSS, int SPLIT,
          int TILE, int U, int C, bool STAGED>
struct WeightOnly {
  static constexpr int CHUNK = 64, CHUNKS = (K + CHUNK - 1) / CHUNK, BYTES = 128 * BITS;  // of 16 rows' chunk
  static constexpr int WARP_ROWS = 16 * TILE, ROWS = WARP_ROWS * ACROSS, THREADS = 32 * ACROSS * SPLIT;
  static constexpr int STEPS = ((CHUNKS + C * SPLIT - 1) / (C * SPLIT) + U - 1) / U, OWN = STEPS * U;
  static constexpr bool IS_RAGGED = C * SPLIT * OWN != CHUNKS;  // some warps have fewer chunks than others
  static constexpr int MS = (M + 7) / 8;  // products for a fragment of weights
  static constexpr int CHAINS = TILE * MS == 1 ? 2 : 1;  // sums of a warp that do not wait for one another
  // Groups of a step, and runs of 32 k after which sums are scaled.
  static constexpr int GROUPS = GROUP == 0 ? 1 : (U * CHUNK + GROUP - 1) / GROUP;
  static constexpr int UNIT = GROUP == 0 || GROUP >= U * CHUNK ? 2 * U : GROUP / 32;
  static constexpr int EACH = GROUP == 0 ? K : GROUP;
  static constexpr int ALL_GROUPS = (CHUNKS * CHUNK / EACH + GROUPS - 1) / GROUPS * GROUPS;  // of a row, with padding
  static constexpr int SCALES = GROUPS * 2 * sizeof(S) / 4, ZEROS = (GROUPS + 1) / 2;  // words of a step's
  static constexpr int PITCH = ROWS + 4;  // no two lanes of a warp write to one bank
  static constexpr int PARTS = SPLIT * M * PITCH;  // floats, before the staged rows of x
  static constexpr unsigned int HALF = BRAIN ? 0x43004300u : 0x64006400u;
  static constexpr bool HAS_ZEROS = ZERO < 0;

  // Who a thread is: its first tile of 16 rows and first chunk, its part of k, and where its weights begin.
  struct Place {
    unsigned int tile, chunk, part, across, lane, rank;
    const unsigned char* weights;

    __device__ __forceinline__ Place(const void* all, unsigned int block, unsigned int thread)
        : part(thread / 32 % SPLIT), across(thread / 32 / SPLIT), lane(thread % 32), rank(block % C) {
      tile = (block / C * ACROSS + across) * TILE;
      chunk = (rank * SPLIT + part) * OWN;
      weights = (const unsigned char*)all + ((size_t)tile * CHUNKS + chunk) * BYTES + lane * 16;
    }
  };

  // Chunk `now` from the warp's first one on, number `u` of its step.
  static __device__ __forceinline__ void load(unsigned int* words, const Place& at, int now, int u) {
    if (IS_RAGGED && at.chunk + now >= CHUNKS) return;
#pragma unroll
    for (int i = 0; i < TILE; i++)
#pragma unroll
      for (int h = 0; h < BITS / 4; h++)
        ((uint4*)words)[(u * TILE + i) * (BITS / 4) + h] =
            weight_only::stream(at.weights + (size_t)now * BYTES + (i * CHUNKS * BYTES + h * 512));
  }

  // Scales and zero points of a step that begins with chunk `now`.
  static __device__ __forceinline__ void load_groups(unsigned int* scales, unsigned int* zeros, const void* scale,
                                                     const void* zero, const Place& at, int now) {
    if (GROUP == 0 || (IS_RAGGED && at.chunk + now >= CHUNKS)) return;
    const unsigned int group = (at.tile * 8 + at.lane / 4) * ALL_GROUPS + (at.chunk + now) * CHUNK / EACH;
#pragma unroll
    for (int i = 0; i < TILE; i++) {
      const unsigned int from = group * 2 + i * 16 * ALL_GROUPS;
      weight_only::fetch<GROUPS * 2 * sizeof(S)>(scales + i * SCALES, (const S*)scale + from);
      if constexpr (HAS_ZEROS) weight_only::fetch<GROUPS * 2>(zeros + i * ZEROS, (const unsigned char*)zero + from);
    }
  }

  // The first step's; these are constants, so no kernel before writes them.
  static __device__ __forceinline__ void begin(unsigned int* words, unsigned int* scales, unsigned int* zeros,
                                               const void* weights, const void* scale, const void* zero, int block,
                                               int thread, const void*, const void*, const void*) {
    const Place at(weights, block, thread);
#pragma unroll
    for (int u = 0; u < U; u++) load(words, at, u, u);
    load_groups(scales, zeros, scale, zero, at, 0);
    if constexpr (GROUP == 0 && HAS_ZEROS) {
#pragma unroll
      for (int i = 0; i < TILE * 2; i++) {
        const unsigned int row = (at.tile + i / 2) * 16 + i % 2 * 8 + at.lane / 4;
        const unsigned int its = ((const unsigned char*)zero)[N % ROWS == 0 || row < N ? row : N - 1];
        zeros[i / 2] = i % 2 ? zeros[i / 2] | its << 8 : its;
      }
    }
  }

  // A fragment: rows g and g + 8, four k. `low` and `high` are what is subtracted from these rows' halves.
  static __device__ __forceinline__ void unpack(unsigned int* to, const unsigned int* w, unsigned int low,
                                                unsigned int high) {
    if constexpr (BITS == 8 && BRAIN) {  // floats 2^23 + q first
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float less = __uint_as_float(i % 2 ? high : low);
        const unsigned int first = __byte_perm(w[i / 2], 0x4B000000u, 0x7540 + i % 2 * 2);
        const unsigned int second = __byte_perm(w[i / 2], 0x4B000000u, 0x7541 + i % 2 * 2);
        to[i] = weight_only::rounded<true>(__float_as_uint(__uint_as_float(first) - less),
                                           __float_as_uint(__uint_as_float(second) - less));
      }
    } else if constexpr (BITS == 8) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        to[2 * i] = weight_only::minus<false>(__byte_perm(w[i], HALF, 0x5150), low);
        to[2 * i + 1] = weight_only::minus<false>(__byte_perm(w[i], HALF, 0x5352), high);
      }
    } else if constexpr (BRAIN) {
#pragma unroll
      for (int i = 0; i < 4; i++)
        to[i] = weight_only::minus<true>(
            weight_only::minus<true>(weight_only::magic<0x000F000Fu, HALF>(w[0] >> 4 * i), HALF), i % 2 ? high : low);
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {  // of row g + 8 are 1024 + 16 q, and a sixteenth of that less 64 + zero is taken
        const unsigned int bits = w[0] >> 8 * i;
        to[2 * i] = weight_only::minus<false>(weight_only::magic<0x000F000Fu, HALF>(bits), low);
        to[2 * i + 1] = weight_only::times_plus(weight_only::magic<0x00F000F0u, HALF>(bits), 0x2C002C00u, high);
      }
    }
  }

  // Of a zero point, any byte. Brain floats hold 128 + q exactly, but not 128 + zero: 128 is subtracted first.
  static __device__ __forceinline__ unsigned int low_of(unsigned int zero) {
    if constexpr (BITS == 8 && BRAIN) return 0x4B000000u + zero;
    if constexpr (BRAIN) {
      const __nv_bfloat16 z = __float2bfloat16((float)zero);
      return *(const unsigned short*)&z * 0x10001u;
    }
    return HALF + zero * 0x10001u;
  }

  static __device__ __forceinline__ unsigned int high_of(unsigned int zero) {
    const unsigned int low = low_of(zero);
    if constexpr (BITS == 8 || BRAIN) return low;
    return weight_only::times_plus(low, 0xBC00BC00u, 0x63806380u);  // 960 - (1024 + zero)
  }

  // Rows of x as they lie in shared memory: of every run of 32 k, those of a row's four lanes, 16 bytes each.
  static __device__ __forceinline__ void stage(unsigned short* to, const X* x, unsigned int rank,
                                               unsigned int thread) {
    constexpr unsigned int PIECES = OWN * SPLIT * 8;
#pragma unroll
    for (unsigned int i = 0; i < (PIECES + THREADS - 1) / THREADS; i++) {
      const unsigned int piece = i * THREADS + thread, k = (rank * PIECES + piece) * 8;
      const bool is_inside = (!IS_RAGGED && K % CHUNK == 0) || k < K;
      if (PIECES % THREADS == 0 || piece < PIECES)
#pragma unroll
        for (int m = 0; m < M; m++) {
          unsigned short* there = to + (piece / 4 * M * 4 + piece % 4) * 8 + m * 32;
          const X* from = x + (is_inside ? k : 0) + m * K;
          if constexpr (sizeof(X) == 2) weight_only::copy16(there, from, is_inside ? 16 : 0);
          else *(uint4*)there = is_inside ? weight_only::halves<BRAIN>(from) : make_uint4(0, 0, 0, 0);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
    __syncthreads();
  }

  // 8 k of a lane's row of x in run `run` of 32; `part` is what begins with the warp's own chunks.
  template <class T> static __device__ __forceinline__ uint4 row_of(const T* part, int run, int m, int t, int k) {
    const int row = m < M ? m : M - 1;
    if constexpr (STAGED) return *(const uint4*)(part + ((run * M + row) * 4 + t) * 8);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (K % CHUNK == 0 || k + t * 8 < K) v = weight_only::halves<BRAIN>(part + row * K + run * 32 + t * 8);
    return v;
  }

  // Sum number rank * COUNT + thread + i * THREADS of the cluster's, [M][ROWS], into sums[i].
  static __device__ __forceinline__ void run(float* sums, unsigned int* words, unsigned int* scales,
                                             unsigned int* zeros, const void* input, const void* weights,
                                             const void* scale, const void* zero, float* shared, int block, int thread,
                                             const void*, const void*, const void*, const void*, const void*) {
    const X* x = (const X*)input;
    const Place at(weights, block, thread);
    const int g = at.lane / 4, t = at.lane % 4;
    unsigned short* staged = (unsigned short*)(shared + PARTS);
    if constexpr (STAGED) stage(staged, x, at.rank, thread);
    const X* own = x + at.chunk * CHUNK;
    const unsigned short* rows = staged + at.part * OWN * CHUNK * M;
    float c[TILE][MS][4] = {}, now[CHAINS][TILE][MS][4] = {};

#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
      const int chunk = at.chunk + step * U;
      if (IS_RAGGED && chunk >= CHUNKS) break;
#pragma unroll
      for (int u = 0; u < U; u++) {
        if (!IS_RAGGED || chunk + u < CHUNKS) {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const int run = u * 2 + h;
            const int group = GROUP == 0 ? 0 : run * 32 / EACH % GROUPS;
            uint4 v[MS];
#pragma unroll
            for (int m = 0; m < MS; m++)
              if constexpr (STAGED) v[m] = row_of(rows, step * U * 2 + run, m * 8 + g, t, 0);
              else v[m] = row_of(own, step * U * 2 + run, m * 8 + g, t, chunk * CHUNK + run * 32);
#pragma unroll
            for (int i = 0; i < TILE; i++) {
              const unsigned int z = HAS_ZEROS ? zeros[i * ZEROS + group / 2] >> group % 2 * 16 : 0;
              const unsigned int low = low_of(HAS_ZEROS ? z & 255 : ZERO);
              const unsigned int high = high_of(HAS_ZEROS ? z >> 8 & 255 : ZERO);
#pragma unroll
              for (int j = 0; j < 2; j++) {
                unsigned int a[4];
                unpack(a, words + (u * TILE + i) * BITS + (h * 2 + j) * (BITS / 4), low, high);
#pragma unroll
                for (int m = 0; m < MS; m++) {
                  const unsigned int b[2] = {j ? v[m].z : v[m].x, j ? v[m].w : v[m].y};
                  mma<BRAIN>(now[j % CHAINS][i][m], a, b);
                }
              }
            }
            if (GROUP != 0 && (run + 1) % UNIT == 0) scaled(c, now, scales, group);
          }
        }
        if (step + 1 < STEPS) load(words, at, (step + 1) * U + u, u);
      }
      if (step + 1 < STEPS) load_groups(scales, zeros, scale, zero, at, (step + 1) * U);
    }
    if constexpr (GROUP == 0) scaled(c, now, scales, 0);
    gather(sums, c, shared, at.part, at.across * WARP_ROWS + g, t, at.rank, thread);
  }

  // The sums so far, times the group's scales, are added to the others and begin again.
  static __device__ __forceinline__ void scaled(float (&c)[TILE][MS][4], float (&now)[CHAINS][TILE][MS][4],
                                                const unsigned int* scales, int group) {
#pragma unroll
    for (int i = 0; i < TILE; i++)
#pragma unroll
      for (int m = 0; m < MS; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float sum = CHAINS == 2 ? now[0][i][m][e] + now[CHAINS - 1][i][m][e] : now[0][i][m][e];
          if constexpr (GROUP == 0) c[i][m][e] = sum;
          else c[i][m][e] = fmaf(sum, weight_only::element<S>(scales + i * SCALES, group * 2 + e / 2), c[i][m][e]);
#pragma unroll
          for (int chain = 0; chain < CHAINS; chain++) now[chain][i][m][e] = 0.f;
        }
  }

  static constexpr int COUNT = M * ROWS / C;  // sums that a block of the cluster finishes

  static __device__ __forceinline__ void gather(float* sums, const float (&c)[TILE][MS][4], float* shared,
                                                unsigned int part, unsigned int row, int t, unsigned int rank,
                                                unsigned int thread) {
#pragma unroll
    for (int i = 0; i < TILE; i++)
#pragma unroll
      for (int m = 0; m < MS; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int column = m * 8 + 2 * t + e % 2;
          if (M % 8 == 0 || column < M) shared[(part * M + column) * PITCH + row + 16 * i + e / 2 * 8] = c[i][m][e];
        }
    if constexpr (C > 1) sync_cluster();
    else __syncthreads();
#pragma unroll
    for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; i++) {
      const unsigned int number = thread + i * THREADS, at = rank * COUNT + number;
      sums[i] = 0.f;
      if (COUNT % THREADS == 0 || number < COUNT) {
        const float* from = shared + at / ROWS * PITCH + at % ROWS;
#pragma unroll
        for (int s = 0; s < SPLIT; s++)
#pragma unroll
          for (int block = 0; block < C; block++) {
            if constexpr (C > 1) sums[i] += of_block(from + s * M * PITCH, block);
            else sums[i] += from[s * M * PITCH];
          }
      }
    }
    if constexpr (C > 1) sync_cluster();  // nobody ends before all have read
  }
};
}  // namespace subtune
#endif
"""
)

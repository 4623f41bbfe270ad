"""CUDA C++ of recurrent layers whose steps are products on tensor cores: many sequences in half precision.

A block has 16 * TILES rows of the weights: all gates of some hidden units, a row of zeros for the fourth gate of a GRU.
Its eight warps share the depth of the product. A warp reads its part of the weights once, if they fit registers, and
its part of the hidden states straight into fragments, whose depth is permuted in both operands alike so that a lane
reads 16 bytes in a row. The thread that has a unit of a sequence adds what the warps summed. Groups of sequences know
nothing of one another: they wait for the blocks of their own group alone.

Shapes as in `recurrent_source`. Source: PTX ISA 8, mma.m16n8k16.
"""

from subtune.backends.cuda.operators.recurrent_source import RECURRENT

RECURRENT_MMA = (
    RECURRENT
    + r"""
#ifndef SUBTUNE_RECURRENT_MMA
#define SUBTUNE_RECURRENT_MMA
namespace subtune {
template <bool BRAIN>
__device__ __forceinline__ void multiply(float* sums, const unsigned* left, unsigned low, unsigned high) {
  if constexpr (BRAIN)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(low), "r"(high), "f"(sums[0]), "f"(sums[1]),
          "f"(sums[2]), "f"(sums[3]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(low), "r"(high), "f"(sums[0]), "f"(sums[1]),
          "f"(sums[2]), "f"(sums[3]));
}

// Eight halves of a row from element `k` on, zeros behind its end; V divides the row. From the second-level cache.
struct Eight { unsigned at[4]; };
template <int V, class T> __device__ __forceinline__ Eight eight(const T* row, int k, int hidden) {
  Eight found = {{0u, 0u, 0u, 0u}};
  if constexpr (V == 8) {
    if (k < hidden) {
      const uint4 word = __ldcg((const uint4*)(row + k));
      found.at[0] = word.x;
      found.at[1] = word.y;
      found.at[2] = word.z;
      found.at[3] = word.w;
    }
  } else if constexpr (V == 1) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (k + i < hidden) found.at[i / 2] |= (unsigned)__ldcg((const unsigned short*)row + k + i) << i % 2 * 16;
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (k + 2 * i < hidden) found.at[i] = __ldcg((const unsigned*)(row + k) + i);
  }
  return found;
}

template <class T, class S> __device__ __forceinline__ Eight eight_of_initial(const S* row, int k, int hidden) {
  Eight found;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const T one = (T)(k + i < hidden ? (float)row[k + i] : 0.0f);
    found.at[i / 2] = (i % 2 ? found.at[i / 2] : 0u) | (unsigned)*(const unsigned short*)&one << i % 2 * 16;
  }
  return found;
}

// Steps `first` to `first + count` of a layer: 8 * COLUMNS sequences at a time, CHUNKS of 256 of the depth.
template <int CELL, int F, int G, int H, int BACKWARDS, int CHUNKS, int V, int COLUMNS, bool BRAIN, bool IN_REGISTERS,
          bool ALL_STEPS, class X, class T, class S>
__device__ __forceinline__ void recurrent_mma(const X* x, const T* r, const float* bias, const S* h0, const S* c0,
                                              const void* ends, T* y, S* yh, S* yc, void* cells, const void*,
                                              void* counts, const void*, unsigned char* shared, const void*,
                                              int steps, int batch, int hidden, int directions, int blocks, int groups,
                                              int first) {
  constexpr int WARPS = 8, GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1, PAD = CELL == RNN ? 1 : 4;
  constexpr int TILES = CELL == RNN ? 1 : 2, ROWS = 16 * TILES, UNITS = ROWS / PAD, BATCH = 8 * COLUMNS;
  constexpr int STRIDE = BATCH + 8, EACH = (UNITS * BATCH + WARPS * 32 - 1) / (WARPS * 32);
  const int* lengths = (const int*)ends;
  float* c = (float*)cells;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, depth = lane % 4 * 8;
  const int group = blockIdx.x / blocks % groups, direction = blockIdx.x / (blocks * groups);
  const int unit = blockIdx.x % blocks * UNITS, share = (batch + groups - 1) / groups;
  const int begin_of_group = group * share, end_of_group = min(batch, begin_of_group + share);
  const int busy = min(WARPS, (hidden + 31) / 32);
  const bool is_back = BACKWARDS >> direction & 1;
  unsigned* arrived = (unsigned*)counts + direction * groups + group;
  r += (long long)direction * GATES * hidden * hidden;
  auto weights = [&](unsigned (&a)[2][4], int tile, int chunk) {
    const int k = (chunk * WARPS + warp) * 32 + depth;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = tile * 16 + half * 8 + quad, own = unit + row / PAD, gate = row % PAD;
      Eight part = {{0u, 0u, 0u, 0u}};
      if (gate < GATES && own < hidden) part = eight<V>(r + ((long long)gate * hidden + own) * hidden, k, hidden);
#pragma unroll
      for (int i = 0; i < 4; i++) a[i / 2][half + i % 2 * 2] = part.at[i];
    }
  };
  unsigned held[IN_REGISTERS ? CHUNKS : 1][TILES][2][4];
  if constexpr (IN_REGISTERS) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) weights(held[chunk][tile], tile, chunk);
  }
  float biases[EACH][GATES];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int own = unit + (threadIdx.x + e * WARPS * 32) / BATCH;
#pragma unroll
    for (int g = 0; g < GATES; g++)
      biases[e][g] = own < hidden ? bias[((long long)direction * GATES + g) * hidden + own] : 0.0f;
  }
  int odd = 0;  // which half of the shared memory: the other may still be read
#pragma unroll 1
  for (int step = first; step < (ALL_STEPS ? steps : first + 1); step++) {
    const int t = is_back ? steps - 1 - step : step, before = is_back ? t + 1 : t - 1;
    const T* states = y + ((long long)before * directions + direction) * batch * hidden;
#pragma unroll 1
    for (int begin = begin_of_group; begin < end_of_group; begin += BATCH, odd ^= 1) {
      float in[EACH][GATES], cell[EACH], last[EACH];
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int pair = threadIdx.x + e * WARPS * 32, own = unit + pair / BATCH, b = begin + pair % BATCH;
        const bool is_own = pair < UNITS * BATCH && own < hidden && b < end_of_group;
        const long long at = ((long long)direction * batch + b) * hidden + own;
        const X* row = x + (((long long)t * batch + b) * directions + direction) * GATES * hidden + own;
#pragma unroll
        for (int g = 0; g < GATES; g++) in[e][g] = is_own ? (float)row[g * hidden] : 0.0f;
        const bool begins = is_own && (step == 0 || (lengths && is_back && t + 1 >= lengths[b]));
        cell[e] = last[e] = 0.0f;
        if (CELL == LSTM && is_own) cell[e] = begins ? (float)c0[at] : c[at];
        if (CELL == GRU && is_own) last[e] = begins ? (float)(T)(float)h0[at] : (float)fresh(states + b * hidden + own);
      }
      if (ALL_STEPS && begin == begin_of_group && step > 0) wait_for(arrived, (unsigned)(blocks * step));
      float sums[TILES][COLUMNS][4];
#pragma unroll
      for (int i = 0; i < TILES * COLUMNS * 4; i++) sums[i / (COLUMNS * 4)][i / 4 % COLUMNS][i % 4] = 0.0f;
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int k = (chunk * WARPS + warp) * 32 + depth;
        Eight state[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          const int b = begin + j * 8 + quad;
          state[j] = {{0u, 0u, 0u, 0u}};
          if (b >= end_of_group) continue;
          if (step == 0 || (lengths && is_back && t + 1 >= lengths[b]))
            state[j] = eight_of_initial<T>(h0 + ((long long)direction * batch + b) * hidden, k, hidden);
          else state[j] = eight<V>(states + (long long)b * hidden, k, hidden);
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
          unsigned read[2][4];
          if constexpr (!IN_REGISTERS) weights(read, tile, chunk);
          auto& a = IN_REGISTERS ? held[IN_REGISTERS ? chunk : 0][tile] : read;
#pragma unroll
          for (int part = 0; part < 2; part++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
              multiply<BRAIN>(sums[tile][j], a[part], state[j].at[part * 2], state[j].at[part * 2 + 1]);
        }
      }
      float* summed = (float*)shared + odd * (WARPS * ROWS * STRIDE);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          float* to = summed + (warp * ROWS + tile * 16 + quad) * STRIDE + j * 8 + lane % 4 * 2;
          *(float2*)to = make_float2(sums[tile][j][0], sums[tile][j][1]);
          *(float2*)(to + 8 * STRIDE) = make_float2(sums[tile][j][2], sums[tile][j][3]);
        }
      __syncthreads();
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int pair = threadIdx.x + e * WARPS * 32, of = pair / BATCH, own = unit + of, b = begin + pair % BATCH;
        if (pair >= UNITS * BATCH || own >= hidden || b >= end_of_group) continue;
        const long long at = ((long long)direction * batch + b) * hidden + own;
        float total[GATES];
#pragma unroll
        for (int g = 0; g < GATES; g++) {
          total[g] = biases[e][g];
#pragma unroll
          for (int w = 0; w < WARPS; w++)
            if (w < busy) total[g] += summed[(w * ROWS + of * PAD + g) * STRIDE + pair % BATCH];
        }
        float h;
        if constexpr (CELL == LSTM) {
          const float i = activated<F>(in[e][0] + total[0]), o = activated<F>(in[e][1] + total[1]);
          const float forget = activated<F>(in[e][2] + total[2]);
          cell[e] = forget * cell[e] + i * activated<G>(in[e][3] + total[3]);
          h = o * activated<H>(cell[e]);
        } else if constexpr (CELL == GRU) {
          const float z = activated<F>(in[e][0] + total[0]), reset = activated<F>(in[e][1] + total[1]);
          h = (1.0f - z) * activated<G>(in[e][2] + reset * total[2]) + z * last[e];
        } else h = activated<F>(in[e][0] + total[0]);
        const int length = lengths ? lengths[b] : steps;
        const bool is_alive = t < length;
        y[(((long long)t * directions + direction) * batch + b) * hidden + own] = (T)(is_alive ? h : 0.0f);
        if (CELL == LSTM && is_alive) c[at] = cell[e];
        if (is_alive && t == (is_back ? 0 : length - 1)) {
          yh[at] = (S)h;
          if constexpr (CELL == LSTM) yc[at] = (S)cell[e];
        }
        if (length <= 0 && step == 0) {
          yh[at] = h0[at];
          if constexpr (CELL == LSTM) yc[at] = c0[at];
        }
      }
    }
    if (ALL_STEPS && step + 1 < steps) {
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1u);
      }
    }
  }
}
}  // namespace subtune
#endif
"""
)

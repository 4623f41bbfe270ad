"""CUDA C++ of recurrent layers of many sequences: a step is a product, by tensor cores or, in float32, without.

A block has all gates of some hidden units, ROWS rows of the weights, a row of zeros for the fourth gate of a GRU. Its
eight warps share the depth of the product; the thread that has a unit of a sequence adds what they summed, and does the
rest. Hidden states lie in two buffers that steps use in turn: what is read in one is written in the next. Groups of
sequences know nothing of one another: they wait for the blocks of their own group alone.

    states [2, directions, batch, pitch] of halves, [2, directions, hidden, pitch] of float32; others as in
    `recurrent_source`

Arguments without a name are ends of buffers, which TVM makes as large as what it sees.
"""

from subtune.backends.cuda.operators.recurrent_parts_source import RECURRENT_PARTS

RECURRENT_MANY = (
    RECURRENT_PARTS
    + r"""
#ifndef SUBTUNE_RECURRENT_MANY
#define SUBTUNE_RECURRENT_MANY
namespace subtune {
// Before the first step: the initial states, zeros behind them, and nobody has arrived.
template <bool IS_DEPTH_FIRST, class T, class S>
__device__ __forceinline__ void recurrent_begin(const S* h0, const S* c0, T* states, const void*, void* cells,
                                                const void*, void* arrived, const void*, int batch, int hidden,
                                                int directions, int pitch, int waiting) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lines = IS_DEPTH_FIRST ? hidden : batch;
  const int line = i / pitch % lines, place = i % pitch, direction = i / pitch / lines;
  const int b = IS_DEPTH_FIRST ? place : line, k = IS_DEPTH_FIRST ? line : place;
  if (i < waiting) ((unsigned*)arrived)[i] = 0;
  if (direction >= directions) return;
  const bool exists = b < batch && k < hidden;
  const int at = (direction * batch + b) * hidden + k;
  states[i] = (T)(exists ? (float)h0[at] : 0.0f);
  states[i + directions * lines * pitch] = (T)0.0f;
  if (cells && exists) ((float*)cells)[at] = (float)c0[at];
}

// A warp's part of a block's product in halves: CHUNKS of 32 of the depth, by 8 * COLUMNS sequences.
template <int GATES, int CHUNKS, int V, int COLUMNS, bool BRAIN, bool IN_REGISTERS, class T> struct OnTensorCores {
  static constexpr int PAD = GATES == 1 ? 1 : 4, TILES = GATES == 1 ? 1 : 2, ROWS = 16 * TILES, BATCH = 8 * COLUMNS;
  static constexpr int STRIDE = BATCH + 8;
  const T* r;
  int unit, hidden, pitch;
  unsigned held[IN_REGISTERS ? CHUNKS : 1][TILES][2][4];

  __device__ __forceinline__ OnTensorCores(const T* r, int unit, int hidden, int pitch, float*)
      : r(r), unit(unit), hidden(hidden), pitch(pitch) {
    if constexpr (IN_REGISTERS) {
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) weights(held[chunk][tile], tile, chunk);
    }
  }
  static __device__ __forceinline__ int depth(int chunk) {
    return (chunk * 8 + threadIdx.x / 32) * 32 + threadIdx.x % 4 * 8;
  }
  __device__ __forceinline__ const T* row(int i) const {
    const int own = unit + i / PAD, gate = i % PAD;
    return gate < GATES && own < hidden ? r + ((long long)gate * hidden + own) * hidden : nullptr;
  }
  __device__ __forceinline__ void weights(unsigned (&to)[2][4], int tile, int chunk) const {
    const int i = tile * 16 + threadIdx.x % 32 / 4;
    fragment<V>(to, row(i), row(i + 8), depth(chunk), hidden);
  }
  __device__ __forceinline__ long long place(int b, int k) const { return (long long)b * pitch + k; }
  __device__ __forceinline__ long long size(int batch) const { return (long long)batch * pitch; }
  __device__ __forceinline__ int busy() const { return min(8, (hidden + 31) / 32); }
  __device__ __forceinline__ void add(float* to, const T* states, int begin, int end) const {
    const int quad = threadIdx.x % 32 / 4;
    float sums[TILES][COLUMNS][4];
#pragma unroll
    for (int i = 0; i < TILES * COLUMNS * 4; i++) sums[i / (COLUMNS * 4)][i / 4 % COLUMNS][i % 4] = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      Eight state[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const int b = begin + j * 8 + quad;
        state[j] = eight<8>(states + (long long)b * pitch, depth(chunk), b < end ? pitch : 0);
      }
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        unsigned read[2][4];
        if constexpr (!IN_REGISTERS) weights(read, tile, chunk);
        const unsigned (*left)[4] = IN_REGISTERS ? held[IN_REGISTERS ? chunk : 0][tile] : read;
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
          for (int j = 0; j < COLUMNS; j++)
            mma<BRAIN>(sums[tile][j], left[part], state[j].at + part * 2);
      }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        float* at = to + (tile * 16 + quad) * STRIDE + j * 8 + threadIdx.x % 4 * 2;
        *(float2*)at = make_float2(sums[tile][j][0], sums[tile][j][1]);
        *(float2*)(at + 8 * STRIDE) = make_float2(sums[tile][j][2], sums[tile][j][3]);
      }
  }
};

// The same in float32: a lane has LANES rows by 4 sequences; the weights lie in shared memory, the depth outside.
template <int GATES, int LANES> struct OnCudaCores {
  static constexpr int PAD = GATES == 1 ? 1 : 4, ROWS = 32, BATCH = 4 * LANES, STRIDE = BATCH + 4;
  int hidden, pitch;
  const float* weights;

  __device__ __forceinline__ OnCudaCores(const float* r, int unit, int hidden, int pitch, float* shared)
      : hidden(hidden), pitch(pitch), weights(shared) {
    const int row = threadIdx.x % ROWS, own = unit + row / PAD, gate = row % PAD;
    const float* from = r + ((long long)gate * hidden + own) * hidden;
    for (int k = threadIdx.x / ROWS; k < hidden; k += 256 / ROWS)
      shared[k * ROWS + row] = gate < GATES && own < hidden ? from[k] : 0.0f;
    __syncthreads();
  }
  __device__ __forceinline__ long long place(int b, int k) const { return (long long)k * pitch + b; }
  __device__ __forceinline__ long long size(int) const { return (long long)hidden * pitch; }
  __device__ __forceinline__ int busy() const { return 8; }
  __device__ __forceinline__ void add(float* to, const float* states, int begin, int) const {
    const int first_row = threadIdx.x % 32 / LANES * LANES, first = threadIdx.x % LANES * 4;
    const int share = (hidden + 7) / 8, from_k = threadIdx.x / 32 * share, to_k = min(hidden, from_k + share);
    float sums[LANES][4];
#pragma unroll
    for (int i = 0; i < LANES * 4; i++) sums[i / 4][i % 4] = 0.0f;
#pragma unroll 8
    for (int k = from_k; k < to_k; k++) {
      const float4 state = __ldcg((const float4*)(states + (long long)k * pitch + begin + first));
#pragma unroll
      for (int i = 0; i < LANES; i++) {
        const float w = weights[k * ROWS + first_row + i];
        sums[i][0] = fmaf(w, state.x, sums[i][0]);
        sums[i][1] = fmaf(w, state.y, sums[i][1]);
        sums[i][2] = fmaf(w, state.z, sums[i][2]);
        sums[i][3] = fmaf(w, state.w, sums[i][3]);
      }
    }
#pragma unroll
    for (int i = 0; i < LANES; i++)
      *(float4*)(to + (first_row + i) * STRIDE + first) = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
  }
};

// Steps `first` to `first + count` of a layer.
template <class Core, int CELL, int F, int G, int H, int BACKWARDS, bool ALL_STEPS, class X, class T, class S>
__device__ __forceinline__ void recurrent_many(const X* x, const T* r, const float* bias, const void* lengths, T* y,
                                               S* yh, S* yc, T* states, const void*, void* cells, const void*,
                                               void* counts, const void*, unsigned char* shared, const void*, int steps,
                                               int batch, int hidden, int directions, int blocks, int groups, int share,
                                               int pitch, int first) {
  typedef Ends<CELL, F, G, H, X, T, S> E;
  constexpr int GATES = E::GATES, UNITS = Core::ROWS / Core::PAD, BATCH = Core::BATCH, PAIRS = UNITS * BATCH;
  constexpr int EACH = (PAIRS + 255) / 256, PART = Core::ROWS * Core::STRIDE;
  const int group = blockIdx.x / blocks % groups, direction = blockIdx.x / (blocks * groups);
  const int unit = blockIdx.x % blocks * UNITS, from_b = group * share, to_b = min(batch, from_b + share);
  const bool is_back = BACKWARDS >> direction & 1;
  const E ends = {x, (const int*)lengths, y, yh, yc, (float*)cells, steps, batch, hidden, directions, direction};
  const Core core(r + (long long)direction * GATES * hidden * hidden, unit, hidden, pitch, (float*)shared + 16 * PART);
  unsigned* arrived = (unsigned*)counts + direction * groups + group;
  float biases[EACH][GATES];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int own = unit + (threadIdx.x + e * 256) / BATCH;
#pragma unroll
    for (int g = 0; g < GATES; g++)
      biases[e][g] = own < hidden ? bias[((long long)direction * GATES + g) * hidden + own] : 0.0f;
  }
  int odd = 0;  // which half of the shared memory: the other may still be read
#pragma unroll 1
  for (int step = first; step < (ALL_STEPS ? steps : first + 1); step++) {
    const int t = is_back ? steps - 1 - step : step;
    const T* before = states + (step % 2 * directions + direction) * core.size(batch);
    T* after = states + ((step + 1) % 2 * directions + direction) * core.size(batch);
#pragma unroll 1
    for (int begin = from_b; begin < to_b; begin += BATCH, odd ^= 1) {
      float in[EACH][GATES], cell[EACH], last[EACH];
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int pair = threadIdx.x + e * 256, own = unit + pair / BATCH, b = begin + pair % BATCH;
        const bool exists = pair < PAIRS && own < hidden && b < to_b;
        ends.read(in[e], t, b, own, exists);
        cell[e] = CELL == LSTM && exists ? ends.c[ends.at(b, own)] : 0.0f;
        last[e] = exists && (CELL == GRU || lengths) ? (float)fresh(before + core.place(b, own)) : 0.0f;
      }
      if (ALL_STEPS && begin == from_b && step > 0) {
        if (blocks > 1) wait_for(arrived, (unsigned)(blocks * step));
        else __syncthreads();
      }
      float* summed = (float*)shared + odd * (8 * PART);
      core.add(summed + threadIdx.x / 32 * PART, before, begin, to_b);
      __syncthreads();
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int pair = threadIdx.x + e * 256, own = unit + pair / BATCH, b = begin + pair % BATCH;
        if (pair >= PAIRS || own >= hidden || b >= to_b) continue;
        float total[GATES];
#pragma unroll
        for (int g = 0; g < GATES; g++) {
          total[g] = biases[e][g];
#pragma unroll
          for (int w = 0; w < 8; w++)
            if (w < core.busy())
              total[g] += summed[w * PART + (pair / BATCH * Core::PAD + g) * Core::STRIDE + pair % BATCH];
        }
        const float h = ends.finish(in[e], total, last[e], cell[e], t, b, own, step + 1 == steps);
        after[core.place(b, own)] = (T)h;
        if (CELL == LSTM) ends.c[ends.at(b, own)] = cell[e];
      }
    }
    if (ALL_STEPS && blocks > 1 && step + 1 < steps) {
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

"""CUDA C++ of recurrent layers of many sequences: a step is a product, by tensor cores or, in float32, without.

A block has all gates of some hidden units, ROWS rows of the weights, a row of zeros for the fourth gate of a GRU. Its
eight warps share the depth of the product; the thread that has a unit of a sequence adds what they summed, and does the
rest. Hidden states lie in two buffers that steps use in turn: what is read in one is written in the next. Groups of
sequences know nothing of one another: they wait for the blocks of their own group alone. Of a small layer one block has
all units, and its states lie in shared memory: in halves a warp has all of the depth, and a thread all gates of what it
finishes; in float32 a thread has a row of the weights in its registers.

    x [steps, batch, directions * G * hidden], r [directions, G * hidden, hidden], bias [directions, G * hidden],
    h0, c0, yh, yc, c [directions, batch, hidden], y [steps, directions, batch, hidden],
    states [2, directions, batch, pitch] of halves, [2, directions, hidden, pitch] of float32

Halves are read straight into fragments, whose depth is permuted in both operands alike so that a lane reads 16 bytes in
a row. A sequence that has ended, or not begun, keeps its state. Arguments without a name are ends of buffers, which TVM
makes as large as what it sees. Source: PTX ISA 8, mma.m16n8k16.
"""

from subtune.backends.cuda.operators.recurrent_source import RECURRENT
from subtune.backends.cuda.source.mma_sync import MMA_SYNC

RECURRENT_MANY = (
    MMA_SYNC
    + RECURRENT
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

// All steps of eight sequences of a small layer, in halves: 32 * CHUNKS is its depth, rounded up.
template <int CELL, int F, int G, int H, int BACKWARDS, int CHUNKS, int V, bool BRAIN, class X, class T, class S>
__device__ __forceinline__ void recurrent_small(const X* x, const T* r, const float* bias, const S* h0, const S* c0,
                                                const void* lengths, T* y, S* yh, S* yc, unsigned char* shared,
                                                const void*, int steps, int batch, int hidden, int directions,
                                                int groups) {
  typedef Ends<CELL, F, G, H, X, T, S> E;
  constexpr int GATES = E::GATES, TILES = CELL == RNN ? 1 : 2, OWN = CELL == RNN ? 2 : 1, UNITS = 8 * OWN;
  constexpr int PITCH = CHUNKS * 32 + (CHUNKS % 2 ? 0 : 32);  // rows side by side lie in different banks
  T* states = (T*)shared;                                     // [2][8][PITCH]
  const int group = blockIdx.x % groups, direction = blockIdx.x / groups, begin = group * 8;
  const int lane = threadIdx.x % 32, quad = lane / 4, depth = lane % 4 * 8, unit = threadIdx.x / 32 * UNITS + quad;
  const bool is_back = BACKWARDS >> direction & 1;
  const E ends = {x, (const int*)lengths, y, yh, yc, nullptr, steps, batch, hidden, directions, direction};
  const T* mine = r + (long long)direction * GATES * hidden * hidden;
  unsigned held[CHUNKS][TILES][2][4];
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      auto row = [&](int half) -> const T* {
        const int own = unit + (CELL == RNN ? half * 8 : 0), gate = CELL == RNN ? 0 : tile * 2 + half;
        return gate < GATES && own < hidden ? mine + ((long long)gate * hidden + own) * hidden : nullptr;
      };
      fragment<V>(held[chunk][tile], row(0), row(1), chunk * 32 + depth, hidden);
    }
  float biases[OWN][GATES], cell[OWN][2], last[OWN][2], in[OWN][2][GATES];
  auto read = [&](int step) {
    const int t = is_back ? steps - 1 - step : step;
#pragma unroll
    for (int i = 0; i < OWN * 2; i++) {
      const int own = unit + i / 2 * 8, b = begin + lane % 4 * 2 + i % 2;
      ends.read(in[i / 2][i % 2], t, b, own, own < hidden && b < batch && step < steps);
    }
  };
  for (int i = threadIdx.x; i < 16 * PITCH; i += blockDim.x) {
    const int b = begin + i / PITCH, k = i % PITCH;
    const bool exists = i < 8 * PITCH && b < batch && k < hidden;
    states[i] = (T)(exists ? (float)h0[ends.at(b, k)] : 0.0f);
  }
#pragma unroll
  for (int o = 0; o < OWN; o++) {
    const int own = unit + o * 8;
#pragma unroll
    for (int g = 0; g < GATES; g++) biases[o][g] = own < hidden ? bias[(direction * GATES + g) * hidden + own] : 0.0f;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int b = begin + lane % 4 * 2 + e;
      const bool exists = own < hidden && b < batch;
      last[o][e] = exists ? (float)(T)(float)h0[ends.at(b, own)] : 0.0f;
      cell[o][e] = CELL == LSTM && exists ? (float)c0[ends.at(b, own)] : 0.0f;
    }
  }
  read(0);
  __syncthreads();
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const int t = is_back ? steps - 1 - step : step;
    const T* before = states + step % 2 * (8 * PITCH);
    T* after = states + (step + 1) % 2 * (8 * PITCH);
    float sums[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES * 4; i++) sums[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      const uint4 state = *(const uint4*)(before + quad * PITCH + chunk * 32 + depth);
      const unsigned right[4] = {state.x, state.y, state.z, state.w};
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        mma<BRAIN>(sums[tile], held[chunk][tile][0], right);
        mma<BRAIN>(sums[tile], held[chunk][tile][1], right + 2);
      }
    }
#pragma unroll
    for (int i = 0; i < OWN * 2; i++) {
      const int o = i / 2, e = i % 2, own = unit + o * 8, column = lane % 4 * 2 + e, b = begin + column;
      if (own >= hidden || b >= batch) continue;
      float total[GATES];
#pragma unroll
      for (int g = 0; g < GATES; g++)
        total[g] = biases[o][g] + (CELL == RNN ? sums[0][o * 2 + e] : sums[g / 2][g % 2 * 2 + e]);
      const float h = ends.finish(in[o][e], total, last[o][e], cell[o][e], t, b, own, step + 1 == steps);
      const T rounded = (T)h;
      after[column * PITCH + own] = rounded;
      last[o][e] = (float)rounded;
    }
    read(step + 1);
    __syncthreads();
  }
}

// A row of weights, and its products with states: no loops, which the compiler unrolls up to some length and no more,
// and registers have no index.
template <int QUADS, int K = 0>
__device__ __forceinline__ void hold(float (&weights)[QUADS][4], const float* row, int hidden) {
#pragma unroll
  for (int i = 0; i < 4; i++) weights[K][i] = K * 4 + i < hidden ? row[K * 4 + i] : 0.0f;
  if constexpr (K + 1 < QUADS) hold<QUADS, K + 1>(weights, row, hidden);
}

template <int QUADS, int SEQUENCES, int PARTS, int K = 0>
__device__ __forceinline__ void add_row(float (&sums)[SEQUENCES][PARTS], const float (&weights)[QUADS][4],
                                        const float* states) {
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
    const float4 state = *(const float4*)(states + (s * QUADS + K) * 4);
    sums[s][0] = fmaf(weights[K][0], state.x, sums[s][0]);
    sums[s][1 % PARTS] = fmaf(weights[K][1], state.y, sums[s][1 % PARTS]);
    sums[s][2 % PARTS] = fmaf(weights[K][2], state.z, sums[s][2 % PARTS]);
    sums[s][3 % PARTS] = fmaf(weights[K][3], state.w, sums[s][3 % PARTS]);
  }
  if constexpr (K + 1 < QUADS) add_row<QUADS, SEQUENCES, PARTS, K + 1>(sums, weights, states);
}

// All steps of SEQUENCES of a small layer, in float32: 4 * QUADS is its depth, rounded up; a thread for every row.
template <int CELL, int F, int G, int H, int BACKWARDS, int QUADS, int SEQUENCES, class X, class S>
__device__ __forceinline__ void recurrent_rows(const X* x, const float* r, const float* bias, const S* h0, const S* c0,
                                               const void* lengths, float* y, S* yh, S* yc, unsigned char* shared,
                                               const void*, int steps, int batch, int hidden, int directions,
                                               int groups) {
  typedef Ends<CELL, F, G, H, X, float, S> E;
  constexpr int GATES = E::GATES, EACH = (SEQUENCES + GATES - 1) / GATES, WIDTH = QUADS * 4;
  constexpr int PARTS = SEQUENCES > 2 ? 1 : 2;  // of a sum: they do not wait for one another; four go to memory
  const int rows = GATES * hidden, row = threadIdx.x;
  const int direction = blockIdx.x / groups, begin = blockIdx.x % groups * SEQUENCES;
  const bool is_back = BACKWARDS >> direction & 1;
  const E ends = {x, (const int*)lengths, y, yh, yc, nullptr, steps, batch, hidden, directions, direction};
  float* states = (float*)shared;                // [SEQUENCES][WIDTH]
  float* totals = states + SEQUENCES * WIDTH;  // [SEQUENCES][rows]
  float weights[QUADS][4];
  hold(weights, r + ((long long)direction * rows + min(row, rows - 1)) * hidden, hidden);
  const float own_bias = row < rows ? bias[direction * rows + row] : 0.0f;
  float cell[EACH], last[EACH], in[EACH][GATES];
  auto exists = [&](int pair) { return pair < SEQUENCES * hidden && begin + pair / hidden < batch; };
  auto read = [&](int step) {
    const int t = is_back ? steps - 1 - step : step;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int pair = threadIdx.x + e * blockDim.x;
      ends.read(in[e], t, begin + pair / hidden, pair % hidden, exists(pair) && step < steps);
    }
  };
  for (int i = threadIdx.x; i < SEQUENCES * WIDTH; i += blockDim.x) {
    const int b = begin + i / WIDTH, k = i % WIDTH;
    states[i] = b < batch && k < hidden ? (float)h0[ends.at(b, k)] : 0.0f;
  }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int pair = threadIdx.x + e * blockDim.x;
    const long long at = exists(pair) ? ends.at(begin + pair / hidden, pair % hidden) : 0;
    last[e] = exists(pair) ? (float)h0[at] : 0.0f;
    cell[e] = CELL == LSTM && exists(pair) ? (float)c0[at] : 0.0f;
  }
  read(0);
  __syncthreads();
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const int t = is_back ? steps - 1 - step : step;
    float sums[SEQUENCES][PARTS];
#pragma unroll
    for (int i = 0; i < SEQUENCES * PARTS; i++) sums[i / PARTS][i % PARTS] = i % PARTS ? 0.0f : own_bias;
    add_row(sums, weights, states);
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
#pragma unroll
      for (int i = 1; i < PARTS; i++) sums[s][0] += sums[s][i];
      if (row < rows) totals[s * rows + row] = sums[s][0];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int pair = threadIdx.x + e * blockDim.x, s = pair / hidden, own = pair % hidden;
      if (!exists(pair)) continue;
      float total[GATES];
#pragma unroll
      for (int g = 0; g < GATES; g++) total[g] = totals[s * rows + g * hidden + own];
      last[e] = ends.finish(in[e], total, last[e], cell[e], t, begin + s, own, step + 1 == steps);
      states[s * WIDTH + own] = last[e];
    }
    read(step + 1);
    __syncthreads();
  }
}
}  // namespace subtune
#endif
"""
)

"""CUDA C++ of small recurrent layers: a block has all units, and few sequences; it waits for no other.

States lie in shared memory. In halves a warp has all of the depth, and a thread all gates of what it finishes: a row of
the product's tile is a gate of a unit. In float32 a thread has a row of the weights in its registers.
"""

from subtune.backends.cuda.operators.recurrent_parts_source import RECURRENT_PARTS

RECURRENT_SMALL = (
    RECURRENT_PARTS
    + r"""
#ifndef SUBTUNE_RECURRENT_SMALL
#define SUBTUNE_RECURRENT_SMALL
namespace subtune {
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

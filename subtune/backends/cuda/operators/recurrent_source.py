"""CUDA C++ of recurrent layers (LSTM, GRU with the reset after the product, RNN): a step, or all of them.

A warp has UNITS hidden units and all their gates: its lanes share the product of the last hidden states with the rows
of these gates, and one lane for every unit and sequence does the rest. The hidden states are read from the output of
the step before. All steps in one kernel: between two steps the blocks of a direction wait for one another, which needs
all of them on the device at once; then a lane keeps its part of the weights in registers.

    x [steps, batch, directions * G * hidden], r [directions, G * hidden, hidden], bias [directions, G * hidden],
    h0, c0, yh, yc, c [directions, batch, hidden], y [steps, directions, batch, hidden]

Arguments without a name are ends of buffers, which TVM makes as large as what it sees.
"""

from subtune.backends.cuda.lowering.float_functions import SHORT_FUNCTIONS

RECURRENT = (
    SHORT_FUNCTIONS
    + r"""
#ifndef SUBTUNE_RECURRENT
#define SUBTUNE_RECURRENT
namespace subtune {
enum Cell { RNN, GRU, LSTM };
enum Activation { SIGMOID, TANH, RELU, SHORT_SIGMOID, SHORT_TANH };  // short ones are right to the bits of a half
struct Layer { int steps, batch, hidden, directions; };

template <int F> __device__ __forceinline__ float activated(float x) {
  if constexpr (F == SIGMOID) return 1.0f / (1.0f + expf(-x));
  else if constexpr (F == TANH) return tanhf(x);
  else if constexpr (F == SHORT_SIGMOID) return subtune_sigmoid(x);
  else if constexpr (F == SHORT_TANH) return subtune_tanh(x);
  else return x < 0.0f ? 0.0f : x;  // NaN stays
}

// The hidden state of one unit of one sequence, of its gates' products; `cell` becomes what it is then.
template <int CELL, int F, int G, int H, int GATES>
__device__ __forceinline__ float next_state(const float (&in)[GATES], const float (&total)[GATES], float last,
                                            float& cell) {
  if constexpr (CELL == LSTM) {
    const float i = activated<F>(in[0] + total[0]), o = activated<F>(in[1] + total[1]);
    const float forget = activated<F>(in[2] + total[2]);
    cell = forget * cell + i * activated<G>(in[3] + total[3]);
    return o * activated<H>(cell);
  } else if constexpr (CELL == GRU) {
    const float z = activated<F>(in[0] + total[0]), reset = activated<F>(in[1] + total[1]);
    return (1.0f - z) * activated<G>(in[2] + reset * total[2]) + z * last;
  } else return activated<F>(in[0] + total[0]);
}

template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

// The sums over a warp of N values, a power of two, up to 32: that of value i to lane i * (32 / N).
template <int N> __device__ __forceinline__ float spread_sums(float (&v)[N]) {
  const int lane = threadIdx.x % 32;
  int n = N;
#pragma unroll
  for (int by = 16; by; by /= 2) {
    if (n > 1) {
      n /= 2;
#pragma unroll
      for (int i = 0; i < N / 2; i++)
        if (i < n) {
          const float given = lane & by ? v[i] : v[i + n], kept = lane & by ? v[i + n] : v[i];
          v[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, by);
        }
    } else v[0] += __shfl_xor_sync(0xFFFFFFFFu, v[0], by);
  }
  return v[0];
}

// What another block may have written since this one read its neighbour: not from the multiprocessor's own cache.
template <class T> __device__ __forceinline__ T fresh(const T* from) {
  if constexpr (sizeof(T) == 4) return __ldcg(from);
  else {
    const unsigned short bits = __ldcg((const unsigned short*)from);
    return *(const T*)&bits;
  }
}

// Waits until `count` blocks have arrived; a wait of seconds means that some never will.
__device__ __forceinline__ void wait_for(const unsigned* arrived, unsigned count) {
  if (threadIdx.x == 0) {
    const long long begin = clock64();
    while (*(const volatile unsigned*)arrived < count) {
      __nanosleep(20);
      if (clock64() - begin > 8000000000ll) __trap();
    }
    __threadfence();
  }
  __syncthreads();
}

__device__ __forceinline__ void none_arrived(unsigned* arrived, const void*) { arrived[threadIdx.x] = 0; }

// Steps `first` to `first + count` of a layer. A block has WARPS * UNITS units of one direction; CHUNKS packs of V
// weights are a lane's part of a row; BATCH sequences at a time. IN_REGISTERS: the weights are read once.
template <int CELL, int F, int G, int H, int BACKWARDS, int WARPS, int UNITS, int CHUNKS, int V, int BATCH,
          bool IN_REGISTERS, bool ALL_STEPS, class X, class T, class S>
__device__ __forceinline__ void recurrent(const X* x, const T* r, const float* bias, const S* h0, const S* c0,
                                          const void* ends, T* y, S* yh, S* yc, void* cells, const void*,
                                          void* counts, const void*, unsigned char* shared, const void*,
                                          int steps, int batch, int hidden, int directions, int blocks, int first) {
  constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1, PAD = CELL == RNN ? 1 : 4;
  constexpr int PAIRS = UNITS * BATCH, N = PAIRS * PAD, WIDTH = CHUNKS * 32 * V;
  static_assert(N <= 32, "a lane for every sum");
  typedef Pack<T, V> P;
  const int* lengths = (const int*)ends;
  float* c = (float*)cells;
  unsigned* arrived = (unsigned*)counts;
  T* last = (T*)shared;  // [BATCH][WIDTH]: the hidden states before the step
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int direction = blockIdx.x / blocks, unit = (blockIdx.x % blocks * WARPS + warp) * UNITS;
  const bool is_back = BACKWARDS >> direction & 1;
  r += (long long)direction * GATES * hidden * hidden;
  const int own = unit + lane / BATCH;  // of the lanes that have a unit of a sequence
  const bool has_own = lane < PAIRS && own < hidden;
  auto weights = [&](int u, int g, int chunk) {
    const int k = (chunk * 32 + lane) * V;
    P pack;
    if (k < hidden && unit + u < hidden) pack = *(const P*)(r + (long long)(g * hidden + unit + u) * hidden + k);
    else
      for (int i = 0; i < V; i++) pack.at[i] = (T)0.0f;
    return pack;
  };
  P held[IN_REGISTERS ? UNITS * GATES * CHUNKS : 1];
  if constexpr (IN_REGISTERS) {
#pragma unroll
    for (int i = 0; i < UNITS * GATES * CHUNKS; i++)
      held[i] = weights(i / (GATES * CHUNKS), i / CHUNKS % GATES, i % CHUNKS);
  }
  float biases[GATES];
#pragma unroll
  for (int g = 0; g < GATES; g++) biases[g] = has_own ? bias[(direction * GATES + g) * hidden + own] : 0.0f;
#pragma unroll 1
  for (int step = first; step < (ALL_STEPS ? steps : first + 1); step++) {
    const int t = is_back ? steps - 1 - step : step;
#pragma unroll 1
    for (int begin = 0; begin < batch; begin += BATCH) {
      const int b = begin + lane % BATCH;
      const bool is_own = has_own && b < batch;
      const long long at = ((long long)direction * batch + b) * hidden + own;
      const int length = lengths && is_own ? lengths[b] : steps;
      float in[GATES], cell = 0.0f;
      const X* row = x + (((long long)t * batch + b) * directions + direction) * GATES * hidden + own;
#pragma unroll
      for (int g = 0; g < GATES; g++) in[g] = is_own ? (float)row[g * hidden] : 0.0f;
      const bool begins = step == 0 || (is_back && t + 1 >= length);
      if constexpr (CELL == LSTM) {
        if (is_own) cell = begins ? (float)c0[at] : c[at];
      }
      if (ALL_STEPS && begin == 0 && step > 0) wait_for(arrived + direction, (unsigned)(blocks * step));
      else __syncthreads();
      for (int i = threadIdx.x; i < BATCH * CHUNKS * 32; i += WARPS * 32) {
        const int row = begin + i / (CHUNKS * 32), k = i % (CHUNKS * 32) * V;
        P pack;
        for (int j = 0; j < V; j++) pack.at[j] = (T)0.0f;
        if (row < batch && k < hidden) {
          if (step == 0 || (lengths && is_back && t + 1 >= lengths[row])) {
            const S* from = h0 + ((long long)direction * batch + row) * hidden + k;
            for (int j = 0; j < V; j++) pack.at[j] = (T)(float)from[j];
          } else {
            const int before = is_back ? t + 1 : t - 1;
            const T* from = y + (((long long)before * directions + direction) * batch + row) * hidden + k;
            if constexpr (sizeof(P) == 16) {
              const uint4 word = __ldcg((const uint4*)from);
              pack = *(const P*)&word;
            } else for (int j = 0; j < V; j++) pack.at[j] = fresh(from + j);
          }
        }
        *(P*)(last + i * V) = pack;
      }
      __syncthreads();
      float sums[N];
#pragma unroll
      for (int i = 0; i < N; i++) sums[i] = 0.0f;
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; chunk++) {
        P state[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) state[j] = *(const P*)(last + j * WIDTH + (chunk * 32 + lane) * V);
#pragma unroll
        for (int u = 0; u < UNITS; u++)
#pragma unroll
          for (int g = 0; g < GATES; g++) {
            const P w = IN_REGISTERS ? held[IN_REGISTERS ? (u * GATES + g) * CHUNKS + chunk : 0] : weights(u, g, chunk);
#pragma unroll
            for (int j = 0; j < BATCH; j++)
#pragma unroll
              for (int v = 0; v < V; v++) sums[(u * BATCH + j) * PAD + g] += (float)w.at[v] * (float)state[j].at[v];
          }
      }
      const float sum = spread_sums(sums);
      float total[GATES];
#pragma unroll
      for (int g = 0; g < GATES; g++)
        total[g] = __shfl_sync(0xFFFFFFFFu, sum, (lane * PAD + g) * (32 / N) % 32) + biases[g];
      if (!is_own) continue;
      const float before = CELL == GRU ? (float)last[lane % BATCH * WIDTH + own] : 0.0f;
      const float h = next_state<CELL, F, G, H>(in, total, before, cell);
      const bool is_alive = t < length;
      y[(((long long)t * directions + direction) * batch + b) * hidden + own] = (T)(is_alive ? h : 0.0f);
      if (CELL == LSTM && is_alive) c[at] = cell;
      if (is_alive && t == (is_back ? 0 : length - 1)) {
        yh[at] = (S)h;
        if constexpr (CELL == LSTM) yc[at] = (S)cell;
      }
      if (length <= 0 && step == 0) {
        yh[at] = h0[at];
        if constexpr (CELL == LSTM) yc[at] = c0[at];
      }
    }
    if (ALL_STEPS && step + 1 < steps) {
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived + direction, 1u);
      }
    }
  }
}
}  // namespace subtune
#endif
"""
)

"""CUDA C++ of running sums and products along an axis, in one kernel or, of long lines, in two: parts, then all.

    rows      a block has a row, or a part of it: neighbours in a warp hold neighbouring elements
    columns   a thread has a column of the array [outer, n, inner], or a part of it

The totals of the parts are known to the second kernel, which adds up those before its own. Arguments without a name are
ends of buffers, which TVM makes as large as what it sees.
"""

SCANS = r"""
#ifndef SUBTUNE_SCANS
#define SUBTUNE_SCANS
namespace subtune {
struct Sum {
  static constexpr int FIRST = 0;
  template <class A> static __device__ __forceinline__ A of(A x, A y) { return x + y; }
};
struct Product {
  static constexpr int FIRST = 1;
  template <class A> static __device__ __forceinline__ A of(A x, A y) { return x * y; }
};

// The total of what the threads before this one have; `total` becomes that of all. `shared`: a value for every warp.
template <class Op, int THREADS, class A> __device__ __forceinline__ A before_of(A own, A* shared, A& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  A upto = own;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    A other = __shfl_up_sync(0xFFFFFFFFu, upto, by);
    if (lane >= by) upto = Op::of(other, upto);
  }
  A before = __shfl_up_sync(0xFFFFFFFFu, upto, 1);
  if (lane == 0) before = (A)Op::FIRST;
  __syncthreads();
  if (lane == 31) shared[warp] = upto;
  __syncthreads();
  A warps = (A)Op::FIRST, all = (A)Op::FIRST;
#pragma unroll
  for (int w = 0; w < THREADS / 32; w++) {
    if (w == warp) warps = all;
    all = Op::of(all, shared[w]);
  }
  total = all;
  return Op::of(warps, before);
}

// The total of every part of every row.
template <class Op, class A, int THREADS, int PARTS, class T>
__device__ __forceinline__ void row_parts(const T* x, void* totals, const void*, int n, int length) {
  __shared__ A shared[THREADS / 32];
  const int begin = blockIdx.x % PARTS * length, end = begin + length < n ? begin + length : n;
  x += (long long)(blockIdx.x / PARTS) * n;
  A own = (A)Op::FIRST, total;
  for (int i = begin + threadIdx.x; i < end; i += THREADS) own = Op::of(own, (A)x[i]);
  before_of<Op, THREADS>(own, shared, total);
  if (threadIdx.x == 0) ((A*)totals)[blockIdx.x] = total;
}

template <class Op, class A, int THREADS, int ITEMS, int PARTS, bool EXCLUSIVE, class T, class Y>
__device__ __forceinline__ void scan_rows(const T* x, Y* y, const void* totals, const void*, int n, int length) {
  __shared__ A shared[THREADS / 32];
  const int t = threadIdx.x, lane = t % 32, part = blockIdx.x % PARTS;
  const int begin = part * length, end = begin + length < n ? begin + length : n;
  x += (long long)(blockIdx.x / PARTS) * n;
  y += (long long)(blockIdx.x / PARTS) * n;
  A so_far = (A)Op::FIRST;
  if constexpr (PARTS > 1) {
    A own = (A)Op::FIRST;
    for (int p = t; p < part; p += THREADS) own = Op::of(own, ((const A*)totals)[blockIdx.x - part + p]);
    before_of<Op, THREADS>(own, shared, so_far);
  }
#pragma unroll 1
  for (int tile = begin; tile < end; tile += THREADS * ITEMS) {
    const int first = tile + t / 32 * (32 * ITEMS) + lane;
    A upto[ITEMS], before[ITEMS], own = (A)Op::FIRST;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) upto[j] = first + j * 32 < end ? (A)x[first + j * 32] : (A)Op::FIRST;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        A other = __shfl_up_sync(0xFFFFFFFFu, upto[j], by);
        if (lane >= by) upto[j] = Op::of(other, upto[j]);
      }
      if constexpr (EXCLUSIVE) {
        before[j] = __shfl_up_sync(0xFFFFFFFFu, upto[j], 1);
        before[j] = lane == 0 ? own : Op::of(own, before[j]);
      }
      upto[j] = Op::of(own, upto[j]);
      own = __shfl_sync(0xFFFFFFFFu, upto[j], 31);
    }
    A total, warps = before_of<Op, THREADS>(lane == 31 ? own : (A)Op::FIRST, shared, total);
    warps = Op::of(so_far, __shfl_sync(0xFFFFFFFFu, warps, 0));
#pragma unroll
    for (int j = 0; j < ITEMS; j++)
      if (first + j * 32 < end) y[first + j * 32] = (Y)Op::of(warps, EXCLUSIVE ? before[j] : upto[j]);
    so_far = Op::of(so_far, total);
  }
}

template <class Op, class A, int THREADS, int PARTS, class T>
__device__ __forceinline__ void column_parts(const T* x, void* totals, const void*, int n, int length, int inner,
                                             int columns) {
  const long long own = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (own >= (long long)columns * PARTS) return;
  const long long part = own / inner % PARTS, outer = own / inner / PARTS;
  const int begin = (int)part * length, end = begin + length < n ? begin + length : n;
  x += outer * n * inner + own % inner;
  A sum = (A)Op::FIRST;
#pragma unroll 8
  for (int i = begin; i < end; i++) sum = Op::of(sum, (A)x[(long long)i * inner]);
  ((A*)totals)[own] = sum;
}

template <class Op, class A, int THREADS, int PARTS, bool EXCLUSIVE, class T, class Y>
__device__ __forceinline__ void scan_columns(const T* x, Y* y, const void* totals, const void*, int n, int length,
                                             int inner, int columns) {
  const long long own = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (own >= (long long)columns * PARTS) return;
  const long long part = own / inner % PARTS, outer = own / inner / PARTS;
  const int begin = (int)part * length, end = begin + length < n ? begin + length : n;
  x += outer * n * inner + own % inner;
  y += outer * n * inner + own % inner;
  A sum = (A)Op::FIRST;
  if constexpr (PARTS > 1)
    for (int p = 0; p < part; p++) sum = Op::of(sum, ((const A*)totals)[own - (part - p) * inner]);
#pragma unroll 1
  for (int i = begin; i < end; i += 8) {
    A next[8];
#pragma unroll
    for (int j = 0; j < 8; j++) next[j] = i + j < end ? (A)x[(long long)(i + j) * inner] : (A)Op::FIRST;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      A upto = Op::of(sum, next[j]);
      if (i + j < end) y[(long long)(i + j) * inner] = (Y)(EXCLUSIVE ? sum : upto);
      sum = upto;
    }
  }
}
}  // namespace subtune
#endif
"""

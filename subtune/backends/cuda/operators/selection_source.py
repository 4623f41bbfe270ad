"""CUDA C++ of the first few along an axis, by selection: `first_of_rows` and `merged_rows`.

A block has a row or a part of it: counts of digits, the first digit first, until the k first are known; these alone are
sorted. Of a row in parts, another kernel sorts what the parts have found. Keys, order and places are those of
`sorting_source`, whose text comes before.
"""

SELECTION = r"""
#ifndef SUBTUNE_SELECTION
#define SUBTUNE_SELECTION
namespace subtune {
// By one warp where they are few: its barriers cost less than its loops.
template <int SIZE, int THREADS> __device__ __forceinline__ void sort_pairs(Pair* pairs) {
  constexpr int SORTING = SIZE <= 256 ? 32 : THREADS;
  __syncthreads();
#pragma unroll 1
  for (int size = 2; size <= SIZE && threadIdx.x < SORTING; size *= 2)
#pragma unroll 1
    for (int step = size / 2; step; step /= 2) {
      if constexpr (SORTING == 32) __syncwarp();
      else __syncthreads();
      for (int i = threadIdx.x; i < SIZE / 2; i += SORTING) {
        int a = i / step * 2 * step + i % step, b = a + step;
        Pair x = pairs[a], y = pairs[b];
        if ((x > y) == !(a & size)) {
          pairs[a] = y;
          pairs[b] = x;
        }
      }
    }
  __syncthreads();
}

template <int THREADS, bool HAS_VALUES, bool HAS_PLACES, class T, class I>
__device__ __forceinline__ void store_first(const Pair* pairs, const T* x, T* values, I* places, long long row, int n,
                                            int k, int inner) {
  const long long begin = row_begin(row, n, inner), to = row_begin(row, k, inner);
  for (int i = threadIdx.x; i < k; i += THREADS) {
    unsigned p = (unsigned)pairs[i];
    if constexpr (HAS_VALUES) values[to + (long long)i * inner] = x[begin + (long long)p * inner];
    if constexpr (HAS_PLACES) places[to + (long long)i * inner] = (I)p;
  }
}

// The pairs of the first k elements of part `blockIdx.x % PARTS` of a row: sorted and stored if it is the only part,
// else left to `merged_rows`. SIZE is a power of two, and at least k.
template <bool LARGEST, int THREADS, int ITEMS, int PARTS, int SIZE, bool HAS_VALUES, bool HAS_PLACES, class T, class I>
__device__ __forceinline__ void first_of_rows(const T* x, T* values, I* places, void* found, const void*, int n, int k,
                                              int inner) {
  constexpr int COPIES = THREADS > 256 ? 32 : 8, WARPS = THREADS / 32;
  __shared__ int histogram[256 * COPIES], totals[256], chosen[3], taken, of_warps[WARPS];
  __shared__ Pair pairs[SIZE];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const long long row = blockIdx.x / PARTS;
  constexpr int MOST = THREADS * ITEMS;
  const int begin = blockIdx.x % PARTS * MOST, count = n - begin < MOST ? n - begin : MOST;
  const T* own = x + row_begin(row, n, inner) + (long long)begin * inner;
  unsigned key[ITEMS], prefix = 0, mask = 0;
#pragma unroll
  for (int j = 0; j < ITEMS; j++) {
    int p = j * THREADS + t;
    key[j] = p < count ? key_of<LARGEST>(own[(long long)p * inner]) : ~0u;
  }
  for (int i = t; i < SIZE; i += THREADS) pairs[i] = ~(Pair)0;
  if (t == 0) taken = 0;
  int rest = k;
  bool is_all = k >= count;  // of those that begin with the prefix
#pragma unroll 1
  for (int shift = 24; shift >= Key<T>::LOW && !is_all; shift -= 8) {
    for (int i = t; i < 256 * COPIES; i += THREADS) histogram[i] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++)
      if (j * THREADS + t < count && (key[j] & mask) == prefix)
        atomicAdd(&histogram[(key[j] >> shift & 255) * COPIES + lane % COPIES], 1);
    __syncthreads();
    for (int d = t; d < 256; d += THREADS) {
      int sum = 0;
#pragma unroll
      for (int c = 0; c < COPIES; c++) sum += histogram[d * COPIES + (c + d) % COPIES];
      totals[d] = sum;
      histogram[d * COPIES] = sum;
    }
    __syncthreads();
    if (warp == 0) {
      lower_digits(totals, lane);
      for (int i = 0; i < 8; i++) {
        int d = lane * 8 + i, lower = totals[d], same = histogram[d * COPIES];
        if (lower < rest && rest <= lower + same) {
          chosen[0] = d;
          chosen[1] = rest - lower;
          chosen[2] = same;
        }
      }
    }
    __syncthreads();
    prefix |= (unsigned)chosen[0] << shift;
    mask |= 255u << shift;
    rest = chosen[1];
    is_all = chosen[1] == chosen[2];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS; j++) {
    int p = j * THREADS + t;
    unsigned own_prefix = key[j] & mask;
    if (p < count && (own_prefix < prefix || (own_prefix == prefix && is_all)))
      pairs[atomicAdd(&taken, 1)] = (Pair)key[j] << 32 | (unsigned)(begin + p);
  }
  if (!is_all) {  // equal ones, of which not all are wanted: the foremost
    int so_far = 0;
#pragma unroll 1
    for (int p = t; p - t < count && so_far < rest; p += THREADS) {
      unsigned same = p < count ? key_of<LARGEST>(own[(long long)p * inner]) : ~prefix;
      bool is_one = p < count && (same & mask) == prefix;
      unsigned ones = __ballot_sync(0xFFFFFFFFu, is_one);
      if (lane == 0) of_warps[warp] = __popc(ones);
      __syncthreads();
      int before = so_far + __popc(ones & ((1u << lane) - 1));
      for (int w = 0; w < WARPS; w++) {
        before += w < warp ? of_warps[w] : 0;
        so_far += of_warps[w];
      }
      if (is_one && before < rest) pairs[k - rest + before] = (Pair)same << 32 | (unsigned)(begin + p);
      __syncthreads();
    }
  }
  if constexpr (PARTS > 1) {
    __syncthreads();
    for (int i = t; i < k; i += THREADS) ((Pair*)found)[(long long)blockIdx.x * k + i] = pairs[i];
  } else {
    sort_pairs<SIZE, THREADS>(pairs);
    store_first<THREADS, HAS_VALUES, HAS_PLACES>(pairs, x, values, places, row, n, k, inner);
  }
}

template <int THREADS, int PARTS, int SIZE, bool HAS_VALUES, bool HAS_PLACES, class T, class I>
__device__ __forceinline__ void merged_rows(const T* x, T* values, I* places, const void* found, const void*, int n,
                                            int k, int inner) {
  __shared__ Pair pairs[SIZE];
  for (int i = threadIdx.x; i < SIZE; i += THREADS)
    pairs[i] = i < PARTS * k ? ((const Pair*)found)[(long long)blockIdx.x * PARTS * k + i] : ~(Pair)0;
  sort_pairs<SIZE, THREADS>(pairs);
  store_first<THREADS, HAS_VALUES, HAS_PLACES>(pairs, x, values, places, blockIdx.x, n, k, inner);
}
}  // namespace subtune
#endif
"""

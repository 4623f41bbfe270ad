"""CUDA C++ of sorting along an axis: whole rows by digits, short rows within a warp.

    short   a warp has a row: an element's place is the number of elements that come before it
    sorted  a block has a row: by digits of 8 bits, the last digit first; what is equal keeps its order. Of a row in
            parts, another kernel counts for each element how many of the other parts come before it
    first   the first few of a row: `selection_source`

An element comes before another that is less (`LARGEST`: greater), or as large and further back. Its number in the row
rides along in 16 bits, or in the lower half of 64 bits below its key. NaN is the largest of all, -0 equals 0. Arguments
without a name are ends of buffers, which TVM makes as large as what it sees.
"""

SORTING = r"""
#ifndef SUBTUNE_SORTING
#define SUBTUNE_SORTING
namespace subtune {
typedef unsigned long long Pair;

// Values as unsigned numbers in the same order; the lowest LOW bits are zero.
template <class T> struct Key {
  static constexpr int LOW = 0;
  static __device__ __forceinline__ auto of(T x) {
    constexpr bool is_signed = T(-1) < T(0);
    if constexpr (sizeof(T) == 8) return (Pair)x ^ (is_signed ? 1ull << 63 : 0);
    else return (unsigned)x ^ (is_signed ? 0x80000000u : 0u);
  }
};
template <> struct Key<float> {
  static constexpr int LOW = 0;
  static __device__ __forceinline__ unsigned of(float x) {
    int bits = __float_as_int(x + 0.0f);
    return x != x ? 0xFFFFFFFFu : bits < 0 ? ~(unsigned)bits : (unsigned)bits | 0x80000000u;
  }
};
template <class T, unsigned INFINITE> struct HalfKey {
  static constexpr int LOW = 16;
  static __device__ __forceinline__ unsigned of(T x) {
    unsigned bits = *(const unsigned short*)&x, size = bits & 0x7FFF;
    return size > INFINITE ? 0xFFFF0000u : (bits >> 15 ? 0x8000 - size : 0x8000 + size) << 16;
  }
};
#ifdef __CUDA_FP16_TYPES_EXIST__
template <> struct Key<__half> : HalfKey<__half, 0x7C00> {};
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
template <> struct Key<__nv_bfloat16> : HalfKey<__nv_bfloat16, 0x7F80> {};
#endif

template <bool LARGEST, class T> __device__ __forceinline__ auto key_of(T x) {
  auto key = Key<T>::of(x);
  return LARGEST ? (decltype(key))~key : key;
}

// Where a block's or a warp's row begins, in elements of an array [outer, n, inner].
__device__ __forceinline__ long long row_begin(long long row, int n, int inner) {
  return row / inner * n * inner + row % inner;
}

// For each of 256 digits, how many elements have a lower one. By all threads; barriers round it are the caller's.
__device__ __forceinline__ void lower_digits(int* totals, int lane) {
  int own[8], sum = 0;
  for (int i = 0; i < 8; i++) sum += own[i] = totals[lane * 8 + i];
  int before = sum;
  for (int by = 1; by < 32; by *= 2) {
    int other = __shfl_up_sync(0xFFFFFFFFu, before, by);
    if (lane >= by) before += other;
  }
  before -= sum;
  for (int i = 0; i < 8; i++) {
    totals[lane * 8 + i] = before;
    before += own[i];
  }
}

__device__ __forceinline__ unsigned lanes_with(unsigned digit) {
  unsigned same = 0xFFFFFFFFu;
#pragma unroll
  for (int bit = 0; bit < 8; bit++) {
    unsigned ones = __ballot_sync(0xFFFFFFFFu, digit >> bit & 1);
    same &= digit >> bit & 1 ? ones : ~ones;
  }
  return same;
}

template <bool LARGEST, int WARPS, int ITEMS, bool HAS_VALUES, bool HAS_PLACES, class T, class I>
__device__ __forceinline__ void short_rows(const T* x, T* values, I* places, int rows, int n, int k, int inner) {
  const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
  const long long begin = row_begin(row < rows ? row : rows - 1, n, inner);
  const long long to = row_begin(row < rows ? row : rows - 1, k, inner);
  typedef decltype(Key<T>::of(T())) U;
  T own[ITEMS];
  U key[ITEMS];
  int place[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; j++) {
    int p = j * 32 + lane;
    own[j] = x[begin + (long long)(p < n ? p : n - 1) * inner];
    key[j] = key_of<LARGEST>(own[j]);
    place[j] = 0;
  }
#pragma unroll
  for (int o = 0; o < ITEMS; o++)
    for (int from = 0; from < 32; from++) {
      U other = __shfl_sync(0xFFFFFFFFu, key[o], from);
#pragma unroll
      for (int j = 0; j < ITEMS; j++) {
        bool is_before = other < key[j] || (other == key[j] && o * 32 + from < j * 32 + lane);
        place[j] += o * 32 + from < n && is_before;
      }
    }
#pragma unroll
  for (int j = 0; j < ITEMS; j++)
    if (row < rows && j * 32 + lane < n && place[j] < k) {
      if constexpr (HAS_VALUES) values[to + (long long)place[j] * inner] = own[j];
      if constexpr (HAS_PLACES) places[to + (long long)place[j] * inner] = (I)(j * 32 + lane);
    }
}

// A row, or part `blockIdx.x % PARTS` of `length` elements of it, whose keys and numbers are left to `ranked_rows`.
template <bool LARGEST, int THREADS, int ITEMS, int PARTS, bool HAS_VALUES, bool HAS_PLACES, class T, class I>
__device__ __forceinline__ void sorted_rows(const T* x, T* values, I* places, void* found, const void*, void* numbers,
                                            const void*, int n, int k, int inner, int length, unsigned char* shared,
                                            const void*) {
  typedef decltype(Key<T>::of(T())) U;
  constexpr int WARPS = THREADS / 32;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, first = warp * 32 * ITEMS + lane;
  const unsigned below = (1u << lane) - 1;
  const long long row = blockIdx.x / PARTS;
  const int begin = blockIdx.x % PARTS * length, count = n - begin < length ? n - begin : length;
  x += row_begin(row, n, inner) + (long long)begin * inner;
  U* keys = (U*)shared;
  int* totals = (int*)(keys + THREADS * ITEMS);
  unsigned short* from = (unsigned short*)(totals + 256);
  unsigned short* counts = from + THREADS * ITEMS;
  unsigned short* own_counts = counts + warp * 256;
  U key[ITEMS];
  unsigned short number[ITEMS], rank[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; j++) {
    int p = first + j * 32;
    number[j] = (unsigned short)p;
    key[j] = p < count ? key_of<LARGEST>(x[(long long)p * inner]) : ~(U)0;
  }
#pragma unroll 1
  for (int shift = Key<T>::LOW; shift < 8 * (int)sizeof(U); shift += 8) {
    for (int d = lane; d < 256; d += 32) own_counts[d] = 0;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
      unsigned digit = (unsigned)(key[j] >> shift) & 255, same = lanes_with(digit);
      int before = own_counts[digit];
      rank[j] = (unsigned short)(before + __popc(same & below));
      __syncwarp();
      if (!(same & below)) own_counts[digit] = (unsigned short)(before + __popc(same));
      __syncwarp();
    }
    __syncthreads();
    for (int d = t; d < 256; d += THREADS) {
      int sum = 0;
      for (int w = 0; w < WARPS; w++) {
        int count = counts[w * 256 + d];
        counts[w * 256 + d] = (unsigned short)sum;
        sum += count;
      }
      totals[d] = sum;
    }
    __syncthreads();
    if (warp == 0) lower_digits(totals, lane);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
      unsigned digit = (unsigned)(key[j] >> shift) & 255;
      int at = totals[digit] + own_counts[digit] + rank[j];
      keys[at] = key[j];
      from[at] = number[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
      key[j] = keys[first + j * 32];
      number[j] = from[first + j * 32];
    }
  }
  if constexpr (PARTS > 1) {
    for (int i = t; i < count; i += THREADS) {
      ((U*)found)[row * n + begin + i] = keys[i];
      ((int*)numbers)[row * n + begin + i] = begin + from[i];
    }
    return;
  }
  const long long to = row_begin(row, k, inner);
  for (int i = t; i < k; i += THREADS) {
    int p = from[i];
    if constexpr (HAS_VALUES) values[to + (long long)i * inner] = x[(long long)p * inner];
    if constexpr (HAS_PLACES) places[to + (long long)i * inner] = (I)p;
  }
}

// An element of a row whose PARTS of `length` elements are sorted: its place is how many of all parts come before it.
template <int THREADS, int PARTS, bool HAS_VALUES, bool HAS_PLACES, class T, class I>
__device__ __forceinline__ void ranked_rows(const T* x, T* values, I* places, const void* found, const void*,
                                            const void* numbers, const void*, int n, int k, int inner, int length,
                                            int rows) {
  typedef decltype(Key<T>::of(T())) U;
  const long long own = (long long)blockIdx.x * THREADS + threadIdx.x, row = own / n;
  if (row >= rows) return;
  const int at = (int)(own % n), part = at / length;
  const U* keys = (const U*)found + row * n;
  const U key = keys[at];
  int place = at - part * length;
#pragma unroll
  for (int other = 0; other < PARTS; other++) {
    if (other == part) continue;
    int low = other * length, high = low + length < n ? low + length : n;
    const int begin = low;
    while (low < high) {
      int middle = (low + high) / 2;
      bool is_before = other < part ? keys[middle] <= key : keys[middle] < key;
      if (is_before) low = middle + 1;
      else high = middle;
    }
    place += begin < n ? low - begin : 0;
  }
  if (place >= k) return;
  const long long to = row_begin(row, k, inner) + (long long)place * inner;
  const int p = ((const int*)numbers)[own];
  if constexpr (HAS_VALUES) values[to] = x[row_begin(row, n, inner) + (long long)p * inner];
  if constexpr (HAS_PLACES) places[to] = (I)p;
}
}  // namespace subtune
#endif
"""

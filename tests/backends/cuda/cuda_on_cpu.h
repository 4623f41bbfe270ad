// CUDA's execution model on a processor: the threads of a block are coroutines that give way at barriers.
// What runs them is in `launches_on_cpu.cpp`, compiled once: here is what the compiler needs for every kernel. It has
// nothing of C++'s library that is made for a type: each kernel would make it anew.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <setjmp.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline

namespace emu {
enum State { READY, AT_BLOCK, AT_GROUP, AT_WARP, ASLEEP, DONE };
struct Thread {
  ucontext_t start;
  jmp_buf there;  // where it goes on, once it has begun
  bool has_begun;
  uint3 index;
  int number;
  State state;
  char* stack;
  unsigned syncs;  // barriers of the cluster that it has come to
};
constexpr int STACK = 256 << 10, WARP = 32, WORDS = 16;
constexpr int DYNAMIC = 256 << 10;
extern Thread* current;
extern uint3 block;
extern dim3 grid, size;
extern unsigned char dynamic[DYNAMIC];
extern uint32_t slots[1024][WORDS];
extern unsigned cluster;

// Blocks one after the other, on one another's heels where they wait for one another, and with Hopper's barriers.
void launch(dim3 blocks, dim3 block_size, bool backwards, void (*kernel)());
void launch_together(dim3 blocks, dim3 block_size, bool backwards, void (*kernel)());
void launch_hopper(dim3 blocks, dim3 block_size, bool backwards, void (*kernel)());
void give_way(State state);
void sync_cluster();
// The dynamic shared memory of a block of this one's cluster.
const unsigned char* memory_of(unsigned block);

// What every lane of a warp wrote, as words.
inline uint32_t (*warp())[WORDS] { return slots + current->number / WARP * WARP; }
inline int lane() { return current->number % WARP; }
template <class T> void publish(int word, const T& value) { std::memcpy(&slots[current->number][word], &value, sizeof value); }
template <class T> T fetch(int lane, int word) {
  T value;
  std::memcpy(&value, &warp()[lane][word], sizeof value);
  return value;
}
template <class T> T shuffled(T value, int from) {
  publish(0, value);
  give_way(AT_WARP);
  T result = fetch<T>(from, 0);
  give_way(AT_WARP);
  return result;
}

// The address in shared memory of another block of the cluster, by its rank; and what lies there.
inline unsigned of_cluster(unsigned address, unsigned rank) { return address | (rank + 1) << 20; }
template <class T> T fetch_cluster(unsigned address) {
  unsigned other = block.x / cluster * cluster + (address >> 20) - 1, at = address & 0xFFFFF;
  T value;
  std::memcpy(&value, memory_of(other) + at, sizeof value);
  return value;
}

// Shared memory's addresses: distances from one place, as everything static lies in one library.
inline unsigned shared_address(const void* p) { return (unsigned)((const unsigned char*)p - dynamic); }
inline unsigned char* pointer(unsigned address) { return dynamic + (int)address; }
inline void copy_async(unsigned to, const void* from, int bytes, int given) {
  std::memset(pointer(to), 0, bytes);
  std::memcpy(pointer(to), from, given);
}

// ldmatrix: `count` matrices of 8 rows of 16 bytes; the lanes of eighth i give the addresses of matrix i's rows.
inline void ldmatrix(int count, bool transposed, unsigned address, uint32_t** out) {
  publish(0, address);
  give_way(AT_WARP);
  for (int m = 0; m < count; ++m) {
    uint16_t pair[2];
    for (int h = 0; h < 2; ++h) {
      int row = lane() / 4, column = lane() % 4 * 2 + h;
      if (transposed) std::swap(row, column);
      std::memcpy(&pair[h], pointer(fetch<unsigned>(m * 8 + row, 0)) + column * 2, 2);
    }
    std::memcpy(out[m], pair, 4);
  }
  give_way(AT_WARP);
}

template <class T> uint32_t largest_of_two(uint32_t x, uint32_t y) {
  uint16_t low = std::max((T)x, (T)y), high = std::max((T)(x >> 16), (T)(y >> 16));
  return low | (uint32_t)high << 16;
}
// stmatrix: ldmatrix the other way.
inline void stmatrix(int count, bool transposed, unsigned address, const uint32_t* words) {
  publish(0, address);
  for (int m = 0; m < count; ++m) publish(1 + m, words[m]);
  give_way(AT_WARP);
  for (int m = 0; m < count; ++m) {
    if (lane() / 8 != m) continue;
    for (int e = 0; e < 8; ++e) {
      int row = lane() % 8, column = e;
      if (transposed) std::swap(row, column);
      uint32_t pair = fetch<uint32_t>(row * 4 + column / 2, 1 + m);
      uint16_t value = pair >> column % 2 * 16;
      std::memcpy(pointer(address) + e * 2, &value, 2);
    }
  }
  give_way(AT_WARP);
}

// mma.sync of 8 columns and 8 * TALL rows: operands in words of 4 bytes; k is `depth` words, 4 of them side by side.
template <int TALL, class A, class B, class Sum>
void mma(int depth, const uint32_t* a, const uint32_t* b, const Sum* c, Sum** d) {
  constexpr int PER_WORD = 4 / sizeof(A);
  int halves = depth / 4;
  for (int i = 0; i < TALL * halves; ++i) publish(i, a[i]);
  for (int i = 0; i < halves; ++i) publish(TALL * halves + i, b[i]);
  give_way(AT_WARP);
  Sum sums[2 * TALL];
  for (int i = 0; i < 2 * TALL; ++i) {
    int row = lane() / 4, column = lane() % 4 * 2 + i % 2;
    Sum sum = c[i];
    for (int half = 0; half < halves; ++half)
      for (int word = 0; word < 4; ++word) {
        A x[PER_WORD];
        B y[PER_WORD];
        std::memcpy(x, &warp()[row * 4 + word][half * TALL + i / 2], 4);
        std::memcpy(y, &warp()[column * 4 + word][TALL * halves + half], 4);
        for (int e = 0; e < PER_WORD; ++e) sum += (Sum)x[e] * (Sum)y[e];
      }
    sums[i] = sum;
  }
  give_way(AT_WARP);
  for (int i = 0; i < 2 * TALL; ++i) *d[i] = sums[i];
}
}  // namespace emu

#define threadIdx (emu::current->index)
#define blockIdx (emu::block)
#define blockDim (emu::size)
#define gridDim (emu::grid)
#define __syncthreads() emu::give_way(emu::AT_BLOCK)
#define __syncwarp(...) emu::give_way(emu::AT_WARP)
#define __fmul_rn(a, b) ((float)(a) * (float)(b))
#define __fmaf_rn(a, b, c) std::fma((float)(a), (float)(b), (float)(c))
#define __activemask() 0xFFFFFFFFu
#define __cvta_generic_to_shared(p) emu::shared_address(p)
template <class T> T __shfl_xor_sync(unsigned, T v, int mask, int = 32) { return emu::shuffled(v, emu::lane() ^ mask); }
template <class T> T __shfl_sync(unsigned, T v, int from, int width = 32) {
  return emu::shuffled(v, emu::lane() / width * width + from % width);
}
template <class T> T __shfl_down_sync(unsigned, T v, int by, int width = 32) {
  return emu::shuffled(v, emu::lane() % width + by < width ? emu::lane() + by : emu::lane());
}
template <class T> T __shfl_up_sync(unsigned, T v, int by, int width = 32) {
  return emu::shuffled(v, emu::lane() % width >= by ? emu::lane() - by : emu::lane());
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  emu::publish(0, (unsigned)(predicate != 0));
  emu::give_way(emu::AT_WARP);
  unsigned result = 0;
  for (int i = 0; i < emu::WARP; ++i) result |= emu::fetch<unsigned>(i, 0) << i;
  emu::give_way(emu::AT_WARP);
  return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> T atomicAdd(T* p, T by) { T old = *p; *p = old + by; return old; }
template <class T> T atomicCAS(T* p, T expected, T to) { T old = *p; if (old == expected) *p = to; return old; }
template <class T> T __ldcg(const T* p) { return *p; }
inline void __threadfence() {}
inline void __nanosleep(unsigned) { emu::give_way(emu::ASLEEP); }
inline void __trap() { std::abort(); }
inline long long clock64() { return 0; }
template <class T> T __ldg(const T* p) { return *p; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }
inline unsigned __float_as_uint(float x) { unsigned y; std::memcpy(&y, &x, 4); return y; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  uint64_t bytes = (uint64_t)y << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return result;
}
template <class Half, class Choose> unsigned of_halves(Choose choose, unsigned a, unsigned b, unsigned c) {
  unsigned low = (uint16_t)choose((Half)a, (Half)b, (Half)c);
  return low | (unsigned)(uint16_t)choose((Half)(a >> 16), (Half)(b >> 16), (Half)(c >> 16)) << 16;
}
template <class T> T largest(T a, T b, T c) { return a > b ? a > c ? a : c : b > c ? b : c; }
template <class T> T smallest(T a, T b, T c) { return a < b ? a < c ? a : c : b < c ? b : c; }
inline unsigned __vimax3_u16x2(unsigned a, unsigned b, unsigned c) { return of_halves<uint16_t>(largest<uint16_t>, a, b, c); }
inline unsigned __vimax3_s16x2(unsigned a, unsigned b, unsigned c) { return of_halves<int16_t>(largest<int16_t>, a, b, c); }
inline unsigned __vimin3_u16x2(unsigned a, unsigned b, unsigned c) { return of_halves<uint16_t>(smallest<uint16_t>, a, b, c); }
inline unsigned __vimin3_s16x2(unsigned a, unsigned b, unsigned c) { return of_halves<int16_t>(smallest<int16_t>, a, b, c); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  auto fma = [](__half x, __half y, __half z) { return __float2half(__half2float(x) * __half2float(y) + __half2float(z)); };
  return __halves2half2(fma(a.x, b.x, c.x), fma(a.y, b.y, c.y));
}
template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T min(T a, T b) { return a < b ? a : b; }

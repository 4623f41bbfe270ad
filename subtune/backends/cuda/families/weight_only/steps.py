"""CUDA C++ of the steps of a product with weights of few bits: loads that stay where they are, halves out of bits."""

STEPS = r"""
#ifndef SUBTUNE_WEIGHT_ONLY_STEPS
#define SUBTUNE_WEIGHT_ONLY_STEPS
#include <cuda_bf16.h>
namespace subtune {
namespace weight_only {
// No `.nc`: the compiler moves such loads to where they are used, across the wait for the kernel before, and barriers.
__device__ __forceinline__ uint4 stream(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ uint4 read(const void* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}

template <bool BRAIN> __device__ __forceinline__ unsigned int rounded(unsigned int low, unsigned int high) {
  unsigned int pair;
  if constexpr (BRAIN)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
  return pair;
}

// Eight halves, or floats as such.
template <bool BRAIN, class X> __device__ __forceinline__ uint4 halves(const X* from) {
  if constexpr (sizeof(X) == 2) return read(from);
  const uint4 a = read(from), b = read(from + 4);
  return make_uint4(rounded<BRAIN>(a.x, a.y), rounded<BRAIN>(a.z, a.w), rounded<BRAIN>(b.x, b.y),
                    rounded<BRAIN>(b.z, b.w));
}

__device__ __forceinline__ uint2 stream8(const void* from) {
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ unsigned int stream4(const void* from) {
  unsigned int v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned int)__cvta_generic_to_shared(to)),
               "l"(from), "r"(bytes)
               : "memory");
}

template <bool BRAIN> __device__ __forceinline__ unsigned int minus(unsigned int a, unsigned int b) {
  if constexpr (BRAIN) {
    __nv_bfloat162 y = __hsub2(*(__nv_bfloat162*)&a, *(__nv_bfloat162*)&b);
    return *(unsigned int*)&y;
  } else {
    __half2 y = __hsub2(*(__half2*)&a, *(__half2*)&b);
    return *(unsigned int*)&y;
  }
}

__device__ __forceinline__ unsigned int times_plus(unsigned int a, unsigned int b, unsigned int c) {
  __half2 y = __hfma2(*(__half2*)&a, *(__half2*)&b, *(__half2*)&c);
  return *(unsigned int*)&y;
}

// What MASK leaves of w in the last bits of two halves MAGIC. One instruction: the compiler makes two of two constants.
template <unsigned int MASK, unsigned int MAGIC> __device__ __forceinline__ unsigned int magic(unsigned int w) {
  unsigned int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(w), "n"(MASK), "r"(MAGIC));
  return bits;
}

// BYTES neighbours into words, in as wide accesses as their number allows.
template <int BYTES> __device__ __forceinline__ void fetch(unsigned int* to, const void* from) {
  static_assert((BYTES & (BYTES - 1)) == 0, "a power of two");
  if constexpr (BYTES >= 16) {
#pragma unroll
    for (int i = 0; i < BYTES / 16; i++) ((uint4*)to)[i] = stream((const uint4*)from + i);
  } else if constexpr (BYTES == 8) *(uint2*)to = stream8(from);
  else if constexpr (BYTES == 4) *to = stream4(from);
  else *to = *(const unsigned short*)from;
}

// Number `index` of such words as elements of S.
template <class S> __device__ __forceinline__ float element(const unsigned int* words, int index) {
  if constexpr (sizeof(S) == 4) return __uint_as_float(words[index]);
  else {
    const unsigned short bits = words[index / 2] >> index % 2 * 16;
    return (float)*(const S*)&bits;
  }
}
}  // namespace weight_only
}  // namespace subtune
#endif
"""

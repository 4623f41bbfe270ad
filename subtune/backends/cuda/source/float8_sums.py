"""CUDA C++ of products of float8e4m3fn by `mma.sync`, added to their sums by CUDA cores.

Tensor cores align what they add to the largest number and keep about 14 bits of it: over a long k that is all that is
left of a sum. Here every product of a depth of 32 begins at zero, and float32 holds the sums. wgmma, whose products are
longer, does so every 128 of k (`families.wgmma`).
Source: DeepSeek-V3 technical report, 3.3.2, "Increasing accumulation precision"; PTX ISA, mma.m16n8k32.
"""

FLOAT8_SUMS = r"""
#ifndef SUBTUNE_FLOAT8_SUMS
#define SUBTUNE_FLOAT8_SUMS
namespace subtune {
// Of one lane: 4 sums, 16 elements of A and 8 of B.
__device__ __forceinline__ void add_mma_float8(float* sums, const void* a, const void* b) {
  const unsigned* left = (const unsigned*)a;
  const unsigned* right = (const unsigned*)b;
  float products[4];
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(products[0]), "=f"(products[1]), "=f"(products[2]), "=f"(products[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "f"(0.0f), "f"(0.0f),
        "f"(0.0f), "f"(0.0f));
#pragma unroll
  for (int i = 0; i < 4; i++) sums[i] += products[i];
}
}  // namespace subtune
#endif
"""

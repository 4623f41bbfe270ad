"""CUDA C++ of float32 products on tensor cores: each operand is the sum of two numbers of tf32.

    x = high + low:   x y = high_x high_y + high_x low_y + low_x high_y,   low_x low_y is below float32's last digit

tf32 has 11 digits, two of them 22 of float32's 24: the high one is rounded, the low one cut off. What a tensor core
adds to its sum is cut off, not rounded: every product of a depth of 8 begins at zero, and CUDA cores add it to the
sum. The error against float64 is a third of that of sums on CUDA cores (4096^3, measured). Where an operand is infinite
the product may be NaN: nothing finite is left of infinity, as in Winograd's algorithm.
Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
theoretical peak performance", 2022.
"""

SPLIT_TF32 = r"""
#ifndef SUBTUNE_SPLIT_TF32
#define SUBTUNE_SPLIT_TF32
namespace subtune {
__device__ __forceinline__ void tf32_parts(float x, unsigned& high, unsigned& low) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
  low = __float_as_uint(x - __uint_as_float(high));
}
__device__ __forceinline__ void mma_tf32(float* sums, const unsigned* left, const unsigned* right) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "f"(sums[0]),
        "f"(sums[1]), "f"(sums[2]), "f"(sums[3]));
}
struct SplitA {
  unsigned high[4], low[4];
};
struct SplitB {
  unsigned high[2], low[2];
};
// COUNT matrices A of 16 x 8 times B, one product of all after the other: none waits for the one before it.
template <int COUNT>
__device__ __forceinline__ void mma_split(float (&products)[COUNT][4], const SplitA (&a)[COUNT], const SplitB& b) {
#pragma unroll
  for (int i = 0; i < COUNT * 4; i++) products[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int i = 0; i < COUNT; i++) mma_tf32(products[i], a[i].low, b.high);
#pragma unroll
  for (int i = 0; i < COUNT; i++) mma_tf32(products[i], a[i].high, b.low);
#pragma unroll
  for (int i = 0; i < COUNT; i++) mma_tf32(products[i], a[i].high, b.high);
}
// Of one lane: 4 sums, 4 elements of A and 2 of B (PTX ISA, mma.m16n8k8).
__device__ __forceinline__ void add_mma_split(float* sums, const float* a, const float* b) {
  SplitA of_a[1];
  SplitB of_b;
  float products[1][4];
#pragma unroll
  for (int i = 0; i < 4; i++) tf32_parts(a[i], of_a[0].high[i], of_a[0].low[i]);
#pragma unroll
  for (int i = 0; i < 2; i++) tf32_parts(b[i], of_b.high[i], of_b.low[i]);
  mma_split(products, of_a, of_b);
#pragma unroll
  for (int i = 0; i < 4; i++) sums[i] += products[0][i];
}
}  // namespace subtune
#endif
"""

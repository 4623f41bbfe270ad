"""CUDA C++ of one product on tensor cores: 16 x 8 in float32 of a depth of 16 halves (PTX ISA 8, mma.m16n8k16)."""

MMA_SYNC = r"""
#ifndef SUBTUNE_MMA_SYNC
#define SUBTUNE_MMA_SYNC
namespace subtune {
template <bool BRAIN>
__device__ __forceinline__ void mma(float* sums, const unsigned int* left, const unsigned int* right) {
  if constexpr (BRAIN)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "f"(sums[0]),
          "f"(sums[1]), "f"(sums[2]), "f"(sums[3]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "f"(sums[0]),
          "f"(sums[1]), "f"(sums[2]), "f"(sums[3]));
}
}  // namespace subtune
#endif
"""
"""`subtune::mma<BRAIN>(sums, left, right)`, of float16 or bfloat16: a lane's 4 sums, 4 words of A and 2 of B."""

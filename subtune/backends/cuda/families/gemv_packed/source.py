"""CUDA C++ of a matrix of 4-bit weights times up to eight vectors: unpacked two at a time, summed by tensor cores.

    for chunk of k, `U` of them on their way:                  16 bytes of every row of a lane, past L1
      for word of 8 weights:  (w & 0x000F000F) | 0x64006400    two weights as halves 1024 + w, then exactly w
        mma.sync m16n8k16                                      16 rows x 8 vectors

Conversions and multiply-adds one by one would take longer than the bytes; this takes 1.3 instructions for a weight.
Which k an element of the instruction's operands is for is free, as long as both agree: a lane's weights become its own
fragment of A as they lie in memory (lanes 4 * g + t hold parts of rows g and g + 8), and B's fragments, the vectors,
are put in the order that unpacking gives, k and k + 4 in one register. Fewer vectors than eight repeat the last.
The warps that share k add up in shared memory.
"""

GEMV_PACKED = r"""
#ifndef SUBTUNE_GEMV_PACKED
#define SUBTUNE_GEMV_PACKED
namespace subtune {
__device__ __forceinline__ uint4 stream(const unsigned char* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
}

__device__ __forceinline__ __half2 halves(unsigned int bits) { return *(__half2*)&bits; }

// 1024 + what MASK leaves of w, in both halves. One instruction: the compiler makes two of two constants.
template <unsigned int MASK> __device__ __forceinline__ __half2 magic(unsigned int w) {
  unsigned int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(w), "n"(MASK), "r"(0x64006400u));
  return halves(bits);
}

__device__ __forceinline__ void mma(float* sums, const __half2* weights, const unsigned int* vectors) {
  const unsigned int* w = (const unsigned int*)weights;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(vectors[0]), "r"(vectors[1]), "f"(sums[0]), "f"(sums[1]),
        "f"(sums[2]), "f"(sums[3]));
}

// C[M][N] = A[M][K] x ((W[N][K] - ZERO) * scale[N][K / GROUP]); GROUP 0: no scale. A block has ACROSS x SPLIT warps.
template <int N, int K, int M, int ZERO, int GROUP, int ACROSS, int SPLIT, int TILE, int U>
struct GemvPacked {
  static constexpr int WARP_ROWS = 16 * TILE, ROWS = WARP_ROWS * ACROSS, THREADS = 32 * ACROSS * SPLIT;
  static constexpr unsigned int RUNS = K / 32, STEP = 4 * U * SPLIT, STEPS = (RUNS + STEP - 1) / STEP;

  // Sum number thread + i * THREADS of the block's, [M][ROWS], into sums[i].
  static __device__ __forceinline__ void run(float* sums, const __half* a, const void* weights, const __half* scale,
                                             int block, int thread) {
    __shared__ float parts[SPLIT][M][ROWS];
    const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    const int part = warp % SPLIT, first = warp / SPLIT * WARP_ROWS;
    const int row = block * ROWS + first + g;
    unsigned int run = part * 4 * U + t;
    const unsigned char* at = (const unsigned char*)weights + (size_t)row * (K / 2) + run * 16;
    const __half* vector = a + (g < M ? g : M - 1) * K + run * 32;
    if constexpr (GROUP != 0) scale += (size_t)row * (K / GROUP);
    uint4 words[U][2 * TILE] = {};
    __half factors[U][2 * TILE] = {};
    float c[TILE][4] = {};

    // What is not there stays what was read before: finite weights, of which the product with the vector's zeros is 0.
    auto load = [&](int u, unsigned int run, int ahead) {
#pragma unroll
      for (int i = 0; i < 2 * TILE; i++) {
        const bool is_inside = (N % ROWS == 0 || row + 8 * i < N) && (RUNS % STEP == 0 || run < RUNS);
        if (is_inside) words[u][i] = stream(at + ((size_t)8 * i * (K / 2) + u * 64 + ahead));
        if constexpr (GROUP != 0)
          factors[u][i] = is_inside ? scale[(size_t)8 * i * (K / GROUP) + run * 32 / GROUP] : __half(0.f);
      }
    };
    auto unpack = [&](__half2* to, unsigned int w, __half factor) {
      // 1024 + w less 1024 + ZERO; 1024 + 16 * w times 1 / 16 less 64 + ZERO
      to[0] = __hsub2(magic<0x000F000Fu>(w), halves(0x64006400u + ZERO * 0x10001u));
      to[1] = __hfma2(magic<0x00F000F0u>(w), halves(0x2C002C00u), halves(0xD400D400u + ZERO * 0x100010u));
      if constexpr (GROUP != 0)
        for (int i = 0; i < 2; i++) to[i] = __hmul2(to[i], __half2half2(factor));
    };

#pragma unroll
    for (int u = 0; u < U; u++) load(u, run + 4 * u, 0);
#pragma unroll 1
    for (unsigned int step = 0; step < STEPS; step++) {
#pragma unroll
      for (int u = 0; u < U; u++) {
        const unsigned int now = run + 4 * u;
#pragma unroll
        for (int word = 0; word < 4; word++) {
          uint4 x = make_uint4(0, 0, 0, 0);
          if (RUNS % STEP == 0 || now < RUNS) x = *(const uint4*)(vector + u * 128 + word * 8);
          const unsigned int b[4] = {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                                     __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
#pragma unroll
          for (int i = 0; i < TILE; i++) {
            __half2 low[2][2], high[2][2];  // of rows g and g + 8: bits 0-7 of both halves of the word, bits 8-15
#pragma unroll
            for (int h = 0; h < 2; h++) {
              const uint4& all = words[u][2 * i + h];
              const unsigned int w = word == 0 ? all.x : word == 1 ? all.y : word == 2 ? all.z : all.w;
              unpack(low[h], w, factors[u][2 * i + h]);
              unpack(high[h], w >> 8, factors[u][2 * i + h]);
            }
            const __half2 first_half[4] = {low[0][0], low[1][0], low[0][1], low[1][1]};
            const __half2 second_half[4] = {high[0][0], high[1][0], high[0][1], high[1][1]};
            mma(c[i], first_half, b);
            mma(c[i], second_half, b + 2);
          }
        }
        if (step + 1 < STEPS) load(u, now + STEP, STEP * 16);
      }
      run += STEP, at += STEP * 16, vector += STEP * 32;
    }
#pragma unroll
    for (int i = 0; i < TILE; i++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (2 * t + e % 2 < M) parts[part][2 * t + e % 2][first + 16 * i + g + e / 2 * 8] = c[i][e];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < (M * ROWS + THREADS - 1) / THREADS; i++) {
      const int number = thread + i * THREADS;
      sums[i] = 0.f;
      if (M * ROWS % THREADS == 0 || number < M * ROWS)
#pragma unroll
        for (int s = 0; s < SPLIT; s++) sums[i] += parts[s][number / ROWS][number % ROWS];
    }
  }
};
}  // namespace subtune
#endif
"""

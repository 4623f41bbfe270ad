"""CUDA C++ of Winograd's transforms: a thread takes one tile of pixels and one or two channels through registers."""

from __future__ import annotations

from functools import cache

from subtune.backends.algorithms.winograd import TRANSFORMS, Matrix

_TRANSFORMS = r"""
#ifndef SUBTUNE_WINOGRAD_@M
#define SUBTUNE_WINOGRAD_@M
namespace subtune {
namespace winograd@M {
constexpr int E = @M + 2;
@MATRICES

// coefficients @ x, x being `apart` values apart; zeros of the matrix cost nothing once unrolled
template <int V, int R>
__device__ __forceinline__ void combine(float* to, const float (&coefficients)[R], const float* x, int apart) {
#pragma unroll
  for (int v = 0; v < V; v++) to[v] = 0.f;
#pragma unroll
  for (int r = 0; r < R; r++)
    if (coefficients[r] != 0.f)
#pragma unroll
      for (int v = 0; v < V; v++) to[v] = fmaf(coefficients[r], x[r * apart + v], to[v]);
}

template <int V> __device__ __forceinline__ void load(float* to, const float* from) {
  if constexpr (V == 2) {
    float2 pair = *(const float2*)from;
    to[0] = pair.x, to[1] = pair.y;
  } else {
    to[0] = *from;
  }
}

// V channels of one tile of an image [H, W, C], whose corner is pixel (h, w): to v [E * E][TILES * C]
template <int V, int H, int W, int C, int TILES>
__device__ __forceinline__ void input(float* v, const float* image, int h, int w) {
  float t[E * E * V];
#pragma unroll
  for (int s = 0; s < E; s++) {
    float d[E * V];
#pragma unroll
    for (int r = 0; r < E; r++) {
#pragma unroll
      for (int i = 0; i < V; i++) d[r * V + i] = 0.f;
      if ((unsigned)(h + r) < (unsigned)H && (unsigned)(w + s) < (unsigned)W)
        load<V>(d + r * V, image + ((h + r) * W + w + s) * C);
    }
#pragma unroll
    for (int e = 0; e < E; e++) combine<V>(t + (e * E + s) * V, BT[e], d, V);
  }
#pragma unroll
  for (int e = 0; e < E; e++)
#pragma unroll
    for (int s = 0; s < E; s++) {
      float y[V];
      combine<V>(y, BT[s], t + e * E * V, V);
      float* to = v + (long long)(e * E + s) * TILES * C;
      if constexpr (V == 2) *(float2*)to = make_float2(y[0], y[1]);
      else *to = y[0];
    }
}

// V channels of one tile of products [E * E][SIZE]: to y [@M][@M][V]
template <int V, int SIZE> __device__ __forceinline__ void output(float* y, const float* products) {
  float t[@M * E * V];
#pragma unroll
  for (int s = 0; s < E; s++) {
    float d[E * V];
#pragma unroll
    for (int r = 0; r < E; r++) load<V>(d + r * V, products + (long long)(r * E + s) * SIZE);
#pragma unroll
    for (int e = 0; e < @M; e++) combine<V>(t + (e * E + s) * V, AT[e], d, V);
  }
#pragma unroll
  for (int e = 0; e < @M; e++)
#pragma unroll
    for (int s = 0; s < @M; s++) combine<V>(y + (e * @M + s) * V, AT[s], t + e * E * V, V);
}
}  // namespace winograd@M
}  // namespace subtune
#endif
"""


@cache
def transforms(m: int) -> str:
    """The transforms of F(m, 3), in the namespace `subtune::winogradM`."""
    bt, _, at = TRANSFORMS[m]
    matrices = "\n".join(_constant(name, matrix) for name, matrix in (("BT", bt), ("AT", at)))
    return _TRANSFORMS.replace("@MATRICES", matrices).replace("@M", str(m))


def _constant(name: str, matrix: Matrix) -> str:
    rows = ", ".join("{" + ", ".join(f"{x!r}f" for x in row) + "}" for row in matrix)
    return f"__device__ constexpr float {name}[{len(matrix)}][{len(matrix[0])}] = {{{rows}}};"

// What only Hopper has, on a processor: barriers in shared memory, boxes copied through tensor maps, products of a
// warpgroup. Copies and products are done when they are asked for; who waits for them waits. No clusters.
#pragma once
#include <initializer_list>

#include "cuda_on_cpu.h"

#define __grid_constant__

// As `TensorMap.arguments` has it: extents, strides (bytes, without the innermost), box, element strides, and how.
struct CUtensorMap {
  const unsigned char* base;
  int64_t rank, size;
  int64_t arguments[23];
};

namespace emu {
struct Barrier {  // 8 bytes of shared memory
  uint16_t count;
  uint16_t pending : 15, phase : 1;
  int32_t bytes;
};
static_assert(sizeof(Barrier) == 8);
struct Named {
  int arrived, turn;
};
extern Named named[16];
extern bool has_moved;

template <class Condition> void wait_until(Condition condition) {
  while (!condition()) give_way(READY);
  has_moved = true;
}
inline Barrier& barrier(unsigned address) { return *(Barrier*)pointer(address); }
inline void settle(Barrier& b) {
  has_moved = true;
  if (b.pending || b.bytes) return;
  b.pending = b.count;
  b.phase ^= 1;
}
inline void barrier_init(unsigned address, int count) { barrier(address) = {(uint16_t)count, (uint16_t)count, 0, 0}; }
inline void barrier_arrive(unsigned address, int count, int bytes) {
  Barrier& b = barrier(address);
  if (b.pending < count) std::abort();
  b.bytes += bytes;
  b.pending -= count;
  settle(b);
}
inline void barrier_wait(unsigned address, int parity) {
  wait_until([=] { return barrier(address).phase != parity; });
}
inline void named_arrive(int id, int count) {
  has_moved = true;
  if (++named[id].arrived == count) named[id] = {0, named[id].turn + 1};
}
inline void named_wait(int id, int count) {
  int turn = named[id].turn;
  named_arrive(id, count);
  wait_until([=] { return named[id].turn != turn; });
}

// Where a byte lies in rows of `width` bytes that are swizzled.
inline unsigned swizzled(unsigned address, int width) { return address ^ (address >> 7 & (width / 16 - 1)) << 4; }

void bulk_copy(unsigned to, const void* map, std::initializer_list<int> at, unsigned signal);

// A row of 32 bytes of an operand along k, from a matrix descriptor.
inline const unsigned char* row_of(uint64_t matrix, int row, int byte) {
  int width = 256 >> (matrix >> 62);
  unsigned start = (matrix & 0x3FFF) << 4, group = (matrix >> 32 & 0x3FFF) << 4;
  return pointer(swizzled(start + row / 8 * group + row % 8 * width + byte, width));
}
template <class T, class Sum> void load_row(uint64_t matrix, int row, Sum* to) {
  constexpr int K = 32 / sizeof(T);
  for (int half = 0; half < 2; ++half) {
    T of[K / 2];
    std::memcpy(of, row_of(matrix, row, half * 16), 16);
    for (int k = 0; k < K / 2; ++k) to[half * K / 2 + k] = (Sum)of[k];
  }
}
// A column of an operand across k, 64 columns of every k side by side, swizzled over 128 bytes.
template <class T, class Sum> void load_across(uint64_t matrix, int column, Sum* to) {
  unsigned start = (matrix & 0x3FFF) << 4, next = (matrix >> 16 & 0x3FFF) << 4, group = (matrix >> 32 & 0x3FFF) << 4;
  for (int k = 0; k < 32 / (int)sizeof(T); ++k) {
    T of;
    int byte = column % 64 * (int)sizeof(T);
    std::memcpy(&of, pointer(swizzled(start + column / 64 * next + k / 8 * group + k % 8 * 128 + byte, 128)), sizeof of);
    to[k] = (Sum)of;
  }
}
template <class A, class B, bool ACROSS, class Sum, int K>
void add_products(int columns, Sum** d, Sum (&x)[2][K], uint64_t b, int adds) {
  Sum y[K];
  for (int pair = 0; pair < columns / 8; ++pair)
    for (int side = 0; side < 2; ++side) {
      int column = pair * 8 + lane() % 4 * 2 + side;
      if constexpr (ACROSS) load_across<B>(b, column, y);
      else load_row<B>(b, column, y);
      for (int half = 0; half < 2; ++half) {
        Sum sum = adds ? *d[pair * 4 + half * 2 + side] : 0;
        for (int k = 0; k < K; ++k) sum += x[half][k] * y[k];
        *d[pair * 4 + half * 2 + side] = sum;
      }
    }
}
template <class A, class B, bool ACROSS, class Sum> void wgmma(int columns, Sum** d, uint64_t a, uint64_t b, int adds) {
  constexpr int K = 32 / sizeof(A);
  Sum x[2][K];
  int first = current->number % 128 / 32 * 16 + lane() / 4;
  load_row<A>(a, first, x[0]), load_row<A>(a, first + 8, x[1]);
  add_products<A, B, ACROSS>(columns, d, x, b, adds);
}
// The same where A is in registers: four threads have the words of two rows.
template <class A, class B, bool ACROSS, class Sum>
void wgmma(int columns, Sum** d, const uint32_t* words, uint64_t b, int adds) {
  constexpr int PER_WORD = 4 / sizeof(A);
  Sum x[2][32 / sizeof(A)];
  for (int part = 0; part < 4; ++part)
    for (int four = 0; four < 4; ++four) {
      uint32_t word = shuffled(words[part], lane() / 4 * 4 + four);
      A of[PER_WORD];
      std::memcpy(of, &word, 4);
      for (int i = 0; i < PER_WORD; ++i) x[part % 2][(part / 2 * 4 + four) * PER_WORD + i] = (Sum)of[i];
    }
  add_products<A, B, ACROSS>(columns, d, x, b, adds);
}
}  // namespace emu

// What only Hopper has, on a processor: barriers in shared memory, boxes copied through tensor maps, products of a
// warpgroup. Copies and products are done when they are asked for; who waits for them waits. No clusters.
#pragma once
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
inline Named named[16];
inline bool has_moved;

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

inline void bulk_copy(unsigned to, const void* map_, const std::vector<int>& at, unsigned signal) {
  const CUtensorMap& map = *(const CUtensorMap*)map_;
  int rank = map.rank, size = map.size;
  const int64_t *extents = map.arguments, *strides = extents + rank, *box = strides + rank - 1, *steps = box + rank;
  int width = 16 << steps[rank + 1];  // without a swizzle, elements lie one behind the other
  bool is_swizzled = width > 16;
  std::vector<int64_t> index(rank, 0), counts(rank);
  int64_t total = 1;
  for (int d = 0; d < rank; ++d) total *= counts[d] = (box[d] + steps[d] - 1) / steps[d];
  if (is_swizzled ? counts[0] * size != width || to % (8 * width) : counts[0] * size % 16 || to % 128) std::abort();
  for (int64_t e = 0; e < total; ++e) {
    int64_t rest = e, offset = 0;
    bool is_inside = true;
    for (int d = 0; d < rank; ++d) {
      int64_t place = at[d] + rest % counts[d] * steps[d];
      rest /= counts[d];
      is_inside &= place >= 0 && place < extents[d];
      offset += place * (d ? strides[d - 1] : size);
    }
    unsigned char* there = pointer(is_swizzled ? swizzled(to + e * size, width) : to + e * size);
    if (is_inside) std::memcpy(there, map.base + offset, size);
    else std::memset(there, 0, size);
  }
  Barrier& b = barrier(signal);
  b.bytes -= total * size;
  settle(b);
}

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

// Those of `count` neighbours that are not done, where all of them are in `state`.
inline bool release_each(State state, int count) {
  bool any = false;
  for (size_t begin = 0; begin < threads.size(); begin += count) {
    bool all = true, some = false;
    for (int i = 0; i < count; ++i) {
      State own = threads[begin + i].state;
      all &= own == state || own == DONE;
      some |= own == state;
    }
    for (int i = 0; all && some && i < count; ++i)
      if (threads[begin + i].state == state) threads[begin + i].state = READY;
    any |= all && some;
  }
  return any;
}
// Blocks one after the other. Aborts where all threads wait for one another.
inline void launch_hopper(dim3 blocks, dim3 block_size, bool backwards, void (*kernel)()) {
  grid = blocks, size = block_size, body = kernel;
  int count = (int)size.x;
  threads.resize(count);
  for (unsigned i = 0; i < grid.x; ++i) {
    std::memset(dynamic, 0xFF, sizeof dynamic);
    std::memset(named, 0, sizeof named);
    block = make_uint3(backwards ? grid.x - 1 - i : i, 0, 0);
    begin_block();
    for (bool is_done = false; !is_done;) {
      is_done = true, has_moved = false;
      for (int t = 0; t < count; ++t) {
        current = &threads[backwards ? count - 1 - t : t];
        if (current->state == READY) {
          run_current();
          has_moved |= current->state != READY;
        }
        is_done &= current->state == DONE;
      }
      has_moved |= release_each(AT_WARP, 32);
      has_moved |= release_each(AT_GROUP, 128);
      has_moved |= release_each(AT_BLOCK, count);
      if (!is_done && !has_moved) std::abort();
    }
  }
}
}  // namespace emu

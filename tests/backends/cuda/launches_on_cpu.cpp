// What runs the kernels of `cuda_on_cpu.h` and `hopper_on_cpu.h`: a library that every kernel's finds loaded.
// Blocks run one after the other, or, where they wait for one another, until each of them sleeps. `backwards` runs
// blocks and threads in the other order: what lacks a barrier, and what several blocks store differently, differs then.
#include "hopper_on_cpu.h"

#include <utility>
#include <vector>

namespace emu {
jmp_buf scheduler;
std::vector<Thread> threads;
void (*body)();
Thread* current;
uint3 block;
dim3 grid, size;
alignas(1024) unsigned char dynamic[DYNAMIC];
uint32_t slots[1024][WORDS];
Named named[16];
bool has_moved;

// `_setjmp` and `_longjmp` between stacks: `swapcontext` asks the system for the signal mask, every time.
void give_way(State state) {
  current->state = state;
  if (!_setjmp(current->there)) _longjmp(scheduler, 1);
}
void run_current() {
  if (_setjmp(scheduler)) return;
  if (current->has_begun) _longjmp(current->there, 1);
  current->has_begun = true;
  setcontext(&current->start);
}
void run_bodies() {  // a thread of one block after the other
  for (;; give_way(DONE)) body();
}
bool release(State state) {
  bool any = false;
  for (Thread& t : threads)
    if (t.state == state) t.state = READY, any = true;
  return any;
}
void begin_block() {
  int count = (int)threads.size();
  for (int i = 0; i < count; ++i) {
    Thread& t = threads[i];
    t.number = i;
    t.syncs = 0;
    t.index = make_uint3(i % size.x, i / size.x % size.y, i / (size.x * size.y));
    bool is_at_its_end = t.stack && t.has_begun && t.state == DONE;
    t.state = READY;
    if (is_at_its_end) continue;
    if (!t.stack) t.stack = (char*)std::malloc(STACK);
    t.has_begun = false;
    getcontext(&t.start);
    t.start.uc_stack.ss_sp = t.stack;
    t.start.uc_stack.ss_size = STACK;
    t.start.uc_link = nullptr;
    makecontext(&t.start, run_bodies, 0);
  }
}
// Whether it is done; else threads of it are asleep.
bool run_block(bool backwards) {
  int count = (int)threads.size();
  bool is_asleep = false;
  release(ASLEEP);
  do {
    for (int i = 0; i < count; ++i) {
      current = &threads[backwards ? count - 1 - i : i];
      if (current->state == READY) run_current();
      is_asleep |= current->state == ASLEEP;
    }
  } while (release(AT_WARP) || release(AT_GROUP) || (!is_asleep && release(AT_BLOCK)));
  return !is_asleep;
}
// Clusters: how many blocks each has, how often a thread of each came to a barrier, and all blocks' shared memory.
unsigned cluster = 1;
std::vector<unsigned> arrived;
std::vector<std::vector<unsigned char>> memory;

// Blocks of one dim that wait for one another: each has its threads and its dynamic shared memory.
void launch_together(dim3 blocks, dim3 block_size, bool backwards, void (*kernel)()) {
  grid = blocks, size = block_size, body = kernel;
  int count = (int)blocks.x;
  std::vector<std::vector<Thread>> all(count);
  memory.assign(count, std::vector<unsigned char>(sizeof dynamic, 0xFF));
  arrived.assign(count / cluster, 0);
  std::vector<bool> begun(count), done(count);
  for (int left = count; left;)
    for (int i = 0; i < count; ++i) {
      int b = backwards ? count - 1 - i : i;
      if (done[b]) continue;
      std::swap(threads, all[b]);
      std::memcpy(dynamic, memory[b].data(), sizeof dynamic);
      block = make_uint3(b, 0, 0);
      if (!begun[b]) threads.resize(size.x), begin_block(), begun[b] = true;
      if ((done[b] = run_block(backwards))) --left;
      std::memcpy(memory[b].data(), dynamic, sizeof dynamic);
      std::swap(threads, all[b]);
    }
  for (auto& some : all)
    for (Thread& t : some) std::free(t.stack);
}
void launch(dim3 blocks, dim3 block_size, bool backwards, void (*kernel)()) {
  grid = blocks, size = block_size, body = kernel;
  threads.resize(size.x * size.y * size.z);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        std::memset(dynamic, 0xFF, sizeof dynamic);
        block = backwards ? make_uint3(grid.x - 1 - x, grid.y - 1 - y, grid.z - 1 - z) : make_uint3(x, y, z);
        begin_block();
        run_block(backwards);
      }
}

void sync_cluster() {
  unsigned& count = arrived[block.x / cluster];
  unsigned all = ++current->syncs * cluster * size.x;
  for (++count; count < all;) give_way(ASLEEP);
}
const unsigned char* memory_of(unsigned other) { return other == block.x ? dynamic : memory[other].data(); }

void bulk_copy(unsigned to, const void* map_, std::initializer_list<int> list, unsigned signal) {
  const CUtensorMap& map = *(const CUtensorMap*)map_;
  const int* at = list.begin();
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

// Those of `count` neighbours that are not done, where all of them are in `state`.
bool release_each(State state, int count) {
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
void launch_hopper(dim3 blocks, dim3 block_size, bool backwards, void (*kernel)()) {
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

// Runs all threads of a launch in an order that a seed draws: of the warps that can go on the one with the most priority,
// which is drawn anew now and then, rarely with some seeds. A fiber goes on until it waits, or does what others see.
// Copies, and words that are sent, have priorities too, or come last. Whatever is wrong ends the launch.

#include "launch.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include <string>

namespace host {

Launch* launch;
Warp* warp;
Lane* lane;

extern "C" {
Index threadIdx, blockIdx, gridDim, blockDim;
}

namespace {

constexpr size_t STACK = 64 * 1024;
constexpr uint64_t MOST_TURNS = 2'000'000;
jmp_buf scheduler;
char failure[4096];

}  // namespace

uint64_t draw() {
  uint64_t& x = launch->drawn;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x * 0x2545F4914F6CDD1Dull >> 2;
}

void fail(const char* format, ...) {
  int at = 0;
  if (lane) {
    const unsigned thread = warp->first + static_cast<unsigned>(lane - warp->lane);
    at = snprintf(failure, sizeof(failure), "block %u, thread %u: ", warp->block->index.x, thread);
  }
  va_list values;
  va_start(values, format);
  vsnprintf(failure + at, sizeof(failure) - at, format, values);
  va_end(values);
  _longjmp(scheduler, 1);
}

namespace {
/// Back to the scheduler, which comes back here. By _setjmp, as swapcontext asks the system for signals each time.
void pause() {
  if (!_setjmp(lane->at)) _longjmp(scheduler, 1);
}
}  // namespace

void wait_for(const unsigned& word, unsigned value, const char* what, unsigned number) {
  if (word != value) return;
  lane->word = &word, lane->value = value, lane->what = what, lane->number = number;
  pause();
}
void give_way() {
  launch->again = true;
  pause();
}

namespace {

void begin_lane() {
  launch->entry(launch->words);
  lane->ended = true;
  --launch->living, --warp->block->living;
  _longjmp(scheduler, 1);
}
void go_on(Lane& next, unsigned thread) {
  lane = &next, next.word = nullptr;
  threadIdx = {thread, 0, 0}, blockIdx = warp->block->index;
  if (!_setjmp(scheduler)) {
    if (next.started) _longjmp(next.at, 1);
    next.started = true;
    setcontext(&next.start);
  }
  lane = nullptr;
}
/// Those of a warp that can go on, until another one may. Whether there was one.
bool run_warp() {
  bool ran = false;
  launch->again = false;
  const unsigned from = warp->turn++;
  for (unsigned i = 0; i < warp->lanes && !launch->again && !failure[0]; ++i) {
    const unsigned number = (from + i) % warp->lanes;
    Lane& next = warp->lane[number];
    if (next.ended || (next.word && *next.word == next.value)) continue;
    ran = true;
    go_on(next, warp->first + number);
  }
  return ran;
}
/// What threads wait for, each of those of a warp that wait for the same once.
void tell_deadlock() {
  std::string text = "all wait:";
  for (const auto& each : launch->warps) {
    const unsigned* last = nullptr;
    for (unsigned i = 0; i < each->lanes; ++i) {
      const Lane& one = each->lane[i];
      if (one.ended || one.word == last) continue;
      last = one.word;
      text += " block " + std::to_string(each->block->index.x) + " from thread " + std::to_string(each->first + i) +
              " on for " + one.what + " " + std::to_string(one.number) + ";";
    }
  }
  snprintf(failure, sizeof(failure), "%s", text.c_str());
}

Warp* first_warp() {
  Warp* best = nullptr;
  for (const auto& each : launch->warps)
    if (each->seen != launch->changes && (!best || each->priority > best->priority)) best = each.get();
  return best;
}
/// The transfer that is complete next, if one is before a warp goes on.
size_t first_transfer(const Warp* other) {
  const auto& all = launch->transfers;
  if (launch->lazy) return other || all.empty() ? all.size() : draw() % all.size();
  size_t best = all.size();
  uint64_t least = other ? other->priority : 0;
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].priority >= least) best = i, least = all[i].priority;
  return best;
}
void arrive(size_t number) {
  const Transfer done = launch->transfers[number];
  launch->transfers.erase(launch->transfers.begin() + static_cast<long>(number));
  if (!_setjmp(scheduler)) complete(done);
}
void run_all() {
  const uint64_t seldom = 16ull << launch->seed / 2 % 3 * 4;
  for (uint64_t turn = 0; launch->living && !failure[0]; ++turn) {
    if (turn == MOST_TURNS) snprintf(failure, sizeof(failure), "threads go on forever");
    Warp* const next = first_warp();
    const size_t transfer = first_transfer(next);
    if (transfer < launch->transfers.size()) {
      arrive(transfer);
    } else if (next) {
      warp = next;
      if (!run_warp()) next->seen = launch->changes;
      if (draw() % seldom == 0) next->priority = draw();
    } else {
      tell_deadlock();
    }
  }
}

void make_warp(Block& block, unsigned first, unsigned lanes, uint8_t* stack) {
  launch->warps.push_back(std::make_unique<Warp>());
  Warp& made = *launch->warps.back();
  made.block = &block, made.first = first, made.lanes = lanes < WARP ? lanes : WARP;
  made.priority = draw(), made.turn = draw() % WARP;
  for (unsigned i = 0; i < made.lanes; ++i, stack += STACK) {
    ucontext_t& start = made.lane[i].start;
    getcontext(&start);
    start.uc_stack.ss_sp = stack, start.uc_stack.ss_size = STACK, start.uc_link = nullptr;
    makecontext(&start, begin_lane, 0);
  }
}
void make_blocks(unsigned width, unsigned count, unsigned threads) {
  Launch& made = *launch;
  made.living = count * threads;
  made.stride = (made.shared + 2 * GUARD - 1) / GUARD * GUARD;
  made.memory.assign(static_cast<size_t>(count) * made.stride + GUARD, POISON);
  const auto begin = reinterpret_cast<uintptr_t>(made.memory.data());
  made.arena = made.memory.data() + (GUARD - begin % GUARD) % GUARD;
  made.clusters.resize(count / made.cluster), made.blocks.resize(count);
  const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  made.stacks = static_cast<uint8_t*>(mmap(nullptr, made.living * STACK, PROT_READ | PROT_WRITE, kind, -1, 0));
  for (unsigned b = 0; b < count; ++b) {
    Block& block = made.blocks[b];
    block.index = {b % width, b / width, 0}, block.rank = b % made.cluster, block.living = threads;
    block.cluster = &made.clusters[b / made.cluster], block.memory = made.arena + static_cast<size_t>(b) * made.stride;
    block.barriers.resize(made.shared / 8 + 1);
    for (unsigned first = 0; first < threads; first += WARP)
      make_warp(block, first, threads - first, made.stacks + (static_cast<size_t>(b) * threads + first) * STACK);
  }
}
void check_end() {
  if (!launch->transfers.empty()) snprintf(failure, sizeof(failure), "all threads end before a copy is complete");
  for (const Block& block : launch->blocks)
    for (unsigned i = launch->shared; i < launch->stride; ++i)
      if (block.memory[i] != POISON) snprintf(failure, sizeof(failure), "something is written behind shared memory");
}

}  // namespace

/// What is wrong, or null.
extern "C" const char* host_launch(void (*entry)(const unsigned long long*), const unsigned long long* words,
                                   unsigned width, unsigned height, unsigned threads, unsigned cluster, unsigned shared,
                                   uint64_t seed) {
  Launch made{};
  launch = &made, lane = nullptr, failure[0] = 0;
  made.entry = entry, made.words = words, made.cluster = cluster, made.shared = shared;
  made.seed = seed, made.lazy = seed % 2 == 0, made.drawn = 0x9E3779B97F4A7C15ull * (seed + 1);
  gridDim = {width, height, 1}, blockDim = {threads, 1, 1};
  make_blocks(width, width * height, threads);
  const size_t stacks = made.living * STACK;
  run_all();
  if (!failure[0]) check_end();
  munmap(made.stacks, stacks);
  launch = nullptr;
  return failure[0] ? failure : nullptr;
}

}  // namespace host

// Runs all threads of a launch of a CUDA kernel as fibers of one thread of this machine, in an order that a seed draws.
//
// A fiber goes on until it waits. Copies, and words that are sent to other blocks, are complete some time after they
// were issued, at the latest when nobody else can go on; from one to the other what lies at their destination is
// poison. Whatever is wrong ends the launch: its text is what the launch returns.

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr unsigned WARP = 32, STACK = 64 * 1024, LEAST_ADDRESS = 4096, GUARD = 1024;
constexpr unsigned char POISON = 0xFF;  // floats of such bytes are NaN
constexpr int NAMED = 16;

struct Index { unsigned x, y, z; };

/// An mbarrier. bytes: that are expected and have not come.
struct Barrier { int expected = 0, pending = 0; long bytes = 0; unsigned phase = 0; };
/// Those who wait for each other.
struct Meeting { unsigned arrived = 0, generation = 0; };
struct Cluster { Meeting all; unsigned living = 0; };
struct Block {
  Index index;
  unsigned rank, living;
  Cluster* cluster;
  uint8_t* memory;
  std::vector<Barrier> barriers;
  Meeting named[NAMED];
};
/// A thread, which waits until a word is no longer a value.
struct Lane {
  ucontext_t start;
  jmp_buf at;
  bool started = false, ended = false;
  const unsigned* word = nullptr;
  unsigned value = 0;
  std::string what;
};
struct Warp {
  Block* block;
  unsigned first, lanes, turn = 0;
  uint64_t priority = 0, seen = 0;  // seen: how many changes there were when none of its threads could go on
  Meeting all;
  int operation = 0;
  uint64_t words[2][WARP];
  Lane lane[WARP];
};
/// A copy, or a word, on its way.
struct Transfer { uint64_t priority; unsigned to, barrier, bytes; const void* from; uint64_t word; };

struct Launch {
  unsigned shared, stride, cluster, living;
  bool lazy;
  uint64_t drawn;
  std::vector<Block> blocks;
  std::vector<Cluster> clusters;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<Transfer> transfers;
  std::vector<uint8_t> memory;
  uint8_t* arena;
  uint8_t* stacks;
  void (*entry)(const unsigned long long*);
  const unsigned long long* words;
  uint64_t changes = 1;
  unsigned additions = 0;
  bool again = false;  // whether another warp may be chosen now
};

Launch* launch;
Warp* warp;
Lane* lane;
jmp_buf scheduler;
char failure[4096];

uint64_t draw() {
  uint64_t& x = launch->drawn;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x * 0x2545F4914F6CDD1Dull >> 2;
}

void say(const char* format, va_list values) {
  if (failure[0] == 0) vsnprintf(failure, sizeof(failure), format, values);
}
[[noreturn]] void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  char text[512];
  vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  if (failure[0] == 0 && lane)
    snprintf(failure, sizeof(failure), "block %u, thread %u: %s", warp->block->index.x,
             warp->first + static_cast<unsigned>(lane - warp->lane), text);
  else if (failure[0] == 0)
    snprintf(failure, sizeof(failure), "%s", text);
  _longjmp(scheduler, 1);
}

void pause() {
  if (!_setjmp(lane->at)) _longjmp(scheduler, 1);
}
/// Until a word is no longer a value.
void wait_for(const unsigned& word, unsigned value, const std::string& what) {
  if (word != value) return;
  lane->word = &word, lane->value = value, lane->what = what;
  pause();
}
/// Others may go on first.
void give_way() {
  launch->again = true;
  pause();
}
/// Of so many. Whoever comes last lets all go on.
void meet(Meeting& meeting, unsigned count, const std::string& what) {
  const unsigned generation = meeting.generation;
  if (++meeting.arrived == count) {
    meeting.arrived = 0, ++meeting.generation, ++launch->changes;
    give_way();
  } else {
    wait_for(meeting.generation, generation, what);
  }
}

// shared memory

Block& block_of(unsigned place, unsigned bytes) {
  const unsigned at = place - LEAST_ADDRESS;
  if (place < LEAST_ADDRESS || at / launch->stride >= launch->blocks.size() || at % launch->stride + bytes > launch->shared)
    fail("no shared memory has %u bytes at %u", bytes, place);
  if (place % (bytes < 16 ? bytes : 16)) fail("%u bytes at %u of shared memory are not aligned", bytes, place);
  return launch->blocks[at / launch->stride];
}
uint8_t* bytes_at(unsigned place) { return launch->arena + (place - LEAST_ADDRESS); }
unsigned offset_of(unsigned place) { return (place - LEAST_ADDRESS) % launch->stride; }
Barrier& barrier_at(unsigned place) {
  Barrier& found = block_of(place, 8).barriers[offset_of(place) / 8];
  if (found.expected == 0) fail("no barrier was started at %u of shared memory", offset_of(place));
  return found;
}
Barrier& own_barrier(unsigned place) {
  if (&block_of(place, 8) != warp->block) fail("the barrier at %u is another block's", offset_of(place));
  return barrier_at(place);
}
void settle(Barrier& barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0)
    barrier.phase ^= 1, barrier.pending = barrier.expected, ++launch->changes;
}

// transfers

void begin(const Transfer& transfer) {
  block_of(transfer.to, transfer.bytes);
  if (&block_of(transfer.to, 1) != &block_of(transfer.barrier, 8)) fail("a transfer has the barrier of another block");
  memset(bytes_at(transfer.to), POISON, transfer.bytes);
  launch->transfers.push_back(transfer);
  launch->transfers.back().priority = launch->lazy ? 0 : draw();
  give_way();
}
void complete(size_t number) {
  const Transfer done = launch->transfers[number];
  launch->transfers.erase(launch->transfers.begin() + number);
  Block& block = block_of(done.to, 1);
  if (block.living == 0) fail("what is sent to block %u comes after it has ended", block.index.x);
  memcpy(bytes_at(done.to), done.from ? done.from : &done.word, done.bytes);
  Barrier& barrier = barrier_at(done.barrier);
  barrier.bytes -= done.bytes;
  settle(barrier);
}

// the order of fibers

void begin_lane() {
  launch->entry(launch->words);
  lane->ended = true;
  --launch->living, --warp->block->living;
  _longjmp(scheduler, 1);
}
}  // namespace

extern "C" {
Index threadIdx, blockIdx, gridDim, blockDim;
}

namespace {
void run(Lane& next, unsigned thread) {
  lane = &next, next.word = nullptr;
  threadIdx = {thread, 0, 0}, blockIdx = warp->block->index;
  if (!_setjmp(scheduler)) {
    if (next.started) _longjmp(next.at, 1);
    next.started = true;
    setcontext(&next.start);
  }
  lane = nullptr;
}
/// Those of a warp that can go on, one after the other from a drawn one on. Whether there was one.
bool run_warp() {
  bool ran = false;
  launch->again = false;
  const unsigned from = warp->turn++;
  for (unsigned i = 0; i < warp->lanes && !launch->again && !failure[0]; ++i) {
    const unsigned number = (from + i) % warp->lanes;
    Lane& next = warp->lane[number];
    if (next.ended || (next.word && *next.word == next.value)) continue;
    ran = true;
    run(next, warp->first + number);
  }
  return ran;
}
/// What waits for what, of those whose threads cannot go on.
void tell_deadlock() {
  std::string text = "deadlock:";
  for (auto& each : launch->warps) {
    std::string last;
    for (unsigned i = 0; i < each->lanes; ++i) {
      const Lane& one = each->lane[i];
      if (one.ended || one.what == last) continue;
      last = one.what;
      text += " block " + std::to_string(each->block->index.x) + " from thread " + std::to_string(each->first + i) +
              " on waits for " + last + ";";
    }
  }
  snprintf(failure, sizeof(failure), "%s", text.c_str());
}
void run_all() {
  while (launch->living && !failure[0]) {
    Warp* best = nullptr;
    for (auto& each : launch->warps)
      if (each->seen != launch->changes && (!best || each->priority > best->priority)) best = each.get();
    size_t first = launch->transfers.size();
    for (size_t i = 0; i < launch->transfers.size(); ++i)
      if (first == launch->transfers.size() || launch->transfers[i].priority > launch->transfers[first].priority) first = i;
    const bool waits = first < launch->transfers.size();
    if (waits && (!best || launch->transfers[first].priority > best->priority)) {
      if (launch->lazy) first = draw() % launch->transfers.size();
      if (!_setjmp(scheduler)) complete(first);
      continue;
    }
    if (!best) return tell_deadlock();
    warp = best;
    if (!run_warp()) best->seen = launch->changes;
    if (draw() % 16 == 0) best->priority = draw();
  }
}

void make(Launch& made, unsigned grid_x, unsigned grid_y, unsigned threads) {
  const unsigned blocks = grid_x * grid_y;
  made.living = blocks * threads;
  made.stride = (made.shared + 2 * GUARD - 1) / GUARD * GUARD;
  made.memory.assign(static_cast<size_t>(blocks) * made.stride + GUARD, POISON);
  made.arena = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(made.memory.data()) + GUARD - 1) / GUARD * GUARD);
  made.clusters.resize(blocks / made.cluster), made.blocks.resize(blocks);
  const size_t bytes = static_cast<size_t>(made.living) * STACK;
  made.stacks = static_cast<uint8_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  uint8_t* stack = made.stacks;
  for (unsigned b = 0; b < blocks; ++b) {
    Block& block = made.blocks[b];
    block.index = {b % grid_x, b / grid_x, 0}, block.rank = b % made.cluster, block.living = threads;
    block.cluster = &made.clusters[b / made.cluster], block.memory = made.arena + static_cast<size_t>(b) * made.stride;
    block.barriers.resize(made.shared / 8 + 1);
    for (unsigned first = 0; first < threads; first += WARP) {
      made.warps.push_back(std::make_unique<Warp>());
      Warp& each = *made.warps.back();
      each.block = &block, each.first = first, each.lanes = threads - first < WARP ? threads - first : WARP;
      each.priority = draw(), each.turn = draw() % WARP;
      for (unsigned i = 0; i < each.lanes; ++i, stack += STACK) {
        ucontext_t& start = each.lane[i].start;
        getcontext(&start);
        start.uc_stack.ss_sp = stack, start.uc_stack.ss_size = STACK, start.uc_link = nullptr;
        makecontext(&start, begin_lane, 0);
      }
    }
  }
}
void check_end(const Launch& made) {
  for (const Block& block : made.blocks)
    for (unsigned i = made.shared; i < made.stride; ++i)
      if (block.memory[i] != POISON && !failure[0])
        snprintf(failure, sizeof(failure), "block %u wrote at %u of %u bytes of shared memory", block.index.x, i, made.shared);
  if (!made.transfers.empty() && !failure[0]) snprintf(failure, sizeof(failure), "a transfer outlives all threads");
}
}  // namespace

extern "C" {

/// What is wrong, or null.
const char* host_launch(void (*entry)(const unsigned long long*), const unsigned long long* words, unsigned grid_x,
                        unsigned grid_y, unsigned threads, unsigned cluster, unsigned shared, uint64_t seed) {
  Launch made{};
  launch = &made, failure[0] = 0, lane = nullptr;
  made.entry = entry, made.words = words, made.cluster = cluster, made.shared = shared;
  made.lazy = seed % 2 == 0, made.drawn = 0x9E3779B97F4A7C15ull * (seed + 1);
  gridDim = {grid_x, grid_y, 1}, blockDim = {threads, 1, 1};
  make(made, grid_x, grid_y, threads);
  run_all();
  if (!failure[0]) check_end(made);
  munmap(made.stacks, static_cast<size_t>(grid_x) * grid_y * threads * STACK);
  launch = nullptr;
  return failure[0] ? failure : nullptr;
}

unsigned char* host_shared_memory(unsigned bytes) {
  if (bytes > launch->shared) fail("%u bytes of shared memory, the launch has %u", bytes, launch->shared);
  return warp->block->memory;
}
unsigned host_shared_address(const void* place) {
  return static_cast<unsigned>(static_cast<const uint8_t*>(place) - launch->arena) + LEAST_ADDRESS;
}
unsigned host_in_block(unsigned place, unsigned rank) {
  if (rank >= launch->cluster) fail("no block %u in a cluster of %u", rank, launch->cluster);
  if (&block_of(place, 1) != warp->block) fail("an address of another block is mapped");
  return place + (rank - warp->block->rank) * launch->stride;
}
unsigned host_cluster_rank() { return warp->block->rank; }

void host_start_barrier(unsigned place, int arrivals) {
  if (&block_of(place, 8) != warp->block) fail("a barrier of another block is started");
  Barrier& barrier = warp->block->barriers[offset_of(place) / 8];
  if (barrier.expected) fail("the barrier at %u is started twice", offset_of(place));
  barrier.expected = barrier.pending = arrivals;
}
void host_arrive(unsigned place, unsigned bytes, int arrivals) {
  Barrier& barrier = own_barrier(place);
  barrier.bytes += bytes, barrier.pending -= arrivals;
  if (barrier.pending < 0) fail("more arrivals at the barrier at %u than it waits for", offset_of(place));
  settle(barrier);
  give_way();
}
void host_wait(unsigned place, unsigned parity) {
  wait_for(own_barrier(place).phase, parity, "the barrier at " + std::to_string(offset_of(place)));
}
void host_wait_for_threads(unsigned number, unsigned threads) {
  meet(warp->block->named[number], threads, "threads at barrier " + std::to_string(number));
}
void host_wait_for_cluster() {
  meet(warp->block->cluster->all, launch->cluster * blockDim.x, "the cluster");
}
uint64_t host_shuffle(uint64_t word, int from, int operation) {
  Warp& own = *warp;
  if (own.all.arrived && own.operation != operation) fail("threads of a warp meet in different operations");
  own.operation = operation;
  const unsigned place = own.all.generation % 2;
  own.words[place][lane - own.lane] = word;
  meet(own.all, WARP, "its warp");
  return own.words[place][from];
}
void host_copy(unsigned to, uint64_t from, unsigned bytes, unsigned barrier) {
  if (from % 16 || bytes % 16 || to % 16) fail("a copy of %u bytes is not of granules", bytes);
  begin({0, to, barrier, bytes, reinterpret_cast<const void*>(from), 0});
}
void host_send(unsigned to, uint64_t word, unsigned bytes, unsigned barrier) { begin({0, to, barrier, bytes, nullptr, word}); }
uint64_t host_add(uint64_t* to, uint64_t more) {
  const uint64_t before = *to;
  *to += more, ++launch->additions, ++launch->changes;
  give_way();
  return before;
}
void host_sleep() { wait_for(launch->additions, launch->additions, "an addition to a counter"); }

}  // extern "C"

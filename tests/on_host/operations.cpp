// What threads do that others see: barriers, exchanges within a warp, copies, and words that are sent to other blocks.
// From when a copy is issued to when it is complete what lies at its destination is poison.

#include "launch.h"

#include <cstring>
#include <utility>

namespace host {
namespace {

constexpr unsigned LEAST_ADDRESS = 4096;  // of shared memory

unsigned offset_of(unsigned place) { return (place - LEAST_ADDRESS) % launch->stride; }
uint8_t* bytes_at(unsigned place) { return launch->arena + (place - LEAST_ADDRESS); }

/// Whose shared memory a place is in.
Block& block_of(unsigned place, unsigned bytes = 1) {
  const unsigned number = (place - LEAST_ADDRESS) / launch->stride;
  if (place < LEAST_ADDRESS || number >= launch->blocks.size() || offset_of(place) + bytes > launch->shared)
    fail("no shared memory has %u bytes at %u", bytes, place);
  if (place % (bytes < 16 ? bytes : 16)) fail("%u bytes at %u of shared memory are not aligned", bytes, offset_of(place));
  return launch->blocks[number];
}
Barrier& barrier_at(unsigned place) {
  Barrier& found = block_of(place, 8).barriers[offset_of(place) / 8];
  if (found.expected == 0) fail("no barrier was started at %u of shared memory", offset_of(place));
  if (!found.fenced) fail("the barrier at %u was started without a fence", offset_of(place));
  return found;
}
Barrier& own_barrier(unsigned place) {
  if (&block_of(place, 8) != warp->block) fail("the barrier at %u is another block's", offset_of(place));
  return barrier_at(place);
}
/// The phase is over once all have arrived, and all bytes.
void settle(Barrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase ^= 1, barrier.pending = barrier.expected, ++launch->changes;
  barrier.was_reading = std::exchange(barrier.reading, false);
}

/// Whether so many are here now, who can go on.
bool all_met(Meeting& meeting, unsigned count) {
  if (++meeting.arrived < count) return false;
  meeting.arrived = 0, ++meeting.generation;
  return true;
}
void meet(Meeting& meeting, unsigned count, const char* what, unsigned number = 0) {
  const unsigned generation = meeting.generation;
  if (!all_met(meeting, count)) return wait_for(meeting.generation, generation, what, number);
  ++launch->changes;
  give_way();
}

void begin(Transfer transfer) {
  transfer.sent = &block_of(transfer.to) != warp->block;
  transfer.priority = launch->lazy ? 0 : draw();
  if (&block_of(transfer.to, transfer.bytes) != &block_of(transfer.barrier)) fail("a transfer to another block's barrier");
  memset(bytes_at(transfer.to), POISON, transfer.bytes);
  launch->transfers.push_back(transfer);
  give_way();
}

}  // namespace

void complete(const Transfer& done) {
  const Block& block = block_of(done.to);
  if (block.living == 0) fail("what is sent to block %u comes after it has ended", block.index.x);
  memcpy(bytes_at(done.to), done.from ? done.from : &done.word, done.bytes);
  Barrier& barrier = barrier_at(done.barrier);
  barrier.bytes -= done.bytes, barrier.sent |= done.sent, barrier.copied |= done.from != nullptr;
  settle(barrier);
}

extern "C" {

unsigned char* host_shared_memory(unsigned bytes) {
  if (bytes > launch->shared) fail("%u bytes of shared memory, the launch has %u", bytes, launch->shared);
  return warp->block->memory;
}
unsigned host_shared_address(const void* place) {
  return static_cast<unsigned>(static_cast<const uint8_t*>(place) - launch->arena) + LEAST_ADDRESS;
}
unsigned host_in_block(unsigned place, unsigned rank) {
  if (rank >= launch->cluster) fail("no block %u in a cluster of %u", rank, launch->cluster);
  if (&block_of(place) != warp->block) fail("an address of another block is mapped");
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
  barrier.reading |= arrivals > 0 && warp->reading;
  if (barrier.pending < 0) fail("more arrivals at the barrier at %u than it waits for", offset_of(place));
  settle(barrier);
  give_way();
}
/// What the thread has asked for of shared memory is there before what comes behind is copied there.
void host_fence_copies() { lane->reads = false; }
void host_fence_barriers() {
  for (Barrier& each : warp->block->barriers) each.fenced |= each.expected > 0;
}
/// acquires: whether what other blocks have written can be read then.
void host_wait(unsigned place, unsigned parity, int acquires) {
  const Barrier& barrier = own_barrier(place);
  wait_for(barrier.phase, parity, "the barrier in shared memory at", offset_of(place));
  if (barrier.sent && !acquires) fail("what another block has sent is awaited without acquire.cluster");
  lane->reads |= barrier.copied, lane->over = barrier.was_reading;
}
void host_wait_for_threads(unsigned number, unsigned threads) {
  meet(warp->block->named[number], threads, "threads at barrier", number);
}
void host_wait_for_cluster(unsigned threads) { meet(*warp->block->cluster, launch->cluster * threads, "the cluster"); }

uint64_t host_shuffle(uint64_t word, int from, int operation) {
  Warp& own = *warp;
  if (own.all.arrived && own.operation != operation) fail("threads of a warp meet in different operations");
  own.operation = operation;
  const unsigned generation = own.all.generation;
  uint64_t* const words = own.words[generation % 2];
  words[lane - own.lane] = word;
  if (all_met(own.all, WARP)) {
    own.reading = false;
    for (const Lane& each : own.lane) own.reading |= each.reads;
  } else {
    wait_for(own.all.generation, generation, "its warp in operation", operation);
  }
  return words[from];
}

void host_copy(unsigned to, uint64_t from, unsigned bytes, unsigned barrier) {
  if (from % 16 || bytes % 16 || to % 16) fail("a copy of %u bytes is not of granules", bytes);
  if (lane->over) fail("a stage is filled whose threads may still wait for loads from it");
  begin({to, barrier, bytes, reinterpret_cast<const void*>(from)});
}
/// By the thread itself. Its barrier is known when it says that all have been asked for.
void host_copy_element(unsigned to, uint64_t from, unsigned bytes) {
  if ((bytes != 4 && bytes != 8) || from % bytes) fail("an element of %u bytes is copied", bytes);
  if (&block_of(to, bytes) != warp->block) fail("an element is copied to another block");
  memset(bytes_at(to), POISON, bytes);
  lane->elements.push_back({to, 0, bytes, reinterpret_cast<const void*>(from)});
}
void host_arrive_behind_elements(unsigned place) {
  Barrier& barrier = own_barrier(place);
  for (Transfer& each : lane->elements) barrier.bytes += each.bytes, each.barrier = place;
  for (std::vector<Transfer> asked = std::exchange(lane->elements, {}); const Transfer& each : asked) begin(each);
  host_arrive(place, 0, 1);  // bytes that have not come keep the phase open
}
void host_send(unsigned to, uint64_t word, unsigned bytes, unsigned barrier) {
  begin({to, barrier, bytes, nullptr, word});
}

uint64_t host_add(uint64_t* to, uint64_t more) {
  const uint64_t before = *to;
  *to += more, ++launch->additions, ++launch->changes;
  give_way();
  return before;
}
void host_sleep() {
  const unsigned additions = launch->additions;
  wait_for(launch->additions, additions, "an addition to a counter");
}

/// Of the sanitizer of alignment, in place of its library's.
void __ubsan_handle_type_mismatch_v1_abort(const void* found, uintptr_t address) {
  struct Place { const char* file; unsigned line, column; };
  const auto* place = static_cast<const Place*>(found);
  fail("%s:%u: what is loaded or stored at %llx is not aligned", place->file, place->line, 0ull + address);
}

}  // extern "C"
}  // namespace host

// A launch of a CUDA kernel whose threads are fibers of one thread of this machine.

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace host {

constexpr unsigned WARP = 32, GUARD = 1024;
constexpr unsigned char POISON = 0xFF;  // floats of such bytes are NaN

struct Index { unsigned x, y, z; };

/// An mbarrier. bytes: that are expected and have not come. fenced: whether others know that it was started. sent:
/// whether bytes came from another block, copied: from memory. reading, was_reading: whether some arrived in this phase,
/// or the one before it, who may wait for loads of what was copied.
struct Barrier {
  int expected = 0, pending = 0;
  long bytes = 0;
  unsigned phase = 0;
  bool fenced = false, sent = false, copied = false, reading = false, was_reading = false;
};
/// Those who wait for each other.
struct Meeting { unsigned arrived = 0, generation = 0; };
struct Block {
  Index index;
  unsigned rank, living;
  Meeting* cluster;
  uint8_t* memory;
  std::vector<Barrier> barriers;  // by the word of shared memory where each one is
  Meeting named[16];
};
/// A copy, or a word, on its way. sent: to another block.
struct Transfer { unsigned to, barrier, bytes; const void* from; uint64_t word; bool sent; uint64_t priority; };
/// A thread. It waits until a word is no longer a value. what: it is that it waits for, and a number of that. reads:
/// whether it may wait for loads of what was copied; over: whether others may, whom it has waited for.
struct Lane {
  ucontext_t start;
  jmp_buf at;
  bool started = false, ended = false, reads = false, over = false;
  const unsigned* word = nullptr;
  unsigned value = 0, number = 0;
  const char* what = "";
  std::vector<Transfer> elements;  // that it copies, for which no barrier waits yet
};
struct Warp {
  Block* block;
  unsigned first, lanes, turn;
  uint64_t priority, seen = 0;  // seen: how many changes there were when none of its threads could go on
  Meeting all;
  int operation = 0;
  bool reading = false;  // whether one of its threads did so when they met
  uint64_t words[2][WARP];  // that lanes give each other, by turns
  Lane lane[WARP];
};

struct Launch {
  void (*entry)(const unsigned long long*);
  const unsigned long long* words;
  unsigned cluster, shared, stride;  // bytes of shared memory, and from one block's to the next one's
  bool lazy;  // whether transfers are complete only when nobody can go on
  uint64_t seed, drawn, changes = 1;
  unsigned additions = 0, living;
  bool again = false;  // whether another warp may be chosen now
  std::vector<Block> blocks;
  std::vector<Meeting> clusters;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<Transfer> transfers;
  std::vector<uint8_t> memory;
  uint8_t* arena;
  uint8_t* stacks;
};

extern Launch* launch;
extern Warp* warp;  // those of the thread that goes on
extern Lane* lane;

uint64_t draw();
/// Ends the launch.
[[noreturn]] void fail(const char* format, ...);
/// Until a word is no longer a value.
void wait_for(const unsigned& word, unsigned value, const char* what, unsigned number = 0);
/// Others may go on first.
void give_way();
/// What was sent or copied arrives.
void complete(const Transfer& done);

}  // namespace host

// Copies to shared memory that run ahead, with the barriers and clusters that they need, and which rows a chunk has.
// Instructions are those of the PTX ISA.

namespace w {

// barriers in shared memory, which count arrivals and bytes

inline void start_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// Before other threads, and copies, use what was started.
inline void started_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
inline void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
inline void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Until the phase of that parity is over. cluster: what other blocks have written is to be read.
template <bool cluster = false>
inline void wait(uint32_t barrier, uint32_t parity) {
  if constexpr (cluster)
    asm volatile(
        "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT_%=;\n}" ::"r"(barrier), "r"(parity) : "memory");
  else
    asm volatile(
        "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT_%=;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
/// Of some threads of a block.
template <int threads>
inline void wait_for_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}

// clusters

template <int cluster>
inline int rank_in_cluster() {
  if constexpr (cluster == 1) return 0;
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
/// Until all threads of all blocks of a cluster are here.
template <int cluster>
inline void wait_for_cluster() {
  if constexpr (cluster == 1)
    __syncthreads();
  else
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// The same place in the shared memory of another block of the cluster.
inline uint32_t in_block(uint32_t place, int rank) {
  uint32_t found;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(place), "r"(rank));
  return found;
}
inline void send_word(uint32_t to, uint32_t word, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(word), "r"(barrier) : "memory");
}
inline void send_word(uint32_t to, uint64_t word, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to), "l"(word), "r"(barrier) : "memory");
}

// copies that run ahead

/// Whether each thread says that it has read a stage, not one for its warp. compute-sanitizer's racecheck follows no
/// __syncwarp to that one thread (2025.3), and takes copies to stages that are free for races.
#ifndef WEFT_EVERY_LANE
#define WEFT_EVERY_LANE 0
#endif

/// How many threads of so many warps say so, and what a thread does for its warp.
constexpr int arrivals(int warps) { return WEFT_EVERY_LANE ? warps * WARP : warps; }
inline void arrive_for_warp(uint32_t barrier) {
  __syncwarp();
  if (WEFT_EVERY_LANE || threadIdx.x % WARP == 0) arrive(barrier);
}

/// Stages of shared memory that one warp fills and the others read, in turn.
template <int stages, int stage_bytes, int warps, Eviction eviction>
struct Ring {
  uint8_t* memory;
  int64_t* next_rows;
  uint32_t filled, free;  // barriers of the first stage
  int stage = 0, oldest = 0;  // to be filled or read next, and to be released next
  uint32_t parity = 0;

  Ring(uint8_t* memory, uint64_t* barriers, int64_t* next_rows = nullptr) : memory(memory), next_rows(next_rows) {
    filled = shared_address(barriers);
    free = filled + 8 * stages;
  }
  /// copies: arrivals that a stage is filled with, of the thread that copies, and of the numbers of rows that it copies.
  void start(int copies) const {
    for (int i = 0; i < stages; ++i) start_barrier(filled + 8 * i, copies), start_barrier(free + 8 * i, arrivals(warps));
  }
  void wait_until_free() const { wait(free + 8 * stage, parity ^ 1); }
  void wait_until_filled() const { wait(filled + 8 * stage, parity); }
  /// Of one thread, which has said what is copied.
  void copied() { arrive(filled + 8 * stage), next(); }
  /// The first row of the tile behind that of a stage, which is known with it.
  void set_next_row(int64_t row) const { next_rows[stage] = row; }
  int64_t next_row() const { return next_rows[stage]; }
  /// Of all threads of a warp that reads. What they have asked for of a stage has to be there before the next tile is
  /// copied to it: to arrive at a barrier does not wait for that.
  void release() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    arrive_for_warp(free + 8 * oldest);
    if (++oldest == stages) oldest = 0;
  }
  void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  uint8_t* slot(int offset) const { return memory + stage * stage_bytes + offset; }

  /// Begin to copy elements of a row, and what lies before them in the same line of the second cache, and behind them in
  /// the same granule; what does not end with a granule that the tensor has whole is copied by this thread. end: of the
  /// tensor.
  template <class T>
  void copy(int offset, const T* from, const T* to, const T* end) const {
    if (from >= to) return;
    const uint64_t first = address(from) / LINE * LINE;
    uint64_t last = (address(to) + GRANULE - 1) / GRANULE * GRANULE;
    uint8_t* const into = slot(offset);
    if (last > address(end)) {
      last = address(to) / GRANULE * GRANULE;
      const T* each = reinterpret_cast<const T*>(last);
      for (each = each < from ? from : each; each < to; ++each)
        *reinterpret_cast<T*>(into + (address(each) - first)) = *each;
    }
    if (first >= last) return;
    const uint32_t barrier = filled + 8 * stage, bytes = static_cast<uint32_t>(last - first);
    expect(barrier, bytes);
    for (uint32_t done = 0; done < bytes; done += PART)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
              shared_address(into) + done),
          "l"(first + done), "r"(min(PART, bytes - done)), "r"(barrier), "l"(cache_policy<eviction>())
          : "memory");
  }
  /// Begin to copy a number of a row. Threads that compute do not load it from memory, ahead, since a warp has six
  /// scoreboards: what is loaded for the next row may have that of what this row waits for.
  template <class T>
  void copy_number(int offset, const T* from) const {
    if constexpr (sizeof(T) < 4)
      *reinterpret_cast<T*>(slot(offset)) = *from;
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(slot(offset))), "l"(address(from)),
                   "n"(sizeof(T))
                   : "memory");
  }
  /// The stage is filled once they are there, too.
  void numbers_copied() const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(filled + 8 * stage) : "memory");
  }
  template <class T>
  const T* number(int offset) const { return reinterpret_cast<const T*>(slot(offset)); }
  /// Where the first element of a row would be of which this block has those from ``begin`` on.
  template <class T>
  const T* row(int offset, const T* row, int begin) const {
    return reinterpret_cast<const T*>(slot(offset) + address(row + begin) % LINE) - begin;
  }

  static constexpr uint32_t PART = 16384;  // bytes of one instruction
};

// the rows of a chunk

/// A place is of one segment: rows that begin alike, between two vectors or with one, where a thread keeps something of
/// its columns, `apart` from each other; a segment has so many places. Chunks have equal shares of the tiles of all
/// places, one place after the other, and a part for each place that they have tiles of. Where a place is no whole number
/// of chunks, the parts of all are numbered by chunk + place; a chunk that ends with a place has an empty part of the
/// next one then. Int: counts them, and row tiles, times the chunks.
template <class Int>
struct ChunkParts {
  Int places, chunks;

  constexpr bool are_whole() const { return chunks % places == 0; }
  constexpr Int count() const { return are_whole() ? chunks : chunks + places - 1; }
  /// Of a chunk.
  constexpr Int first(Int chunk) const { return chunk + (are_whole() ? 0 : places * chunk / chunks); }
  constexpr Int last(Int chunk) const {
    return chunk + (are_whole() ? 0 : min(places * (chunk + 1) / chunks, places - 1));
  }
  constexpr Int place(Int part) const {
    return are_whole() ? part / (chunks / places) : places * (part + 1) / (places + chunks);
  }
  /// The first part of a place, or that behind the last one.
  constexpr Int begin(Int place) const {
    if (are_whole()) return place * (chunks / places);
    return place == 0 ? 0 : (place * chunks + places - 1) / places - 1 + place;
  }
};

/// The row tiles of a part, by their first rows: one of each round of the tiles of its place.
template <class Int>
struct PartTiles {
  Int round, end;  // the next one, and that behind the last
  Int whole;  // chunks whose rows are all of this place
  Int leave, enter;  // rounds that the chunk has which goes on with another place, and before that which comes to it
  Int last;  // the round that only some of the chunks have
  Int rank, last_rank;  // of the part in its rounds, without the chunk that comes, and in the last one
  Int first, step, none;

  /// The next one, or a row behind all of them that begins as they do.
  Int next() {
    if (round >= end) return none;
    const Int before = whole * round + min(round, leave) + max(round - enter + 1, Int(0));
    return first + step * (before + (round++ < last ? rank : last_rank));
  }
};
/// The tiles of a place are dealt out in rounds, and what has as many rounds before it is done at one time, so that what
/// all chunks are at lies together: a chunk with two places is in the first rounds of one, and in the last rounds of the
/// other. rows: of a segment. turn: so many tiles fewer it has, for the time from one place to the other.
template <int apart, int tile_rows, int turn, class Int>
inline PartTiles<Int> tiles_of(const ChunkParts<Int>& parts, Int part, int chunk, int64_t all_rows) {
  const Int rows = static_cast<Int>(all_rows), places = parts.places, chunks = parts.chunks, place = parts.place(part);
  const Int step = apart * tile_rows, tiles = (rows + step - 1) / step;
  const Int left_out = !parts.are_whole() && places * tiles > chunks ? turn : 0;  // where chunks have two places
  const Int all = max(places * (tiles + left_out), Int(1)), each = all / chunks;
  const Int from = place * (tiles + left_out), to = from + tiles;
  const auto begin = [&](Int of) { return all * of / chunks; };
  // chunks that have the first and the last tiles of the place, and how many, if others of them are of other places
  const Int first = from * chunks / all, behind = to * chunks / all;
  const Int entering = begin(first) < from ? min(begin(first + 1), to) - from : 0;
  const Int whole = first + (begin(first) < from), leaving = behind < whole ? 0 : to - begin(behind);
  const Int enter = max(each, entering) - entering + (entering == 0);
  const Int own = max(min(begin(chunk + 1), to) - max(begin(chunk), from), Int(0)), rank = chunk - whole;
  const Int round = rank < 0 ? enter : 0, last_rank = begin(chunk) - begin(whole) - each * rank;
  return {round, round + own, max(behind - whole, Int(0)), leaving, enter, each, rank,
          rank < 0 ? -1 : last_rank - (0 < entering && entering <= each), place % apart, step, place % apart + step * tiles};
}

}  // namespace w

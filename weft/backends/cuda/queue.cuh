// Row tiles that the clusters of a launch take from a queue: whoever is free has the next one.

namespace w {

/// Of the thread that copies. The first tiles of a cluster are every so many of all. Those behind them are numbers of a
/// counter, which a launch takes from one multiple of what it adds up to the next. The first block of a cluster takes
/// them, each before it is asked for it, and tells the others. places: for what it tells, in the shared memory of each,
/// as many as it can be ahead of the others, which their row reductions keep together.
template <int cluster, int places>
struct TileQueue {
  enum : int { GIVEN = 2 };
  int64_t tiles, clusters = gridDim.x / cluster;
  unsigned long long* counter;
  int64_t* told;
  uint32_t barriers;  // one for each place
  int rank, turn = 0;
  unsigned long long taken = 0;

  TileQueue(int64_t tiles, unsigned long long* counter, int64_t* told, uint64_t* barriers, int rank)
      : tiles(tiles), counter(counter), told(told), barriers(shared_address(barriers)), rank(rank) {}
  void start() const {
    for (int i = 0; i < places; ++i) start_barrier(barriers + 8 * i, 1);
  }
  int64_t first() const { return blockIdx.x / cluster; }

  /// The tile behind the last one, or a number that no tile has.
  int64_t next() {
    if (turn == 0 && rank == 0) taken = atomicAdd(counter, 1ull);
    if (++turn < GIVEN) return first() + turn * clusters;
    if constexpr (cluster == 1) {
      return take();
    } else {
      const int place = (turn - GIVEN) % places;
      const uint32_t barrier = barriers + 8 * place;
      if (rank > 0) {
        arrive_and_expect(barrier, sizeof(*told));
        wait<true>(barrier, (turn - GIVEN) / places % 2);
        return told[place];
      }
      const int64_t tile = take();
      for (int other = 1; other < cluster; ++other)
        send_word(in_block(shared_address(told + place), other), static_cast<uint64_t>(tile), in_block(barrier, other));
      return tile;
    }
  }

 private:
  /// The next one of all, while the one behind it is taken from the counter. A cluster that has a tile takes one more
  /// number than it has tiles that were not given.
  int64_t take() {
    const int64_t given = GIVEN * clusters, all = max(tiles - given, 0ll) + min(clusters, tiles);
    const int64_t tile = given + static_cast<int64_t>(taken % all);
    if (tile < tiles) taken = atomicAdd(counter, 1ull);
    return tile;
  }
};

}  // namespace w

// Row reductions: of a thread, of a warp, and across the threads of a cluster.

namespace w {

struct Sum {
  template <class T> static T nothing() { return T(0); }
  template <class T> static T both(T a, T b) { return a + b; }
};
struct Max {
  template <class T> static T nothing() { return lowest<T>(); }
  template <class T> static T both(T a, T b) { return maximum(a, b); }
};
struct Min {
  template <class T> static T nothing() { return highest<T>(); }
  template <class T> static T both(T a, T b) { return minimum(a, b); }
};
/// Of states with a centre that moves.
struct Merge {
  template <class T> static T nothing() { return T(); }
  template <class T> static T both(T a, const T& b) { return a.merge(b), a; }
};

/// A row reduction of a thread: of every so many elements of its vectors, so that none waits for the one before it.
template <class Op, class T, int chains = 4>
struct Parts {
  T each[chains];
  Parts() {
#pragma unroll
    for (int i = 0; i < chains; ++i) each[i] = Op::template nothing<T>();
  }
  template <int lanes>
  void add(const T (&numbers)[lanes]) {
#pragma unroll
    for (int i = 0; i < lanes; ++i) each[i % chains] = Op::both(each[i % chains], numbers[i]);
  }
  T total() const {
    T all = each[0];
#pragma unroll
    for (int i = 1; i < chains; ++i) all = Op::both(all, each[i]);
    return all;
  }
};

/// Of another thread of the warp.
template <class T> inline T from_mask(T x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
template <class T> inline Sumexp<T> from_mask(const Sumexp<T>& x, int mask) {
  return {from_mask(x.centre, mask), from_mask(x.sum, mask)};
}
/// Of one of so many threads of the warp next to each other.
template <int threads = WARP, class T> inline T from_lane(T x, int lane) { return __shfl_sync(~0u, x, lane, threads); }
template <int threads = WARP, class T> inline Sumexp<T> from_lane(const Sumexp<T>& x, int lane) {
  return {from_lane<threads>(x.centre, lane), from_lane<threads>(x.sum, lane)};
}

/// The sum of a row's elements, and that of squared differences from their mean, in one pass: of differences from a
/// pivot, which is the middle one of three elements of the thread's own, so that little is lost where elements are large
/// and close together (Chan, Golub and LeVeque, 1979). In the end what all threads have together.
template <class T, int chains = 4>
struct Moments {
  T count = 0, pivot = 0, sums[chains], squares[chains];
  Moments() {
#pragma unroll
    for (int i = 0; i < chains; ++i) sums[i] = squares[i] = 0;
  }
  /// vector: how many were added before.
  template <int lanes>
  void add(const T (&numbers)[lanes], int vector) {
    if (vector == 0) pivot = pivot_of(numbers);
    if (lanes == 2 && vector == 1) choose_again(numbers[0]);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      const T difference = numbers[i] - pivot;
      sums[i % chains] += difference;
      squares[i % chains] = fma(difference, difference, squares[i % chains]);
    }
    count += lanes;
  }
  /// Before some are added that partly lie before or behind a row: those are replaced by the pivot, and not counted.
  template <int lanes>
  void keep_inside(T (&numbers)[lanes], bool first, int column, int columns) {
    T other = pivot;
#pragma unroll
    for (int i = lanes - 1; i >= 0; --i)
      if (first && inside(column + i, columns)) other = numbers[i];
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (!inside(column + i, columns)) numbers[i] = other, count -= 1;
    if (!first) return;
    other = pivot_of(numbers);  // as before where one of those that it is chosen from was replaced
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (!inside(column + i, columns)) numbers[i] = other;
  }
  /// As differences from another pivot, that of so many threads of the warp: sum, squares, count, and a part of the
  /// pivot, which are added up over these.
  static constexpr int numbers = 4;
  template <int threads>
  void put(T* found) const {
    T sum = sums[0], spread = squares[0];
#pragma unroll
    for (int i = 1; i < chains; ++i) sum += sums[i], spread += squares[i];
    constexpr int third = threads / 3;
    const T first = from_lane<threads>(pivot, 0), own = count > 0 ? pivot : first;  // if any thread has elements, the first one has
    const T second = from_lane<threads>(own, third + 1), common = middle(first, second, from_lane<threads>(own, 2 * third + 2));
    const T shift = own - common;
    found[0] = fma(count, shift, sum);
    found[1] = fma(shift, fma(count, shift, 2 * sum), spread);
    found[2] = count;
    found[3] = common / threads;
  }
  void set(T sum, T spread) { sums[0] = sum, squares[0] = maximum(spread, T(0)); }
  T elements() const { return sums[0]; }
  T total() const { return squares[0]; }

 private:
  template <int lanes>
  static T pivot_of(const T (&numbers)[lanes]) {
    const T found = lanes < 3 ? numbers[0] : middle(numbers[0], numbers[1], numbers[lanes < 3 ? 0 : 2]);
    return abs(found) < infinity<T>() ? found : 0;
  }
  /// Where the first vector has no three elements: with the first one of the second.
  void choose_again(T third) {
    const T found = middle(pivot, pivot + sums[1], third), shift = pivot - found;
    if (!(abs(found) < infinity<T>())) return;
    const T sum = sums[0] + sums[1];
    sums[0] = fma(count, shift, sum), sums[1] = 0;
    squares[0] = fma(shift, fma(count, shift, 2 * sum), squares[0] + squares[1]), squares[1] = 0;
    pivot = found;
  }
  /// Of three, so that one that is far from all others is no pivot.
  static T middle(T x, T y, T z) { return maximum(minimum(x, y), minimum(maximum(x, y), z)); }
};

/// Of so many threads of the warp next to each other, by each of them.
template <class Op, int threads = WARP, class T>
inline T of_warp(T x) {
#pragma unroll
  for (int mask = threads / 2; mask > 0; mask /= 2) x = Op::both(x, from_mask(x, mask));
  return x;
}

/// A number, or a state of several, as it is sent and as it lies in shared memory.
template <int bytes> struct Word { using type = uint64_t; };
template <> struct Word<4> { using type = uint32_t; };
template <class T> struct alignas(typename Word<sizeof(T)>::type) Words {
  using Each = typename Word<sizeof(T)>::type;
  static constexpr int count = sizeof(T) / sizeof(Each);
  static_assert(count * sizeof(Each) == sizeof(T));
  Each each[count];
};

template <class T> struct Numbers { using type = T; static constexpr int count = 1; static T& get(T& x, int) { return x; } };
template <class T, int n> struct Numbers<T[n]> { using type = T; static constexpr int count = n; static T& get(T (&x)[n], int i) { return x[i]; } };

/// Reductions across the threads of a cluster that compute. Each has a place in shared memory, in turn: whoever writes
/// there knows that all have read what was there before, since they have sent something in between. So there are two
/// places where what was sent is received before the next is sent, four where one more may be sent before.
/// are_groups: whether those are the warps of one of several groups of a block; lanes: threads of each of them, fewer
/// than a warp has where several groups share one.
template <int cluster, int warps, int most, int places, bool are_groups = false, int lanes = WARP>
struct Exchange {
  static constexpr int parts = cluster * warps;
  static_assert(lanes == WARP || parts == 1);
  uint8_t* memory;    // 8 bytes for each part of each of the most words, in each place
  uint32_t barriers;  // one for each place
  int rank;
  unsigned sent = 0;

  Exchange(uint8_t* memory, uint64_t* barriers, int rank)
      : memory(memory), barriers(shared_address(barriers)), rank(rank) {}
  void start() const {
    for (int i = 0; i < places; ++i) start_barrier(barriers + 8 * i, cluster > 1 ? 1 : arrivals(warps));
  }

  /// What each thread has is replaced by what all have together. Numbers or states, or arrays of them, of one type.
  template <class Op, class... A>
  void reduce(A&... each) {
    if constexpr (parts > 1) {
      receive<Op>(send<Op>(each...), each...);
    } else {
      using T = typename Numbers<typename First<A...>::type>::type;
      T found[(Numbers<A>::count + ...)];
      int at = 0;
      (read(each, found, at), ...);
      reduce_in_warp<Op>(found);
      at = 0;
      (write(each, found, at), ...);
    }
  }

  /// What each thread has, to all others. The number is that by which it is received.
  template <class Op, class... A>
  unsigned send(A&... each) {
    using T = typename Numbers<typename First<A...>::type>::type;
    constexpr int count = (Numbers<A>::count + ...);
    static_assert(count * ((sizeof(T) + 7) / 8) <= most);
    T found[count];
    int at = 0;
    (read(each, found, at), ...);
    return send_numbers<Op>(found);
  }

  /// What all threads have together of what they have sent.
  template <class Op, class... A>
  void receive(unsigned number, A&... each) {
    using T = typename Numbers<typename First<A...>::type>::type;
    constexpr int count = (Numbers<A>::count + ...);
    T found[count];
    wait<(cluster > 1)>(barrier_of(number), number / places % 2);
    Some<Op, T, count, 0>::receive_all(found, place_of<T>(number));
    int at = 0;
    (write(each, found, at), ...);
  }

  /// The same of sums and squared differences from their means, of rows with so many columns.
  template <class... A>
  void reduce_moments(int columns, A&... each) {
    if constexpr (parts > 1) {
      receive_moments(columns, send_moments(each...), each...);
    } else {
      using State = typename Numbers<typename First<A...>::type>::type;
      decltype(State::count) found[State::numbers * (Numbers<A>::count + ...)];
      int at = 0;
      (put(each, found, at), ...);
      reduce_in_warp<Sum>(found);
      at = 0;
      (set_moments(each, columns, found, at), ...);
    }
  }
  template <class... A>
  unsigned send_moments(A&... each) {
    using State = typename Numbers<typename First<A...>::type>::type;
    decltype(State::count) found[State::numbers * (Numbers<A>::count + ...)];
    int at = 0;
    (put(each, found, at), ...);
    return send_numbers<Sum>(found);
  }
  template <class... A>
  void receive_moments(int columns, unsigned number, A&... each) {
    wait<(cluster > 1)>(barrier_of(number), number / places % 2);
    int at = 0;
    (set(each, columns, number, at), ...);
  }

 private:
  /// Numbers of the threads of the only warp are replaced by what all have together.
  template <class Op, class T, int count>
  static void reduce_in_warp(T (&found)[count]) { Some<Op, T, count, 0>::reduce_all(found); }
  template <class Op, class T, int count>
  unsigned send_numbers(const T (&found)[count]) {
    const uint32_t barrier = barrier_of(sent);
    if (cluster > 1 && threadIdx.x == 0) arrive_and_expect(barrier, parts * count * sizeof(T));
    Some<Op, T, count, 0>::send_all(*this, found, place_of<T>(sent), barrier);
    if (cluster == 1) arrive_for_warp(barrier);
    return sent++;
  }
  template <class A, class T> static void put(A& each, T* found, int& at) {
    using State = typename Numbers<A>::type;
#pragma unroll
    for (int i = 0; i < Numbers<A>::count; ++i, at += State::numbers) Numbers<A>::get(each, i).template put<lanes>(found + at);
  }
  /// What the only warp has, about the mean.
  template <class A, class T> static void set_moments(A& each, int columns, const T* found, int& at) {
    using State = typename Numbers<A>::type;
#pragma unroll
    for (int i = 0; i < Numbers<A>::count; ++i, at += State::numbers) {
      const T count = found[at + 2], pivot = found[at + 3], sum = fma(count, pivot, found[at]), shift = pivot - sum / columns;
      Numbers<A>::get(each, i).set(sum, fma(shift, fma(count, shift, 2 * found[at]), found[at + 1]));
    }
  }
  /// What the warps of a cluster have sent is brought together about the mean of all.
  template <class A> void set(A& each, int columns, unsigned number, int& at) const {
    using State = typename Numbers<A>::type;
    using T = decltype(State::count);
    const int lane = threadIdx.x % WARP;
    const Words<T>* const place = place_of<T>(number);
    const auto of = [&](int k, int part) { return __builtin_bit_cast(T, place[k * parts + part]); };
#pragma unroll
    for (int i = 0; i < Numbers<A>::count; ++i, at += State::numbers) {
      T sum = 0, spread = 0;
#pragma unroll
      for (int part = lane; part < parts; part += WARP) sum += fma(of(at + 2, part), of(at + 3, part), of(at, part));
      sum = of_warp<Sum>(sum);
      const T mean = sum / columns;
#pragma unroll
      for (int part = lane; part < parts; part += WARP) {
        const T shift = of(at + 3, part) - mean;
        spread += fma(shift, fma(of(at + 2, part), shift, 2 * of(at, part)), of(at + 1, part));
      }
      Numbers<A>::get(each, i).set(sum, of_warp<Sum>(spread));
    }
  }
  template <class T>
  Words<T>* place_of(unsigned number) const { return reinterpret_cast<Words<T>*>(memory + number % places * 8 * parts * most); }
  uint32_t barrier_of(unsigned number) const { return barriers + 8 * (number % places); }
  template <class F, class...> struct First { using type = F; };
  static constexpr int power(int n) { int p = 1; while (p < n) p *= 2; return p; }

  /// Of so many numbers, those from one on: up to eight at a time, for each of which a group of neighbouring lanes is
  /// responsible.
  template <class Op, class T, int count, int first>
  struct Some {
    static constexpr int own = count - first < 8 ? count - first : 8, groups = power(own), width = lanes / groups;

    /// Of all lanes, by those of the group that is responsible.
    static T of_lanes(const T (&found)[count]) {
      const int lane = threadIdx.x % lanes;
      T some[groups];
#pragma unroll
      for (int i = 0; i < groups; ++i) some[i] = i < own ? found[first + (i < own ? i : 0)] : Op::template nothing<T>();
      // each half of the lanes goes on with half of the numbers
#pragma unroll
      for (int half = groups / 2; half > 0; half /= 2) {
        const int mask = lanes / 2 / (groups / 2 / half);
        const bool upper = lane & mask;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const T kept = upper ? some[i + half] : some[i], given = upper ? some[i] : some[i + half];
          some[i] = Op::both(kept, from_mask(given, mask));
        }
      }
      return of_warp<Op, width>(some[0]);
    }
    static void reduce_all(T (&found)[count]) {
      const T all = of_lanes(found);
#pragma unroll
      for (int i = 0; i < own; ++i) found[first + i] = from_lane<lanes>(all, i * width);
      if constexpr (first + 8 < count) Some<Op, T, count, first + 8>::reduce_all(found);
    }

    static void send_all(const Exchange& exchange, const T (&found)[count], Words<T>* place, uint32_t barrier) {
      const int lane = threadIdx.x % WARP, group = lane / width, within = lane % width;
      const int warp = are_groups ? threadIdx.x / WARP % warps : threadIdx.x / WARP;
      const T all = of_lanes(found);
      const auto words = __builtin_bit_cast(Words<T>, all);
      Words<T>* const mine = place + (first + group) * parts + exchange.rank * warps + warp;
      if (group < own) {
        if constexpr (cluster == 1) {
          if (within == 0) *mine = words;
        } else {
#pragma unroll
          for (int block = 0; block < cluster; block += width)
            if (cluster - block >= width || within < cluster - block) {
              const uint32_t to = in_block(shared_address(mine), block + within), arrived = in_block(barrier, block + within);
#pragma unroll
              for (int k = 0; k < words.count; ++k) send_word(to + k * sizeof(words.each[k]), words.each[k], arrived);
            }
        }
      }
      if constexpr (first + 8 < count) Some<Op, T, count, first + 8>::send_all(exchange, found, place, barrier);
    }

    static void receive_all(T (&found)[count], const Words<T>* place) {
      const int lane = threadIdx.x % WARP, group = lane / width, within = lane % width;
      T all = Op::template nothing<T>();
      const Words<T>* const from = place + (first + group) * parts;
#pragma unroll
      for (int part = 0; part < parts; part += width)
        if (group < own && (parts - part >= width || within < parts - part))
          all = Op::both(all, __builtin_bit_cast(T, from[part + within]));
      all = of_warp<Op, width>(all);
#pragma unroll
      for (int i = 0; i < own; ++i) found[first + i] = from_lane<lanes>(all, i * width);
      if constexpr (first + 8 < count) Some<Op, T, count, first + 8>::receive_all(found, place);
    }
  };

  template <class A, class T> static void read(A& each, T* found, int& at) {
#pragma unroll
    for (int i = 0; i < Numbers<A>::count; ++i) found[at++] = Numbers<A>::get(each, i);
  }
  template <class A, class T> static void write(A& each, const T* found, int& at) {
#pragma unroll
    for (int i = 0; i < Numbers<A>::count; ++i) Numbers<A>::get(each, i) = found[at++];
  }
};

}  // namespace w

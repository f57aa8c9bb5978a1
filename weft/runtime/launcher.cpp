// The kernel of weft::launch for tensors of a CPU and of a GPU: calls like earlier ones, without Python.
//
// A call that is like none before goes to weft::_launch_checked, the implementation in Python. That does all of it, and
// says in what it returns whether calls like it (the same kernel, dtypes, sizes, strides and parameters) need no more
// than the kernel's function; then the next one is a comparison of numbers and a call from here. On a GPU it says what
// is started on which stream, with what memory beside the tensors.
//
// Only PyTorch's C interface is used, whose types and functions stay the same from release to release. A kernel owns the
// handles of its arguments, and torch_call_dispatcher takes those it is given; it leaks strings (torch 2.13), which
// therefore go to Python as addresses. The one exception is an exception: that of a GPU without memory, which users catch.

#include <c10/util/Exception.h>
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

using Function = void (*)(void** buffers, const int64_t* parameters, int threads);

enum Argument { DIGEST, KERNEL, INPUTS, OUTPUTS, SIZES, OPTIONS, ARGUMENTS };

constexpr size_t MOST_FITTINGS = 16;  // of one kernel; tensors of other sizes make more
constexpr uintptr_t LARGE_PAGE_BYTES = uintptr_t{2} << 20;

int64_t* counts;      // launches and their bytes, in memory that Python reads
void (*interrupt)();  // makes Python's main thread raise KeyboardInterrupt

/// What GPUs are used through: a function of PyTorch's, and of the CUDA driver. They return 0 if all went well.
struct Gpu {
  int (*current_stream)(int32_t device, void** stream);
  int (*current_device)(int* device);
  int (*is_capturing)(void* stream, int* status);
  int (*start)(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
               unsigned shared_bytes, void* stream, void** arguments, void** extra);
  int (*start_together)(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                        unsigned shared_bytes, void* stream, void** arguments);
};
Gpu gpu;

void require(AOTITorchError error, const char* what) {
  if (error != 0) throw std::runtime_error(std::string("weft: PyTorch refused ") + what);
}

template <class T>
T from(StableIValue value) {
  static_assert(sizeof(T) == sizeof(value));
  T result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

const char* text(StableIValue value) {
  const char* data = nullptr;
  require(torch_string_c_str(from<StringHandle>(value), &data), "a string");
  return data;
}

template <class T>
void append(StableIValue list, std::vector<T>& to) {
  const auto handle = from<StableListHandle>(list);
  size_t size = 0;
  require(torch_list_size(handle, &size), "a list");
  for (size_t i = 0; i < size; ++i) {
    StableIValue item;
    require(torch_list_get_item(handle, i, &item), "a list");
    to.push_back(from<T>(item));
  }
}

/// Where a tensor's elements lie, from its data pointer.
struct Layout {
  int32_t device = 0, index = 0, dtype = 0;
  int64_t dim = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;

  explicit Layout(AtenTensorHandle tensor) {
    int64_t *size = nullptr, *stride = nullptr;
    require(aoti_torch_get_device_type(tensor, &device), "a tensor's device");
    require(aoti_torch_get_device_index(tensor, &index), "a tensor's device");
    require(aoti_torch_get_dtype(tensor, &dtype), "a tensor's dtype");
    require(aoti_torch_get_dim(tensor, &dim), "a tensor's shape");
    require(aoti_torch_get_sizes(tensor, &size), "a tensor's shape");
    require(aoti_torch_get_strides(tensor, &stride), "a tensor's strides");
    sizes = size, strides = stride;
  }

  /// The numbers that say all of it, behind each other.
  void append_to(std::vector<int64_t>& numbers) const {
    numbers.insert(numbers.end(), {device, index, dtype, dim});
    numbers.insert(numbers.end(), sizes, sizes + dim);
    numbers.insert(numbers.end(), strides, strides + dim);
  }

  /// Whether those numbers are at this place; moves the place behind them.
  bool equals(const int64_t*& place) const {
    const int64_t* given = place;
    if (given[0] != device || given[1] != index || given[2] != dtype || given[3] != dim) return false;
    place += 4 + 2 * dim;
    return std::equal(sizes, sizes + dim, given + 4) && std::equal(strides, strides + dim, given + 4 + dim);
  }
};

/// The arguments of a call. It owns the strings; the tensors are those of the lists, which somebody has to take or free.
struct Call {
  const StableIValue* stack;
  const char *digest, *kernel;
  std::string_view options, check, margin;  // all of them; the kind of check; the rest
  std::vector<AtenTensorHandle> tensors;  // inputs, then outputs
  std::vector<int64_t> parameters;
  size_t inputs = 0;

  explicit Call(const StableIValue* given)
      : stack(given), digest(text(stack[DIGEST])), kernel(text(stack[KERNEL])), options(text(stack[OPTIONS])) {
    check = options.substr(0, options.find(' '));
    margin = options.substr(check.size());
    tensors.reserve(16);
    append(stack[INPUTS], tensors);
    inputs = tensors.size();
    append(stack[OUTPUTS], tensors);
    append(stack[SIZES], parameters);
  }
  Call(const Call&) = delete;

  ~Call() {
    for (const auto string : {DIGEST, KERNEL, OPTIONS}) torch_delete_string(from<StringHandle>(stack[string]));
  }

  /// Of the tensors' elements.
  const std::vector<void*>& addresses() const {
    if (addresses_.empty()) {
      addresses_.resize(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i)
        require(aoti_torch_get_data_ptr(tensors[i], &addresses_[i]), "a tensor's memory");
    }
    return addresses_;
  }

  void free_lists() const {
    for (const auto tensor : tensors) aoti_torch_delete_tensor_object(tensor);
    for (const auto list : {INPUTS, OUTPUTS, SIZES}) torch_delete_list(from<StableListHandle>(stack[list]));
  }

 private:
  mutable std::vector<void*> addresses_;
};

/// What calls are like that can be repeated.
struct Likeness {
  std::vector<int64_t> layouts;  // of all tensors behind each other
  std::vector<int64_t> parameters;
  size_t tensors = 0, inputs = 0;
  std::string margin;

  explicit Likeness(const Call& call)
      : parameters(call.parameters), tensors(call.tensors.size()), inputs(call.inputs), margin(call.margin) {
    for (const auto tensor : call.tensors) Layout(tensor).append_to(layouts);
  }

  bool has(const Call& call) const {
    if (call.tensors.size() != tensors || call.inputs != inputs || call.parameters != parameters) return false;
    const int64_t* place = layouts.data();
    return call.margin == margin && std::all_of(call.tensors.begin(), call.tensors.end(), [&](AtenTensorHandle tensor) {
             return Layout(tensor).equals(place);
           });
  }

  bool operator==(const Likeness& other) const = default;
};

/// Numbers that Python gives, one after the other.
class Numbers {
 public:
  explicit Numbers(std::vector<int64_t> numbers) : numbers_(std::move(numbers)) {}
  int64_t next() { return numbers_.at(at_++); }
  bool more() const { return at_ < numbers_.size(); }

 private:
  std::vector<int64_t> numbers_;
  size_t at_ = 0;
};

/// How calls like an earlier one are made.
struct Fitting {
  Likeness likeness;
  bool compared = false;  // with the reference, as the check "first" asks for
  int64_t bytes = 0;      // of all tensors

  Fitting(Likeness like, Numbers& numbers)
      : likeness(std::move(like)), compared(numbers.next() != 0), bytes(numbers.next()) {}
  virtual ~Fitting() = default;

  virtual bool fits(const Call& call) const {
    return (call.check == "off" || (call.check == "first" && compared)) && likeness.has(call);
  }

  /// Whether it replaces another one.
  virtual bool is_like(const Fitting& other) const { return likeness == other.likeness; }

  /// Make the call; whether that was possible.
  virtual bool run(const Call& call) const = 0;
};

/// As weft/runtime/pages.py does.
void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  const auto start = reinterpret_cast<uintptr_t>(data);
  const auto first = (start + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
  const auto last = (start + bytes) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

/// A function in C++, as weft/runtime/cpu.py calls it.
struct CpuFitting : Fitting {
  Function function = nullptr;
  int threads = 1;             // more are not worth it
  std::vector<int64_t> large;  // bytes of each output that is worth large pages, 0 for the others

  CpuFitting(Likeness like, Numbers numbers) : Fitting(std::move(like), numbers) {
    function = reinterpret_cast<Function>(numbers.next());
    threads = static_cast<int>(numbers.next());
    while (numbers.more()) large.push_back(numbers.next());
  }

  bool run(const Call& call) const override {
    std::vector<void*> buffers = call.addresses();
    for (size_t i = 0; i < large.size(); ++i)
      if (large[i] > 0) prefer_large_pages(buffers[likeness.inputs + i], large[i]);
    uint32_t most = 1;
    require(torch_get_num_threads(&most), "the number of threads");
    function(buffers.data(), likeness.parameters.data(), std::min(static_cast<int>(most), threads));
    return true;
  }
};

/// Memory of a GPU that is given back to PyTorch's allocator, for what comes later on the same stream only.
class Workspace {
 public:
  /// On the device of a tensor; without memory if there is none.
  Workspace(const AtenTensorHandle like, int64_t bytes) {
    const Layout layout(like);
    const int64_t stride = 1;
    if (aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(), layout.device, layout.index, &tensor_) != 0)
      tensor_ = nullptr;
    else if (aoti_torch_get_data_ptr(tensor_, &data) != 0)
      data = nullptr;
  }
  Workspace(const Workspace&) = delete;
  ~Workspace() {
    if (tensor_ != nullptr) aoti_torch_delete_tensor_object(tensor_);
  }

  void* data = nullptr;

 private:
  AtenTensorHandle tensor_ = nullptr;
};

/// Functions of a GPU, as weft/runtime/gpu.py starts them.
struct GpuFitting : Fitting {
  struct Start {
    void* function;
    unsigned x, y, threads, shared_bytes;
    bool together;  // programs wait for each other
  };

  int32_t device;
  uintptr_t alignment_bytes;
  bool aligned;       // whether every tensor is
  uintptr_t counter;  // of programs that arrive at a barrier, 0 without one: for launches of one stream, in no graph
  void* stream;       // that stream
  size_t arguments;   // of each function; behind those that have values are null pointers
  int64_t workspace_bytes;
  std::vector<int64_t> slices;  // where in the workspace partial results are
  std::vector<Start> starts;

  GpuFitting(Likeness like, Numbers numbers) : Fitting(std::move(like), numbers) {
    device = static_cast<int32_t>(numbers.next());
    alignment_bytes = static_cast<uintptr_t>(numbers.next());
    aligned = numbers.next() != 0;
    counter = static_cast<uintptr_t>(numbers.next());
    stream = reinterpret_cast<void*>(numbers.next());
    arguments = static_cast<size_t>(numbers.next());
    workspace_bytes = numbers.next();
    slices.resize(static_cast<size_t>(numbers.next()));
    for (auto& slice : slices) slice = numbers.next();
    while (numbers.more()) {
      auto& start = starts.emplace_back();
      start.function = reinterpret_cast<void*>(numbers.next());
      for (unsigned* const number : {&start.x, &start.y, &start.threads, &start.shared_bytes})
        *number = static_cast<unsigned>(numbers.next());
      start.together = numbers.next() != 0;
    }
  }

  bool is_like(const Fitting& other) const override {
    const auto* const same = dynamic_cast<const GpuFitting*>(&other);
    return same != nullptr && Fitting::is_like(other) && same->aligned == aligned && same->stream == stream;
  }

  bool fits(const Call& call) const override {
    if (!Fitting::fits(call)) return false;
    uintptr_t all = 0;
    for (void* const address : call.addresses()) all |= reinterpret_cast<uintptr_t>(address);
    int current = -1;
    if ((all % alignment_bytes == 0) != aligned || gpu.current_device(&current) != 0 || current != device) return false;
    if (counter == 0) return true;
    int capturing = 0;
    return current_stream() == stream && gpu.is_capturing(stream, &capturing) == 0 && capturing == 0;
  }

  bool run(const Call& call) const override {
    std::vector<void*> values = call.addresses();
    values.reserve(arguments);
    std::optional<Workspace> workspace;
    if (!slices.empty()) {
      workspace.emplace(call.tensors.front(), workspace_bytes);
      if (workspace->data == nullptr) return false;
      for (const auto slice : slices) values.push_back(static_cast<char*>(workspace->data) + slice);
    }
    if (counter != 0) values.push_back(reinterpret_cast<void*>(counter));
    for (const auto parameter : likeness.parameters) values.push_back(reinterpret_cast<void*>(parameter));
    values.resize(arguments, nullptr);
    std::vector<void*> places(arguments);
    std::transform(values.begin(), values.end(), places.begin(), [](void*& value) { return &value; });
    void* const now = current_stream();
    return std::all_of(starts.begin(), starts.end(), [&](const Start& s) {
      return 0 == (s.together ? gpu.start_together(s.function, s.x, s.y, 1, s.threads, 1, 1, s.shared_bytes, now, places.data())
                              : gpu.start(s.function, s.x, s.y, 1, s.threads, 1, 1, s.shared_bytes, now, places.data(), nullptr));
    });
  }

 private:
  void* current_stream() const {
    void* found = nullptr;
    require(gpu.current_stream(device, &found), "the current stream");
    return found;
  }
};

/// The fittings of all kernels by digest, newest first.
class Table {
 public:
  std::shared_ptr<const Fitting> find(const Call& call) const {
    const std::shared_lock lock(mutex_);
    const auto found = kernels_.find(std::string_view(call.digest));
    if (found == kernels_.end()) return nullptr;
    for (const auto& fitting : found->second)
      if (fitting->fits(call)) return fitting;
    return nullptr;
  }

  /// How often something was forgotten.
  uint64_t age() const { return age_.load(); }

  /// Keep a fitting, unless something was forgotten since that age: it may be what the fitting was made of.
  void add(const std::string& digest, std::shared_ptr<const Fitting> fitting, uint64_t age) {
    const std::unique_lock lock(mutex_);
    if (age != age_) return;
    auto& known = kernels_[digest];
    std::erase_if(known, [&](const auto& other) { return other->is_like(*fitting); });
    if (known.size() == MOST_FITTINGS) known.pop_back();
    known.insert(known.begin(), std::move(fitting));
  }

  void forget(const char* digest) {
    const std::unique_lock lock(mutex_);
    ++age_;
    if (digest == nullptr) kernels_.clear();
    else kernels_.erase(digest);
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view digest) const { return std::hash<std::string_view>{}(digest); }
  };

  mutable std::shared_mutex mutex_;
  std::atomic<uint64_t> age_ = 0;
  std::unordered_map<std::string, std::vector<std::shared_ptr<const Fitting>>, Hash, std::equal_to<>> kernels_;
};

Table& table() {
  static Table* const table = new Table;  // never destroyed: threads may launch while the process ends
  return *table;
}

/// Numbers in a text. Not with a stream: where PyTorch carries a C++ library of its own, theirs read through another one's
/// tables and crash (2.11 with CUDA).
std::vector<int64_t> numbers_in(const char* text) {
  std::vector<int64_t> numbers;
  for (char* end = nullptr;; text = end) {
    const int64_t number = std::strtoll(text, &end, 10);
    if (end == text) return numbers;
    numbers.push_back(number);
  }
}

/// Have Python do a call, and keep what it says of calls like it.
void run_checked(const Call& call) {
  Likeness likeness(call);  // Python takes the tensors
  const std::string digest = call.digest;
  const uint64_t age = table().age();
  const char* const texts[] = {call.digest, call.kernel, call.options.data()};
  StableIValue stack[] = {reinterpret_cast<StableIValue>(texts), call.stack[INPUTS], call.stack[OUTPUTS], call.stack[SIZES]};
  require(torch_call_dispatcher("weft::_launch_checked", "", stack, TORCH_ABI_VERSION), "a launch");
  const std::string answer(text(stack[0]));  // see launch.py for what it says
  torch_delete_string(from<StringHandle>(stack[0]));
  const std::string word = answer.substr(0, answer.find(' '));
  const auto said = [&] { return answer.substr(std::min(word.size() + 1, answer.size())); };
  const auto numbers = [&] { return Numbers(numbers_in(answer.c_str() + word.size())); };
  if (word == "interrupt") {
    interrupt();
    throw std::runtime_error("KeyboardInterrupt");
  }
  if (word == "memory") throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, said());
  if (word == "error") throw std::runtime_error(said());
  if (word == "cpu") table().add(digest, std::make_shared<CpuFitting>(std::move(likeness), numbers()), age);
  if (word == "cuda") table().add(digest, std::make_shared<GpuFitting>(std::move(likeness), numbers()), age);
}

void launch(StableIValue* stack, uint64_t, uint64_t) {
  const Call call(stack);
  const auto fitting = table().find(call);
  if (fitting == nullptr || !fitting->run(call)) {
    run_checked(call);
    return;
  }
  __atomic_fetch_add(&counts[0], 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&counts[1], fitting->bytes, __ATOMIC_RELAXED);
  call.free_lists();
}

}  // namespace

/// Register the kernel for an operator of weft's and a kind of device, "CPU" or "CUDA"; nonzero if PyTorch refuses.
/// to: two numbers that launches and their bytes are added to. set_interrupt: Python's PyErr_SetInterrupt.
extern "C" int weft_launcher_register(const char* name, const char* device, int64_t* to, void (*set_interrupt)()) {
  counts = to;
  interrupt = set_interrupt;
  TorchLibraryHandle library = nullptr;  // never deleted, which would take the kernel away
  if (const auto error = aoti_torch_library_init_impl("weft", device, __FILE__, __LINE__, &library)) return error;
  return torch_library_impl(library, name, launch, TORCH_ABI_VERSION);
}

/// Use GPUs through these functions, in the order of Gpu.
extern "C" void weft_launcher_use_gpu(void* const* functions) { std::memcpy(&gpu, functions, sizeof(gpu)); }

/// Let the next call of a kernel go to Python, or of every kernel if the digest is null.
extern "C" void weft_launcher_forget(const char* digest) { table().forget(digest); }

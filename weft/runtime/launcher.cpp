// The CPU kernel of weft::launch: calls like earlier ones, without Python.
//
// A call that is like none before goes to weft::_launch_checked, the implementation in Python. That does all of it, and
// says in what it returns whether calls like it (the same kernel, dtypes, sizes, strides and parameters) need no more
// than the kernel's function; then the next one is a comparison of numbers and a call from here.
//
// Only PyTorch's C interface is used, whose types and functions stay the same from release to release. A kernel owns the
// handles of its arguments, and torch_call_dispatcher takes those it is given; it leaks strings (torch 2.13), which
// therefore go to Python as addresses.

#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sstream>
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

enum Argument { DIGEST, KERNEL, INPUTS, OUTPUTS, SIZES, CHECK, ARGUMENTS };

constexpr size_t MOST_FITTINGS = 16;  // of one kernel; tensors of other sizes make more
constexpr uintptr_t LARGE_PAGE_BYTES = uintptr_t{2} << 20;

int64_t* counts;      // launches and their bytes, in memory that Python reads
void (*interrupt)();  // makes Python's main thread raise KeyboardInterrupt

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
  int32_t device = 0, dtype = 0;
  int64_t dim = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;

  explicit Layout(AtenTensorHandle tensor) {
    int64_t *size = nullptr, *stride = nullptr;
    require(aoti_torch_get_device_type(tensor, &device), "a tensor's device");
    require(aoti_torch_get_dtype(tensor, &dtype), "a tensor's dtype");
    require(aoti_torch_get_dim(tensor, &dim), "a tensor's shape");
    require(aoti_torch_get_sizes(tensor, &size), "a tensor's shape");
    require(aoti_torch_get_strides(tensor, &stride), "a tensor's strides");
    sizes = size, strides = stride;
  }

  /// The numbers that say all of it, behind each other.
  void append_to(std::vector<int64_t>& numbers) const {
    numbers.insert(numbers.end(), {device, dtype, dim});
    numbers.insert(numbers.end(), sizes, sizes + dim);
    numbers.insert(numbers.end(), strides, strides + dim);
  }

  /// Whether those numbers are at this place; moves the place behind them.
  bool equals(const int64_t*& place) const {
    const int64_t* given = place;
    if (given[0] != device || given[1] != dtype || given[2] != dim) return false;
    place += 3 + 2 * dim;
    return std::equal(sizes, sizes + dim, given + 3) && std::equal(strides, strides + dim, given + 3 + dim);
  }
};

/// The arguments of a call. It owns the strings; the tensors are those of the lists, which somebody has to take or free.
struct Call {
  const StableIValue* stack;
  const char *digest, *kernel;
  std::string_view check;
  std::vector<AtenTensorHandle> tensors;  // inputs, then outputs
  std::vector<int64_t> parameters;
  size_t inputs = 0;

  explicit Call(const StableIValue* given)
      : stack(given), digest(text(stack[DIGEST])), kernel(text(stack[KERNEL])), check(text(stack[CHECK])) {
    tensors.reserve(16);
    append(stack[INPUTS], tensors);
    inputs = tensors.size();
    append(stack[OUTPUTS], tensors);
    append(stack[SIZES], parameters);
  }
  Call(const Call&) = delete;

  ~Call() {
    for (const auto string : {DIGEST, KERNEL, CHECK}) torch_delete_string(from<StringHandle>(stack[string]));
  }

  void free_lists() const {
    for (const auto tensor : tensors) aoti_torch_delete_tensor_object(tensor);
    for (const auto list : {INPUTS, OUTPUTS, SIZES}) torch_delete_list(from<StableListHandle>(stack[list]));
  }
};

/// What calls are like that a function can be called for, and how it is called.
struct Fitting {
  std::vector<int64_t> layouts;  // of all tensors behind each other
  std::vector<int64_t> parameters;
  size_t tensors = 0, inputs = 0;
  Function function = nullptr;
  int threads = 1;       // more are not worth it
  int64_t bytes = 0;     // of all tensors
  bool compared = false; // with the reference, as the check "first" asks for
  std::vector<int64_t> large;  // bytes of each output that is worth large pages, 0 for the others

  explicit Fitting(const Call& call)
      : parameters(call.parameters), tensors(call.tensors.size()), inputs(call.inputs) {
    for (const auto tensor : call.tensors) Layout(tensor).append_to(layouts);
  }

  bool fits(const Call& call) const {
    if (call.check != "off" && !(call.check == "first" && compared)) return false;
    if (call.tensors.size() != tensors || call.inputs != inputs || call.parameters != parameters) return false;
    const int64_t* place = layouts.data();
    return std::all_of(call.tensors.begin(), call.tensors.end(),
                       [&](AtenTensorHandle tensor) { return Layout(tensor).equals(place); });
  }

  bool is_like(const Fitting& other) const {
    return layouts == other.layouts && parameters == other.parameters && inputs == other.inputs;
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
  void add(const char* digest, std::shared_ptr<const Fitting> fitting, uint64_t age) {
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

/// As weft/runtime/pages.py does.
void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  const auto start = reinterpret_cast<uintptr_t>(data);
  const auto first = (start + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
  const auto last = (start + bytes) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

void run(const Fitting& fitting, const Call& call) {
  std::vector<void*> buffers(call.tensors.size());
  for (size_t i = 0; i < buffers.size(); ++i)
    require(aoti_torch_get_data_ptr(call.tensors[i], &buffers[i]), "a tensor's memory");
  for (size_t i = 0; i < fitting.large.size(); ++i)
    if (fitting.large[i] > 0) prefer_large_pages(buffers[fitting.inputs + i], fitting.large[i]);
  uint32_t threads = 1;
  require(torch_get_num_threads(&threads), "the number of threads");
  fitting.function(buffers.data(), fitting.parameters.data(), std::min(static_cast<int>(threads), fitting.threads));
  __atomic_fetch_add(&counts[0], 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&counts[1], fitting.bytes, __ATOMIC_RELAXED);
}

/// Have Python do a call, and keep what it says of calls like it.
void run_checked(const Call& call) {
  const auto fitting = std::make_shared<Fitting>(call);
  const uint64_t age = table().age();
  const char* const texts[] = {call.digest, call.kernel, call.check.data()};
  StableIValue stack[] = {reinterpret_cast<StableIValue>(texts), call.stack[INPUTS], call.stack[OUTPUTS], call.stack[SIZES]};
  require(torch_call_dispatcher("weft::_launch_checked", "", stack, TORCH_ABI_VERSION), "a launch");
  const std::string answer(text(stack[0]));  // see launch.py for what it says
  torch_delete_string(from<StringHandle>(stack[0]));
  std::istringstream words(answer);
  std::string word;
  words >> word;
  if (word == "interrupt") {
    interrupt();
    throw std::runtime_error("KeyboardInterrupt");
  }
  if (word == "error") throw std::runtime_error(answer.substr(word.size() + 1));
  if (word != "fitting") return;
  uintptr_t function = 0;
  words >> function >> fitting->threads >> fitting->bytes >> fitting->compared;
  fitting->function = reinterpret_cast<Function>(function);
  for (int64_t bytes = 0; words >> bytes;) fitting->large.push_back(bytes);
  table().add(call.digest, fitting, age);
}

void launch(StableIValue* stack, uint64_t, uint64_t) {
  const Call call(stack);
  if (const auto fitting = table().find(call)) {
    run(*fitting, call);
    call.free_lists();
  } else {
    run_checked(call);
  }
}

}  // namespace

/// Register the kernel for an operator of weft's; nonzero if PyTorch refuses. to: two numbers that launches and their
/// bytes are added to. set_interrupt: Python's PyErr_SetInterrupt.
extern "C" int weft_launcher_register(const char* name, int64_t* to, void (*set_interrupt)()) {
  counts = to;
  interrupt = set_interrupt;
  TorchLibraryHandle library = nullptr;  // never deleted, which would take the kernel away
  if (const auto error = aoti_torch_library_init_impl("weft", "CPU", __FILE__, __LINE__, &library)) return error;
  return torch_library_impl(library, name, launch, TORCH_ABI_VERSION);
}

/// Let the next call of a kernel go to Python, or of every kernel if the digest is null.
extern "C" void weft_launcher_forget(const char* digest) { table().forget(digest); }

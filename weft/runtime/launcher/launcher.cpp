// The kernel of weft::launch for tensors of a CPU and of a GPU: calls like earlier ones, without Python.
//
// A call that is like none before goes to weft::_launch_checked, the implementation in Python. That does all of it, and
// says in what it returns whether calls like it (the same kernel, dtypes, sizes, strides and parameters) need no more
// than the kernel's function; then the next one is a comparison of numbers and a call from here. On a GPU it says what
// is started on which stream, with what memory beside the tensors.
//
//     shim.h         PyTorch's C interface
//     call.h         what a call is
//     fitting.h      a call that can be repeated
//     cpu.h, gpu.h   one on a CPU, one on a GPU
//     driver.h       the CUDA driver's structures
//     table.h        those of all kernels
//     direct.h       what generated code calls: no arguments are unpacked for PyTorch
//     python.h       Python's C interface
//     launcher.cpp   which of them a call is like, what goes to Python, and what Python calls; all of it is compiled here
//
// Only PyTorch's C interface is used. A kernel owns the handles of its arguments, and torch_call_dispatcher takes those
// it is given; it leaks strings (torch 2.13), which therefore go to Python as addresses. The one exception is an
// exception: that of a GPU without memory, which users catch.

#include <c10/util/Exception.h>
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "cpu.h"
#include "direct.h"
#include "gpu.h"
#include "table.h"

namespace {

void (*interrupt)();  // makes Python's main thread raise KeyboardInterrupt

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
  std::shared_ptr<const Fitting> made;
  if (word == "cpu") made = std::make_shared<CpuFitting>(std::move(likeness), numbers());
  if (word == "cuda") made = std::make_shared<GpuFitting>(std::move(likeness), numbers());
  if (made == nullptr) return;
  table().add(digest, made, age);
  if (made->unchecked(call.check)) repeatable = std::move(made);
}

void launch(StableIValue* stack, uint64_t, uint64_t) {
  const Call call(stack);
  repeatable = table().find(call);
  if (repeatable == nullptr || !repeatable->run(call.addresses())) {
    repeatable.reset();
    run_checked(call);
    return;
  }
  repeatable->count();
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

/// A function of Python that does what weft::launch does, which is given for calls that are like none before; a new
/// reference, or null with an error.
extern "C" PyObject* weft_launcher_direct(PyObject* launch) {
  static PyMethodDef method = {"launch", launch_directly, METH_FASTCALL, "weft::launch past PyTorch's dispatcher."};
  launch_operator = launch;
  Py_IncRef(launch);
  data_ptr = PyUnicode_InternFromString("data_ptr");
  return data_ptr == nullptr ? nullptr : PyCFunction_NewEx(&method, nullptr, nullptr);
}

/// Tell a function of Python the kernel of each launch of generated code, before it is done; None for nobody.
extern "C" void weft_launcher_listen(PyObject* function) {
  PyObject* const before = std::exchange(listener, function == Py_None ? nullptr : function);
  if (listener != nullptr) Py_IncRef(listener);
  if (before != nullptr) Py_DecRef(before);
}

/// Use GPUs through these functions, in the order of Gpu.
extern "C" void weft_launcher_use_gpu(void* const* functions) { std::memcpy(&gpu, functions, sizeof(gpu)); }

/// Let the next call of a kernel go to Python, or of every kernel if the digest is null.
extern "C" void weft_launcher_forget(const char* digest) { table().forget(digest); }

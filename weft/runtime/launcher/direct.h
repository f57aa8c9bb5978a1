// Launches that generated code asks for with Python's objects, past PyTorch's dispatcher: where a call is like an earlier
// one of the same kernel, all that is new are the addresses of its tensors. How they lie is not looked at again: the
// graph that the code was generated for says it, and its sizes are arguments.

#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fitting.h"
#include "python.h"
#include "table.h"

namespace {

PyObject* launch_operator;  // torch.ops.weft.launch.default, for calls that are like none before
PyObject* data_ptr;         // "data_ptr"
PyObject* listener;         // is told the kernel of each launch, if there is one

/// The last call that the operator did on this thread, if calls like it can be repeated.
thread_local std::shared_ptr<const Fitting> repeatable;

/// A call that generated code made, and what repeats it.
struct Known {
  PyObject* options;
  std::vector<int64_t> parameters;
  uint64_t age;  // of the table: what was forgotten since then is not repeated
  std::shared_ptr<const Fitting> fitting;
};

/// By the object that is the digest: a constant of generated code. Python's lock is held.
std::unordered_map<PyObject*, std::vector<Known>>& known_calls() {
  static auto* const known = new std::unordered_map<PyObject*, std::vector<Known>>;  // threads may outlive the process
  return *known;
}

/// The integers of a list; whether it has no others.
bool integers(PyObject* list, std::vector<int64_t>& to) {
  for (Py_ssize_t i = 0, size = PyList_Size(list); i < size; ++i) {
    to.push_back(PyLong_AsLongLong(PyList_GetItem(list, i)));
    if (to.back() == -1 && PyErr_Occurred() != nullptr) return false;
  }
  return PyErr_Occurred() == nullptr;
}

/// Where the elements of a list of tensors are; whether it has nothing else.
bool places(PyObject* list, std::vector<void*>& to) {
  for (Py_ssize_t i = 0, size = PyList_Size(list); i < size; ++i) {
    PyObject* const tensor = PyList_GetItem(list, i);
    PyObject* const address = PyObject_VectorcallMethod(data_ptr, &tensor, 1, nullptr);
    if (address == nullptr) return false;
    to.push_back(PyLong_AsVoidPtr(address));
    Py_DecRef(address);
  }
  return PyErr_Occurred() == nullptr;
}

/// Run without Python's lock; whether that was possible.
bool repeated(const Fitting& fitting, const std::vector<void*>& addresses) {
  PyThreadState* const state = PyEval_SaveThread();
  bool done = false;
  try {
    done = fitting.run(addresses);
  } catch (const std::exception&) {  // the operator will say it
  }
  PyEval_RestoreThread(state);
  return done;
}

/// weft::launch with the same arguments: digest, kernel, inputs, outputs, sizes, options.
PyObject* launch_directly(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  enum { DIGEST, KERNEL, INPUTS, OUTPUTS, SIZES, OPTIONS, ARGUMENTS };
  if (listener != nullptr && count == ARGUMENTS) {
    PyObject* const heard = PyObject_Vectorcall(listener, &arguments[KERNEL], 1, nullptr);
    if (heard == nullptr) return nullptr;
    Py_DecRef(heard);
  }
  std::vector<void*> addresses;
  std::vector<int64_t> parameters;
  const bool plain = count == ARGUMENTS && integers(arguments[SIZES], parameters) && places(arguments[INPUTS], addresses) &&
                     places(arguments[OUTPUTS], addresses);
  if (!plain) PyErr_Clear();  // the operator will say what is wrong
  auto& all = known_calls();
  const auto found = plain ? all.find(arguments[DIGEST]) : all.end();
  if (found != all.end()) {
    for (const auto& known : found->second) {
      if (known.options != arguments[OPTIONS] || known.age != table().age() || known.parameters != parameters) continue;
      const auto fitting = known.fitting;  // while it runs, others may forget it
      if (addresses.size() != fitting->likeness.tensors || !fitting->allows(addresses)) continue;
      if (!repeated(*fitting, addresses)) break;
      fitting->count();
      Py_IncRef(Py_None);
      return Py_None;
    }
  }
  repeatable.reset();
  const uint64_t age = table().age();
  PyObject* const result = PyObject_Vectorcall(launch_operator, arguments, static_cast<size_t>(count), nullptr);
  if (result == nullptr || !plain || repeatable == nullptr) return result;
  auto& calls = all[arguments[DIGEST]];
  if (calls.empty()) Py_IncRef(arguments[DIGEST]);  // no other object has its place
  std::erase_if(calls, [](const Known& known) { return known.age != table().age(); });
  if (calls.size() == MOST_FITTINGS) calls.erase(calls.begin());
  Py_IncRef(arguments[OPTIONS]);
  calls.push_back({arguments[OPTIONS], std::move(parameters), age, std::move(repeatable)});
  return result;
}

}  // namespace

// What the launcher calls of Python's stable interface, which is the same in every release since 3.9 and, from 3.12, part
// of what is promised: declared here, so that nobody needs Python's headers. The process has the functions.

#pragma once

#include <cstddef>

extern "C" {

struct PyObject;
struct PyThreadState;
using Py_ssize_t = ptrdiff_t;

struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* const* arguments, Py_ssize_t count);
  int flags;
  const char* doc;
};

extern PyObject _Py_NoneStruct;

PyObject* PyCFunction_NewEx(PyMethodDef* method, PyObject* self, PyObject* module);
PyObject* PyObject_Vectorcall(PyObject* callable, PyObject* const* arguments, size_t count, PyObject* names);
PyObject* PyObject_VectorcallMethod(PyObject* name, PyObject* const* arguments, size_t count, PyObject* names);
PyObject* PyUnicode_InternFromString(const char* text);
PyObject* PyList_GetItem(PyObject* list, Py_ssize_t index);
Py_ssize_t PyList_Size(PyObject* list);
long long PyLong_AsLongLong(PyObject* number);
void* PyLong_AsVoidPtr(PyObject* number);
PyObject* PyErr_Occurred();
void PyErr_Clear();
void Py_IncRef(PyObject* object);
void Py_DecRef(PyObject* object);
PyThreadState* PyEval_SaveThread();
void PyEval_RestoreThread(PyThreadState* state);

}  // extern "C"

#define Py_None (&_Py_NoneStruct)

namespace {

constexpr int METH_FASTCALL = 0x80;

}  // namespace

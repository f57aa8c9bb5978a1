"""What of the text of CUDA C++ is plain arithmetic, compiled for this machine."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from weft.backends.cuda.build import header
from weft.options import Options
from weft.runtime.cxx import find_compiler

_HEAD = """
#include <cstdint>
#include <type_traits>
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
"""


def section(title: str) -> str:
    """Of the headers: what lies between a comment that is a title, and the next one or the end."""
    (found,) = re.findall(rf"\n\n// {title}\n\n(.*?)\n\n(?=// [^\n]*\n\n|}}  // namespace w\n)", header(), re.DOTALL)
    return found


def function(name: str) -> str:
    """Of the headers: a template that is one line behind that of its parameters."""
    lines = header().splitlines()
    (at,) = (i for i, line in enumerate(lines) if f" {name}(" in line and line.startswith("inline "))
    assert lines[at].endswith("}")
    return "\n".join(lines[at - 1 : at + 1]) + "\n"


def library(text: str, folder: Path) -> ctypes.CDLL:
    """A text as functions of this process. Raises CalledProcessError with what the compiler printed."""
    source, made = folder / "text.cpp", folder / "text.so"
    source.write_text(_HEAD + text)
    command = [find_compiler(Options.read()), "-std=c++17", "-O1", "-shared", "-fPIC", "-w", source, "-o", made]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(made))

"""The C++ compiler of a machine: which one it is, who named it, and what to do when it is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

from weft.errors import CompilerNotFoundError
from weft.options import Options

_NAMES = ("g++", "clang++", "c++")
"""Looked for where none is named, in this order."""
_SHOWN_LINES = 5
"""Of what a compiler prints."""


def find_compiler(options: Options) -> str:
    """Path of the C++ compiler, which says its version. Raises CompilerNotFoundError saying what to do."""
    names = (options.cxx,) if options.cxx else _NAMES
    path = next((path for name in names if (path := shutil.which(name)) is not None), None)
    if path is None:
        raise CompilerNotFoundError(f"no C++ compiler found (looked for {', '.join(names)}). {_way_out(options.cxx)}")
    try:
        if not compiler_version(path).strip():
            raise CompilerNotFoundError(complaint(path, "does not say its version"))
    except subprocess.CalledProcessError as error:
        printed = first_lines(error.stderr + error.stdout)
        what = f"fails with exit code {error.returncode} when it is asked for its version"
        raise CompilerNotFoundError(complaint(path, what, printed)) from None
    except OSError as error:
        raise CompilerNotFoundError(complaint(path, f"cannot be run: {error.strerror}")) from None
    return path


@cache
def compiler_version(path: str) -> str:
    """What the compiler says of itself. Raises OSError or CalledProcessError."""
    command = [path, "--version"]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stdout


def complaint(path: str, what: str, printed: str = "") -> str:
    """What is said of a compiler that does not work, and what to do. printed: lines of the compiler's."""
    says = f", and says: {' | '.join(printed.splitlines())}" if printed else ""
    return f"the C++ compiler {path} {what}{says}. {_way_out(path)}"


def first_lines(printed: str) -> str:
    """Of what a compiler printed the first lines that say what is wrong; else the first."""
    lines = [line for line in printed.splitlines() if line.strip()]
    wrong = [line for line in lines if any(sign in line for sign in ("error", "cannot find", "undefined reference"))]
    return "\n".join((wrong or lines or ["(nothing)"])[:_SHOWN_LINES])


def _way_out(compiler: str) -> str:
    """Who named a compiler, given as it was named or by its path, and how to have another; empty: nobody did."""
    install = (
        "nstall one, e.g. `apt-get install g++` on Debian and Ubuntu, `dnf install gcc-c++` on Fedora, "
        "`xcode-select --install` on macOS"
    )
    given = os.environ.get("CXX", "")
    if given and compiler in (given, shutil.which(given)):
        named, without = "The variable CXX names it", "unset CXX"
    elif compiler and compiler not in map(shutil.which, _NAMES):
        named, without = "The option cxx names it", "leave that out"
    else:
        return f"I{install}, or set CXX to its path; `weft doctor` says whether it works."
    if shutil.which(compiler) is None and shutil.which(compiler.partition(" ")[0]) is not None:
        named += ", and it has to be one program without flags"
    instead = f"weft takes the first of {', '.join(_NAMES[:-1])} and {_NAMES[-1]} on the path"
    return f"{named}: {without}, and {instead}. If there is none, i{install}; `weft doctor` says whether it works."

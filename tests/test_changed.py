"""Tests that run where some files have changed: when these count as changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.changed import have_changed

PATHS = ["tools", "tests/test_tools.py"]


def git(root: Path, *arguments: str) -> None:
    own = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.com"]
    subprocess.run(["git", *own, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        with (root / name).open("a") as file:
            file.write("a line\n")
    git(root, "add", "--all")
    git(root, "commit", "--message", "files")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Of a repository whose last commit is of nothing but the package."""
    origin, cloned = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "--initial-branch", "main")
    commit(origin, "tools/fit.py", "weft/plan.py")
    commit(origin, "weft/plan.py")
    git(tmp_path, "clone", str(origin), str(cloned))
    return cloned


def test_nothing_has_changed_in_a_clone_whose_last_commit_is_of_something_else(clone: Path) -> None:
    assert not have_changed(PATHS, clone)
    assert have_changed(["weft"], clone)


def test_files_that_are_not_committed_have_changed(clone: Path) -> None:
    (clone / "tools" / "new.py").write_text("a line\n")
    assert have_changed(PATHS, clone)
    (clone / "tools" / "new.py").unlink()
    assert not have_changed(PATHS, clone)
    (clone / "tools" / "fit.py").write_text("another line\n")
    assert have_changed(PATHS, clone)


def test_commits_of_a_branch_count_until_they_are_landed(clone: Path) -> None:
    git(clone, "switch", "--create", "branch")
    commit(clone, "tools/fit.py")
    commit(clone, "weft/plan.py")
    assert have_changed(PATHS, clone)
    git(clone, "push", "origin", "branch:landed")
    git(clone.parent / "origin", "switch", "landed")
    git(clone.parent / "origin", "branch", "--force", "main", "landed")
    git(clone, "fetch", "origin")
    assert not have_changed(PATHS, clone)


def test_where_git_cannot_say_everything_has_changed(tmp_path: Path) -> None:
    assert have_changed(PATHS, tmp_path)

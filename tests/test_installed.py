"""The backend by its name alone, from an installed wheel, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cases import often

ROOT = Path(__file__).parent.parent

COMPILE = """
def compiled():
    import torch

    def doubled(x):
        return x.view(-1)

    torch.compile(doubled, backend="weft")(torch.ones(2, 3))
    import weft

    return [weft.__file__, weft.counters.pass_calls]
"""

WAYS = {
    "without an import": "",
    "with an import before": "import weft",
    "after the list of backends": "import torch; assert 'weft' in torch._dynamo.list_backends()",
    "after both": "import torch, weft; assert 'weft' in torch._dynamo.list_backends(); torch._dynamo.reset()",
}
"""In the first way the name is found in a worker process, too, and the last way is the two before in one."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel of this checkout is installed."""
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target"))
    for name in ("weft", "tools"):  # a build leaves files beside what it is made from
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "sweeps"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source], check=True)
    (wheel,) = wheels.glob("weft-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", target, wheel], check=True)
    return target


def run(script: str, installed: Path, folder: Path) -> tuple[str, int]:
    """Run a script that prints one line of JSON, where the installed weft is found before any other."""
    (folder / "script.py").write_text(script)
    env = os.environ | {"PYTHONPATH": str(installed), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", often(WAYS, ("after both",)))
def test_the_name_is_enough(way: str, installed: Path, tmp_path: Path) -> None:
    script = f"{COMPILE}\n{WAYS[way]}\nimport json\nprint(json.dumps(compiled()))\n"
    file, calls = run(script, installed, tmp_path)
    assert Path(file).is_relative_to(installed)
    assert calls == 1


def test_the_name_is_enough_in_a_worker_process(installed: Path, tmp_path: Path) -> None:
    main = """
    if __name__ == "__main__":
        import json, multiprocessing

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(json.dumps(pool.apply(compiled)))
    """
    file, calls = run(COMPILE + textwrap.dedent(main), installed, tmp_path)
    assert Path(file).is_relative_to(installed)
    assert calls == 1


def test_the_wheel_has_all_of_the_package_and_nothing_else(installed: Path) -> None:
    """Of data what the package reads, and no sweeps that its constants were fitted to."""
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {"weft", "bin"}
    found, sources = (
        {str(path.relative_to(root)) for path in (root / "weft").rglob("*") if path.is_file() and path.suffix != ".pyc"}
        for root in (installed, ROOT)
    )
    assert found == sources

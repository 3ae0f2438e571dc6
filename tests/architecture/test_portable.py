"""Linux and macOS: what only Linux has is asked for in few places, each with another way where it is not there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coralopt.benchmark.child import peak_memory_mib
from coralopt.machine import cpu_model, machine_data
from coralopt.processes import machine_boot
from coralopt.runtime.router.doors import socket_address

ROOT = Path(__file__).resolve().parents[2]
#: Where /proc is read, with a fallback that is tested below.
READERS = {"coralopt/processes.py", "coralopt/machine.py", "coralopt/benchmark/child.py"}
#: Where epoll is, with a fallback that tests/runtime/test_readers.py tests.
READERS |= {"coralopt/runtime/router/readers.py"}
LINUX_ONLY = re.compile(r'"/proc|"/sys/|f"/proc|\bepoll\b|memfd_create|pidfd_open|\bprctl\b|O_TMPFILE')


def test_nothing_else_counts_on_linux() -> None:
    files = [path for folder in ("coralopt", "solvers") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if LINUX_ONLY.search(path.read_text(encoding="utf-8"))}
    assert found == READERS


def test_no_link_is_part_of_the_repository() -> None:
    """A link to an environment, checked out, would take the place of the environment itself."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line for line in listed.splitlines() if line.startswith("120000")] == []


def test_without_proc_the_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: no file of /proc, no affinity."""
    read = Path.read_text

    def read_text(path: Path, *arguments: object, **options: object) -> str:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return read(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert cpu_model()
    assert machine_data()["cores"]
    assert machine_boot() == ""
    memory = peak_memory_mib()
    assert memory is not None
    assert memory > 10


def test_a_long_socket_path_becomes_a_short_one(tmp_path: Path) -> None:
    """103 bytes are the most on macOS; the short way leads into the same folder and is gone afterwards."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with socket_address(folder / "admin.sock") as address:
        assert len(address) <= 100
        Path(address).touch()
    assert (folder / "admin.sock").exists()
    assert not Path(address).parent.exists()
    with socket_address(Path("/tmp/short.sock")) as address:
        assert address == "/tmp/short.sock"

"""The machine's data that a result needs to mean something; no host name, no user name, no paths."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from coralopt._version import __version__
from coralopt.processes import output_of

_PACKAGES = ("pyomo", "numpy", "scipy", "numba", "highspy", "pyscipopt", "gurobipy")


def machine_data() -> dict[str, str | int | float | None]:
    """CPU model, cores, memory, OS, Python, versions of coralopt and of the packages that matter."""
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gib": memory_gib(),
        "os": _os_name(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "coralopt": __version__,
        "commit": _commit(),
        **{name: number for name in _PACKAGES if (number := _version(name))},
    }


def cpu_model() -> str:
    """As the system calls it; empty when it does not."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float | None:
    """Memory of the machine, GiB; ``None`` when the system does not say."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _os_name() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return f"{platform.system()} {platform.machine()}" + (f", {name}" if name else "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Commit of a source checkout, with ``+`` when something is changed; empty for an installed package."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    head = output_of(["git", "rev-parse", "--short=10", "HEAD"], 10, root)
    words = ["git", "status", "--porcelain", "--untracked-files=no", "--", "coralopt", "solvers"]
    changed = output_of(words, 10, root)
    return "" if head is None or changed is None else head.strip() + ("+" if changed.strip() else "")

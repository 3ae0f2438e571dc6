"""Make the packaged table of measured layer times: ``python -m coralopt.throughput.silicon_import``.

The rows come from aiconfigurator (Apache-2.0, extra ``silicon``), which interpolates between kernels that its authors
measured on GPUs, or from a CSV of the same columns that was written before.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from coralopt.errors import CoraloptError

COLUMNS = (
    "model",
    "weights",
    "system",
    "version",
    "tp",
    "phase",
    "tokens",
    "batch",
    "nonlayer_ms",
    "per_layer_ms",
    "note",
)


def rows_of_csv(path: Path) -> Iterator[dict[str, str | int | float]]:
    """Rows of a CSV (or CSV.gz) with columns model, weights, system, backend, version, tp, phase, tokens_per_seq,
    batch, nonlayer_ms, per_layer_ms, note.

    Raises:
        CoraloptError: The file is missing, or a row cannot be read; names the line.
    """
    line = 0
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as stream:
            reader = csv.DictReader(stream)
            for row in reader:
                line = reader.line_num
                yield _row(row)
    except (OSError, EOFError) as error:
        raise CoraloptError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (KeyError, ValueError, TypeError, csv.Error) as error:  # TypeError: the row has too few fields
        raise CoraloptError(f"{path}: line {line}: the row is not usable: {error!r}") from error


def _row(row: Mapping[str, str]) -> dict[str, str | int | float]:
    note = row.get("note", "")
    return {
        "model": row["model"],
        "weights": row["weights"],
        "system": row["system"],
        "version": f"{row['backend']} {row['version']} tables",
        "tp": int(row["tp"]),
        "phase": row["phase"],
        "tokens": int(row["tokens_per_seq"]),
        "batch": int(row["batch"]),
        "nonlayer_ms": float(row["nonlayer_ms"]),
        "per_layer_ms": float(row["per_layer_ms"]),
        "note": note,
    }


def write_table(rows: Iterable[Mapping[str, str | int | float]], path: Path) -> int:
    """Write the packaged Parquet table; returns the number of rows.

    Raises:
        CoraloptError: There are no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    ordered = sorted(rows, key=lambda row: tuple(str(row[c]) if isinstance(row[c], str) else row[c] for c in COLUMNS))
    if not ordered:
        raise CoraloptError("no rows: nothing was written")
    types = {"tp": pa.int16(), "tokens": pa.int32(), "batch": pa.int32()}
    types |= {"nonlayer_ms": pa.float32(), "per_layer_ms": pa.float32()}
    table = pa.table(
        {name: pa.array([row[name] for row in ordered], type=types.get(name, pa.string())) for name in COLUMNS}
    )
    temporary = path.with_suffix(".part")
    pq.write_table(table, temporary, compression="zstd", compression_level=19)
    temporary.replace(path)
    return len(ordered)


def main() -> int:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from-csv", type=Path, help="read this CSV instead of running aiconfigurator")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "data" / "silicon.parquet")
    arguments = parser.parse_args()
    try:
        if arguments.from_csv is None:
            from coralopt.throughput.aiconfigurator_rows import rows_of_aiconfigurator

            rows = rows_of_aiconfigurator()
        else:
            rows = rows_of_csv(arguments.from_csv)
        count = write_table(rows, arguments.output)
    except CoraloptError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{count} rows: {arguments.output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

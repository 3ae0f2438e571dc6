"""CSV files of prices: SkyPilot's catalogs, and a table of one's own."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

from coralopt.catalog.gcp import gpus_of
from coralopt.catalog.price_cells import PriceRow, gpus_of_type, read_amount, read_gpus, read_quota
from coralopt.errors import CoraloptError

#: Names of the columns of a CSV of one's own, in lower case: field -> what it may be called.
_OWN = {
    "region": ("region",),
    "instance_type": ("instance_type", "instancetype", "instance type", "instance"),
    "gpu": ("gpu", "acceleratorname", "accelerator", "gpu_name"),
    "gpus": ("gpu_count", "gpus", "count", "acceleratorcount"),
    "on_demand_usd_h": ("on_demand_usd_h", "ondemand_usd_h", "usd_h", "price", "price_usd_h"),
    "spot_usd_h": ("spot_usd_h", "spotprice", "spot"),
    "quota": ("quota", "max_nodes", "available"),
}


def table_rows(path: Path, stream: TextIO) -> Iterator[PriceRow]:
    """The priced rows of a table whose header names its columns.

    Raises:
        CoraloptError: Columns that are missing, misspelt or there twice, no rows, or a cell that cannot be read.
    """
    lines = stream.readlines()
    # Whichever parts the columns of the header.
    reader = csv.DictReader(lines, delimiter=max(",;\t", key="".join(lines[:1]).count))
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    rows = []
    for row in reader:
        if None in row or None in row.values():
            fields_there = len(names) + len(row.get(None, ())) - list(row.values()).count(None)
            raise CoraloptError(
                f"{path}: line {reader.line_num}: {fields_there} fields where the header has {len(names)}"
            )
        rows.append(row)
    columns = {field: next((names[n] for n in choices if n in names), None) for field, choices in _OWN.items()}
    _refuse_header(path, [name.strip().lower() for name in reader.fieldnames or ()], columns)
    named = bool(columns["gpu"] or columns["gpus"])
    needed = ("region", "instance_type", *(("gpu", "gpus") if named else ()), "on_demand_usd_h")
    missing = ["usd_h" if field == "on_demand_usd_h" else field for field in needed if not columns[field]]
    if not names or not (missing or rows):
        raise CoraloptError(
            f"{path}: {'no prices below the header' if names else 'the file is empty, no column of prices'}"
        )
    if missing:
        raise CoraloptError(
            f"{path}: no known price file: no column {', '.join(missing)}. Known are SkyPilot's catalogs, AWS's price list "
            "(CSV, JSON), Azure's retail prices and Google Cloud's SKUs (JSON), and CSV files with region, instance_type, "
            "usd_h, for types that the catalog does not list gpu and gpus, and, where known, spot_usd_h and quota"
        )

    def cell(row: Mapping[str, str], field: str) -> str:
        column = columns[field]
        return (row[column] or "").strip() if column else ""

    def figures(number: int, row: Mapping[str, str]) -> tuple[int, list[float | None], int | None]:
        try:
            # A spot price of 0 is how SkyPilot's catalogs say that there is none.
            prices = [read_amount(cell(row, "on_demand_usd_h")), read_amount(cell(row, "spot_usd_h")) or None]
            return read_gpus(cell(row, "gpus")), prices, read_quota(cell(row, "quota"))
        except ValueError as error:
            raise CoraloptError(f"{path}: line {number}: {error}") from error

    # GCP's GPUs stand in rows of their own, priced by region, kind and count.
    apart: dict[tuple[str, str, int], list[float | None]] = {}
    for number, row in enumerate(rows, start=2):
        if not cell(row, "instance_type") and cell(row, "gpu"):
            count, prices, _ = figures(number, row)
            apart[cell(row, "region"), cell(row, "gpu"), count] = prices
    for number, row in enumerate(rows, start=2):
        kind, gpu = cell(row, "instance_type"), cell(row, "gpu")
        if not kind.isprintable():
            raise CoraloptError(f"{path}: line {number}: {kind!r} is no instance type")
        if not kind:
            continue
        count, prices, quota = figures(number, row)
        if not named:
            gpu, count = gpus_of_type(kind)
        elif not gpu:
            gpu, count = gpus_of(kind)
            more = apart.get((cell(row, "region"), gpu, count))
            if more is None:
                continue
            prices = [
                None if price is None or other is None else round(price + other, 6)
                for price, other in zip(prices, more, strict=True)
            ]
        yield cell(row, "region"), gpu, count, kind, (prices[0], prices[1], quota)


def _refuse_header(path: Path, names: Sequence[str], columns: Mapping[str, str | None]) -> None:
    """Refuse columns that are there twice, or are misspelt names of columns that a file may leave out.

    Raises:
        CoraloptError: Names the column.
    """
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        raise CoraloptError(f"{path}: line 1: the column {twice[0]!r} is there twice; leave one of them")
    missing = [choice for field in ("spot_usd_h", "quota") if not columns[field] for choice in _OWN[field]]
    known = {choice for choices in _OWN.values() for choice in choices}
    for name in names:
        close = get_close_matches(name, missing, 1, 0.8)
        if close and name not in known:
            raise CoraloptError(f"{path}: line 1: unknown column {name!r} (did you mean {close[0]!r}?)")

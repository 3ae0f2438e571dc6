"""Price files of others: SkyPilot's catalogs, price lists of AWS, Azure and Google Cloud, a CSV of one's own.

Every reader gives what one node-hour of an instance type costs in a region. Instance types without a GPU that the catalog
knows are counted and left out; of several types with the same GPUs in one region the cheapest stays, and of several zones
the cheapest price.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from coralopt.catalog.loaders import configuration_name, gpus, node_configurations
from coralopt.catalog.price_cells import read_amount, read_quota
from coralopt.catalog.price_lists import aws_rows, json_rows
from coralopt.catalog.price_tables import table_rows
from coralopt.errors import CoraloptError

#: GPUs as clouds and SkyPilot call them -> the catalog's name; other names are looked up as they are.
_GPU_NAMES = {
    **{"A100": "A100-40", "A100-40GB": "A100-40", "A100-80GB": "A100", "A100-80": "A100", "H100-MEGA": "H100"},
    **{"H100-80GB": "H100", "RTXPRO6000-BSE": "RTXPRO6000", "RTX-PRO-6000": "RTXPRO6000"},
}
#: What a region's name may not have in a scenario.
_NO_NAME = re.compile(r"[^A-Za-z0-9._/-]+")


@dataclass(frozen=True)
class PricedNode:
    """What one instance type costs in one region, and where that is from.

    Attributes:
        region: As the cloud names it; a hyphen stands for what names of regions may not have (``Denmark-DK-EU``).
        configuration: Its GPUs, ``"8xH100"``.
        instance_type: As the cloud names it.
        on_demand_usd_h: USD per node-hour; ``None`` where it is sold as spot only.
        spot_usd_h: The same on the spot market; ``None`` where there is no price.
        quota: Most nodes that one may have; ``None`` where it is not known.
        date: Of the price.
        source: Where it is from.
    """

    region: str
    configuration: str
    instance_type: str
    on_demand_usd_h: float | None
    spot_usd_h: float | None = None
    quota: int | None = None
    date: str = ""
    source: str = ""


def read_prices(path: Path, date: str = "", source: str = "") -> tuple[list[PricedNode], Counter[str]]:
    """The prices of a file, told apart by what is in it.

    Args:
        path: The file.
        date: Of the prices, as is said of each; the file may have its own.
        source: Where they are from; the name of the file where nothing is said.

    Returns:
        One price a region and configuration, and how many rows were left out by GPU or instance type.

    Raises:
        CoraloptError: The file cannot be read, or is of no such kind.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.read(1000).lstrip()
            stream.seek(0)
            reader = json_rows if first[:1] in ("{", "[") else table_rows
            rows = list((aws_rows if first.startswith('"FormatVersion"') else reader)(path, stream))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
        raise CoraloptError(f"{path}: the prices cannot be read: {reason}") from error
    except csv.Error as error:
        raise CoraloptError(f"{path}: not a CSV file: {error}") from error
    priced, skipped = [], Counter[str]()
    for region, gpu, count, kind, prices in rows:
        known = gpus().get(_GPU_NAMES.get(gpu, gpu))
        name = configuration_name(count, known.name) if known else ""
        if known is None or name not in node_configurations():
            skipped[f"{count}x{gpu}" if gpu else kind] += 1
            continue
        place = _NO_NAME.sub("-", region).strip("-")
        priced.append(PricedNode(place, name, kind, *prices, date=date, source=source or path.name))
    if not priced:
        left = f"; left out: {', '.join(list(skipped)[:10])}" if skipped else ""
        raise CoraloptError(f"{path}: no price of a node that the catalog knows{left}")
    return cheapest(priced), skipped


def skypilot_file(word: str) -> Path:
    """``skypilot:aws`` is what an installed SkyPilot keeps of its catalog of that cloud; other words are paths.

    Raises:
        CoraloptError: SkyPilot has none.
    """
    package, _, cloud = word.partition(":")
    if package != "skypilot":
        return Path(word)
    folder = Path.home() / ".sky" / "catalogs"
    copies = [path for path in folder.glob("v*/*/vms.csv") if path.parts[-3][1:].isdecimal()]
    own = [path for path in copies if path.parent.name == cloud]
    if not own:
        clouds = ", ".join(sorted({path.parent.name for path in copies}))
        known = f"; it has {clouds}" if clouds else f"; `sky check` brings catalogs into {folder}"
        raise CoraloptError(f"{word}: SkyPilot has no catalog of {cloud or 'no cloud'}{known}")
    return max(own, key=lambda path: int(path.parts[-3][1:]))


def cheapest(nodes: Iterable[PricedNode]) -> list[PricedNode]:
    """One a region and configuration: the cheapest on demand, with the least spot price of that instance type."""
    best: dict[tuple[str, str], PricedNode] = {}
    spot: dict[tuple[str, str], float] = {}
    for node in nodes:
        key, kind = (node.region, node.configuration), (node.region, node.instance_type)
        if node.spot_usd_h is not None:
            spot[kind] = min(spot.get(kind, node.spot_usd_h), node.spot_usd_h)
        if key not in best or _price(node) < _price(best[key]):
            best[key] = node
    return [replace(node, spot_usd_h=spot.get((node.region, node.instance_type))) for node in best.values()]


def _price(node: PricedNode) -> float:
    return float("inf") if node.on_demand_usd_h is None else node.on_demand_usd_h


def read_user_catalog(path: Path) -> list[PricedNode]:
    """The prices that :func:`catalog_text` made.

    Raises:
        CoraloptError: No such file, or not one of these.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            if not {field.name for field in fields(PricedNode)} <= set(reader.fieldnames or ()):
                raise ValueError("its columns are others")
            rows = [{name: text or "" for name, text in row.items()} for row in reader]
        return [
            PricedNode(
                row["region"],
                row["configuration"],
                row["instance_type"],
                read_amount(row["on_demand_usd_h"]),
                read_amount(row["spot_usd_h"]),
                read_quota(row["quota"]),
                row["date"],
                row["source"],
            )
            for row in rows
        ]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or f"no catalog of prices: {error}"
        raise CoraloptError(f"{path}: {reason}; `coralopt catalog import` writes one") from error


def catalog_text(nodes: Iterable[PricedNode]) -> str:
    """The user catalog as CSV, by region and configuration; configurations of one's own come last."""
    order = {name: position for position, name in enumerate(node_configurations())}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(field.name for field in fields(PricedNode))
    for node in sorted(nodes, key=lambda node: (node.region, order.get(node.configuration, len(order)))):
        rows.writerow("" if value is None else value for value in vars(node).values())
    return text.getvalue()

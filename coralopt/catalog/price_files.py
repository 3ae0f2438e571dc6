"""Price files of others: SkyPilot's catalogs, price lists of AWS, Azure and Google Cloud, a CSV of one's own.

Every reader gives what one node-hour of an instance type costs in a region. Instance types without a GPU that the catalog
knows are counted and left out; of several types with the same GPUs in one region the cheapest stays, and of several zones
the cheapest price.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any, TextIO

from coralopt.catalog.gcp import gpus_of, read_skus
from coralopt.catalog.json_members import Place, members
from coralopt.catalog.loaders import configuration_name, gpus, node_configurations, offers
from coralopt.errors import CoraloptError
from coralopt.numbers import read_number

#: GPUs as clouds and SkyPilot call them -> the catalog's name; other names are looked up as they are.
_GPU_NAMES = {
    **{"A100": "A100-40", "A100-40GB": "A100-40", "A100-80GB": "A100", "A100-80": "A100", "H100-MEGA": "H100"},
    **{"H100-80GB": "H100", "RTXPRO6000-BSE": "RTXPRO6000", "RTX-PRO-6000": "RTXPRO6000"},
}
#: AWS: family of the instance type -> GPU. Its price list counts GPUs but does not name them.
_AWS = {
    **{"g4dn": "T4", "g5": "A10G", "g6": "L4", "g6e": "L40S", "g7e": "RTXPRO6000", "p3": "V100", "p4d": "A100-40"},
    **{"p4de": "A100", "p5": "H100", "p5e": "H200", "p5en": "H200", "p6-b200": "B200", "gr6": "L4"},
    "p6e-gb200": "GB200",
}
#: Attributes of AWS's products and what the price list in CSV calls them.
_AWS_COLUMNS = {
    **{"instanceType": "Instance Type", "regionCode": "Region Code", "gpu": "GPU", "tenancy": "Tenancy"},
    **{"operatingSystem": "Operating System", "preInstalledSw": "Pre Installed S/W"},
    "capacitystatus": "CapacityStatus",
}
#: Shared Linux instances on demand; the list has one row for every operating system, tenancy and kind of reservation.
_AWS_WANTED = {
    **{"tenancy": "Shared", "operatingSystem": "Linux", "preInstalledSw": "NA", "capacitystatus": "Used"},
    "marketoption": "OnDemand",
}
#: Azure: sizes without "Standard_" -> their GPUs.
_AZURE = {
    **{"NC4as_T4_v3": "1xT4", "NC8as_T4_v3": "1xT4", "NC16as_T4_v3": "1xT4", "NC64as_T4_v3": "4xT4"},
    **{"NC6s_v3": "1xV100", "NC12s_v3": "2xV100", "NC24s_v3": "4xV100", "NC24rs_v3": "4xV100"},
    **{"NC24ads_A100_v4": "1xA100", "NC48ads_A100_v4": "2xA100", "NC96ads_A100_v4": "4xA100"},
    **{"ND96asr_v4": "8xA100-40", "ND96amsr_A100_v4": "8xA100", "ND96isr_H100_v5": "8xH100"},
    "ND96is_H100_v5": "8xH100",
    **{"NC40ads_H100_v5": "1xH100", "NCC40ads_H100_v5": "1xH100", "NC80adis_H100_v5": "2xH100"},
    **{"ND96isr_H200_v5": "8xH200", "ND96isr_MI300X_v5": "8xMI300X", "ND96is_MI300X_v5": "8xMI300X"},
    "ND128isr_NDR_GB200_v6": "4xGB200",
}
#: Members of a JSON document that are too large to be read whole, and members that stand beside them.
_JSON_LISTS = frozenset({"products", "terms", "OnDemand", "Reserved", "PriceList", "Items", "skus"})
_JSON_HEADS = frozenset({"offerCode", "FormatVersion", "BillingCurrency", "NextPageLink", "nextPageToken"})
#: What a region's name may not have in a scenario.
_NO_NAME = re.compile(r"[^A-Za-z0-9._/-]+")
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
            reader = _json if first[:1] in ("{", "[") else _table
            rows = list((_aws if first.startswith('"FormatVersion"') else reader)(path, stream))
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


#: Region, GPU, GPUs, instance type, and (on demand, spot, quota).
_Row = tuple[str, str, int, str, tuple[float | None, float | None, int | None]]


def _table(path: Path, stream: TextIO) -> Iterator[_Row]:
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
            prices = [_amount(cell(row, "on_demand_usd_h")), _amount(cell(row, "spot_usd_h")) or None]
            return _gpu_count(cell(row, "gpus")), prices, _quota(cell(row, "quota"))
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
            gpu, count = _gpus_of_type(kind)
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


@cache
def _types() -> Mapping[str | None, str]:
    """Instance types of AWS, Azure and Google Cloud that are known by name -> node configuration."""
    listed = {offer.instance_type: offer.configuration for offer in offers().values()}
    return listed | {f"Standard_{size}": nodes for size, nodes in _AZURE.items()}


def _gpus_of_type(kind: str) -> tuple[str, int]:
    """GPU, as SkyPilot calls it, and count of an instance type; no name and 0 for an unknown one."""
    count, _, gpu = _types().get(kind, "").partition("x")
    return ("A100-80" if gpu == "A100" else gpu, int(count)) if count else gpus_of(kind)


def _amount(text: str) -> float | None:
    """A price or a count; ``None`` where nothing is said.

    Raises:
        ValueError: No number, negative, or infinite.
    """
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if 0 <= (value := read_number(text)) < float("inf"):
            return value
    raise ValueError(f"{text} is neither a price nor a count; give a plain number from 0 on, like 1030.5")


def _gpu_count(text: str) -> int:
    """GPUs of a node; 0 for a part of one, as SkyPilot's catalogs have them."""
    count = _amount(text) or 0.0
    if count > 1 and count != int(count):
        raise ValueError(f"{text} is no number of GPUs; give a whole one")
    return int(count)


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


def _quota(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text} is no quota; give a whole number of nodes from 0 on")
    return int(text) if text else None


def _aws(path: Path, stream: TextIO) -> Iterator[_Row]:
    """AWS's price list as CSV. A region's list has hundreds of megabytes, so that it is read line by line."""
    for row in csv.DictReader(dropwhile(lambda line: not line.startswith('"SKU"'), stream)):
        if row.get("TermType") == "OnDemand":
            try:
                # Lists of before 2023 have no column of the market.
                attributes = {name: row[column] for name, column in _AWS_COLUMNS.items()}
                attributes["marketoption"] = row.get("MarketOption", "OnDemand")
                yield from _aws_price(attributes, row["PricePerUnit"], row.get("Currency", "USD"))
            except (ValueError, KeyError) as error:
                raise CoraloptError(f"{path}: not AWS's price list: {type(error).__name__} {error}") from error


def _aws_terms(attributes: Mapping[str, str], terms: Mapping[str, Any]) -> Iterator[_Row]:  # Any: JSON
    """The same list as JSON: the price on demand of one product."""
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            for currency, price in dimension["pricePerUnit"].items():
                yield from _aws_price(attributes, price, currency)


def _aws_wanted(attributes: Mapping[str, str]) -> bool:
    """Whether this is a shared Linux instance with GPUs, on demand."""
    wanted = all(attributes.get(name, value) == value for name, value in _AWS_WANTED.items())
    return wanted and attributes.get("gpu", "").isdecimal()


def _aws_price(attributes: Mapping[str, str], price: str, currency: str) -> Iterator[_Row]:
    """What a shared Linux instance with GPUs costs on demand; nothing of other products."""
    if not _aws_wanted(attributes):
        return
    kind, usd_h = attributes["instanceType"], _amount(price)
    if currency != "USD":
        raise ValueError(f"{kind}: a price in {currency}; USD is known")
    # Capacity blocks, paid for ahead, cost 0 an hour.
    if usd_h:
        count = _gpu_count(attributes["gpu"])
        yield attributes["regionCode"], _AWS.get(kind.split(".")[0], ""), count, kind, (usd_h, None, None)


def _json(path: Path, stream: TextIO) -> Iterator[_Row]:
    """One page or a list of them: Azure's retail prices, AWS's products, SKUs of Google Cloud; or a list of such SKUs."""
    try:
        yield from _json_rows(members(stream, _JSON_LISTS))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        other = "an entry of another form"
        words = {KeyError: f"no {error}", RecursionError: "nested too deeply", TypeError: other, AttributeError: other}
        what = words.get(type(error), str(error))
        raise CoraloptError(
            f"{path}: neither AWS's price list nor Azure's retail prices nor Google Cloud's SKUs: {what}"
        ) from error


def _json_rows(parts: Iterable[tuple[Place, Any]]) -> Iterator[_Row]:  # Any: JSON
    """Rows from a document's members as they come. AWS's list of all regions has gigabytes, most of them reserved terms."""
    products: dict[str, Mapping[str, str]] = {}
    skus: list[Mapping[str, Any]] = []  # Any: JSON
    others: dict[int, dict[str, Any]] = defaultdict(dict)  # Any: JSON
    for place, value in parts:
        page, inner = (place[0], place[1:]) if place and isinstance(place[0], int) else (0, place)
        match inner:
            case ("Items", _):
                yield from _azure(value)
            case ("PriceList", _):
                item = json.loads(value) if isinstance(value, str) else value
                yield from _aws_terms(item["product"]["attributes"], item["terms"].get("OnDemand", {}))
            case ("products", str(sku)):
                if _aws_wanted(value["attributes"]):
                    products[sku] = value["attributes"]
            case ("terms", "OnDemand", str(sku)):
                # Products come first.
                if sku in products:
                    yield from _aws_terms(products[sku], value)
            case ("terms", *_):
                pass
            case ("skus", _):
                skus.append(value)
            case (str(name),):
                others[page][name] = value
            case _ if value != []:
                raise ValueError(f"{value} is not one of them")
    for other in others.values():
        if "description" in other:
            skus.append(other)
        elif not other.keys() & (_JSON_LISTS | _JSON_HEADS):
            raise ValueError(f"no member of it is known: {', '.join(list(other)[:5])}")
    for region, machine, on_demand, spot in read_skus(skus):
        yield region, machine.gpu, machine.gpus, machine.name, (on_demand, spot, None)


def _azure(item: Mapping[str, Any]) -> Iterator[_Row]:  # Any: JSON
    """The consumption price of a Linux size; spot ones say so in their names."""
    size, name, product = item["armSkuName"], item["skuName"], item["productName"]
    other = " Win" in product or "Cloud Services" in product or "CloudServices" in product
    # Other services charge a fee for the same sizes.
    other |= item.get("serviceName", "Virtual Machines") != "Virtual Machines"
    if item["type"] != "Consumption" or other or "Low Priority" in name:
        return
    if item.get("currencyCode", "USD") != "USD":
        raise ValueError(f"{size}: a price in {item['currencyCode']}; ask for USD")
    gpu, count = _gpus_of_type(size)
    price = _amount(str(item["retailPrice"])) or None
    prices = (None, price, None) if "Spot" in name else (price, None, None)
    if price:
        yield str(item["armRegionName"]), gpu, count, size, prices


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
                _amount(row["on_demand_usd_h"]),
                _amount(row["spot_usd_h"]),
                _quota(row["quota"]),
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

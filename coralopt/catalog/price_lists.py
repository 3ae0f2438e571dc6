"""Price lists of clouds: AWS's in CSV and JSON, Azure's retail prices, Google Cloud's SKUs."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any, TextIO

from coralopt.catalog.gcp import read_skus
from coralopt.catalog.json_members import Place, members
from coralopt.catalog.price_cells import PriceRow, gpus_of_type, read_amount, read_gpus
from coralopt.errors import CoraloptError

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
#: Members of a JSON document that are too large to be read whole, and members that stand beside them.
_JSON_LISTS = frozenset({"products", "terms", "OnDemand", "Reserved", "PriceList", "Items", "skus"})
_JSON_HEADS = frozenset({"offerCode", "FormatVersion", "BillingCurrency", "NextPageLink", "nextPageToken"})


def aws_rows(path: Path, stream: TextIO) -> Iterator[PriceRow]:
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


def _aws_terms(attributes: Mapping[str, str], terms: Mapping[str, Any]) -> Iterator[PriceRow]:  # Any: JSON
    """The same list as JSON: the price on demand of one product."""
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            for currency, price in dimension["pricePerUnit"].items():
                yield from _aws_price(attributes, price, currency)


def _aws_wanted(attributes: Mapping[str, str]) -> bool:
    """Whether this is a shared Linux instance with GPUs, on demand."""
    wanted = all(attributes.get(name, value) == value for name, value in _AWS_WANTED.items())
    return wanted and attributes.get("gpu", "").isdecimal()


def _aws_price(attributes: Mapping[str, str], price: str, currency: str) -> Iterator[PriceRow]:
    """What a shared Linux instance with GPUs costs on demand; nothing of other products."""
    if not _aws_wanted(attributes):
        return
    kind, usd_h = attributes["instanceType"], read_amount(price)
    if currency != "USD":
        raise ValueError(f"{kind}: a price in {currency}; USD is known")
    # Capacity blocks, paid for ahead, cost 0 an hour.
    if usd_h:
        count = read_gpus(attributes["gpu"])
        yield attributes["regionCode"], _AWS.get(kind.split(".")[0], ""), count, kind, (usd_h, None, None)


def json_rows(path: Path, stream: TextIO) -> Iterator[PriceRow]:
    """One page or a list of them: Azure's retail prices, AWS's products, SKUs of Google Cloud; or a list of such SKUs."""
    try:
        yield from _rows_of_members(members(stream, _JSON_LISTS))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        other = "an entry of another form"
        words = {KeyError: f"no {error}", RecursionError: "nested too deeply", TypeError: other, AttributeError: other}
        what = words.get(type(error), str(error))
        raise CoraloptError(
            f"{path}: neither AWS's price list nor Azure's retail prices nor Google Cloud's SKUs: {what}"
        ) from error


def _rows_of_members(parts: Iterable[tuple[Place, Any]]) -> Iterator[PriceRow]:  # Any: JSON
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


def _azure(item: Mapping[str, Any]) -> Iterator[PriceRow]:  # Any: JSON
    """The consumption price of a Linux size; spot ones say so in their names."""
    size, name, product = item["armSkuName"], item["skuName"], item["productName"]
    other = " Win" in product or "Cloud Services" in product or "CloudServices" in product
    # Other services charge a fee for the same sizes.
    other |= item.get("serviceName", "Virtual Machines") != "Virtual Machines"
    if item["type"] != "Consumption" or other or "Low Priority" in name:
        return
    if item.get("currencyCode", "USD") != "USD":
        raise ValueError(f"{size}: a price in {item['currencyCode']}; ask for USD")
    gpu, count = gpus_of_type(size)
    price = read_amount(str(item["retailPrice"])) or None
    prices = (None, price, None) if "Spot" in name else (price, None, None)
    if price:
        yield str(item["armRegionName"]), gpu, count, size, prices

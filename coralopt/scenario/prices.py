"""Prices of a user catalog in the place of its path, so that the scenario (and a plan) carries them."""

from __future__ import annotations

from pathlib import Path

from coralopt.catalog import node_configurations
from coralopt.catalog.price_files import PricedNode, read_user_catalog
from coralopt.errors import CoraloptError
from coralopt.replacing import user_catalog
from coralopt.scenario.mistakes import MistakeList, suggest


def include_prices(data: object, file: Path) -> None:
    """Write the prices, instance types and quotas of ``pool.catalog`` into the regions of the pool.

    ``all`` stands for every configuration that the catalog has in the region. Without ``available``, the quota is what is
    available. What the scenario says itself stays.

    Args:
        data: Content of the scenario file; changed in place.
        file: The scenario file: paths in it are relative to its folder.

    Raises:
        ScenarioError: The catalog cannot be read, or has no price of what a region names.
    """
    pool = data.get("pool") if isinstance(data, dict) else None
    if (
        not isinstance(pool, dict)
        or not isinstance(pool.get("catalog"), str)
        or not isinstance(pool.get("regions"), dict)
    ):
        return
    mistakes = MistakeList(str(file))
    named = pool.pop("catalog")
    path = user_catalog() if named == "user" else file.parent / named
    try:
        prices = read_user_catalog(path)
    except CoraloptError as error:
        mistakes.add(("pool", "catalog"), str(error), "give the path of a catalog, or user for your own")
        prices = []
    regions = sorted({node.region for node in prices})
    for name, region in pool["regions"].items() if prices else ():
        offers = {node.configuration: node for node in prices if node.region == name}
        if isinstance(region, dict) and offers:
            _fill(region, offers, pool.get("market", "on-demand"))
        elif isinstance(region, dict) and not isinstance(region.get("configurations"), dict):
            mistakes.add(("pool", "regions", name), f"{path} has no prices of this region", suggest(str(name), regions))
    mistakes.raise_any()


def _fill(region: dict[str, object], offers: dict[str, PricedNode], market: object) -> None:
    """The supply of one region, with prices."""
    supply, available = region.get("configurations"), region.pop("available", None)
    if supply == "all":
        supply = dict.fromkeys((name for name in node_configurations() if name in offers), available)
    elif isinstance(supply, list):
        supply = dict.fromkeys(supply, available)
    if not isinstance(supply, dict):
        return
    filled: dict[str, object] = {}
    for name, given in supply.items():
        offer = offers.get(name)
        price = None if offer is None else offer.spot_usd_h if market == "spot" else offer.on_demand_usd_h
        entry = dict(given) if isinstance(given, dict) else {"available": given}
        if offer is None or price is None:
            if region.get("configurations") != "all":
                filled[name] = given
            continue
        if entry.get("available") is None:
            entry["available"] = offer.quota
        if entry["available"] is None:
            del entry["available"]
        spot = entry.get("spot")
        if isinstance(spot, dict) and offer.spot_usd_h is not None:
            entry["spot"] = {"price_usd_h": offer.spot_usd_h, **spot}
        filled[name] = {"price_usd_h": price, "instance_type": offer.instance_type, **entry}
    region["configurations"] = filled

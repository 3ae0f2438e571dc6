"""The document of a scenario as plain data, and the digest of what it decides."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from typing import Any

from coralopt.scenario.facts.facts import Facts, PlacementRules, Sharing
from coralopt.scenario.facts.operations import Operations
from coralopt.scenario.facts.serving import PAPER_SERVING
from coralopt.scenario.file.document import Document
from coralopt.scenario.lengths import USUAL_SPREAD
from coralopt.types import Bools

#: What asks for nothing, at the top of a document, of a model or of a region.
_NOTHING: dict[str, object] = {
    "limits": {},
    "min_replicas": 0,
    "survive_region_loss": 0.0,
    "survive_instance_loss": 0.0,
    "forbidden": [],
    "transition": "free",
    "demand_cases": {},
}


def plain_document(document: Document, name: str) -> dict[str, Any]:
    """The document as plain JSON data that gives the same scenario again; a null among solver options is a value."""
    plain = document.model_dump(mode="json", exclude_none=True) | {"name": document.name or name}
    # What asks for nothing is left out: limits and rules are new to most scenarios.
    for holder in (plain, *plain["models"].values(), *plain["pool"]["regions"].values()):
        for key, nothing in _NOTHING.items():
            if holder.get(key) == nothing:
                del holder[key]
    for model in plain["models"].values():
        demand = model["demand"]
        for holder, key in ((model, "variants"), (demand, "min_shares"), (demand, "prefix_hit"), (demand, "classes")):
            if not holder[key]:
                del holder[key]
    if not document.egress:
        del plain["egress"]
    if document.sharing is not None:
        plain["sharing"] = document.sharing.model_dump(mode="json", exclude_defaults=True) | {
            "models": document.sharing.models
        }
    for region in plain["pool"]["regions"].values():
        if isinstance(region["configurations"], dict):
            for entry in region["configurations"].values():
                if isinstance(entry, dict) and entry.get("reserved") == 0:
                    del entry["reserved"]
    plain["solver"]["options"] = document.model_dump(mode="json")["solver"]["options"]
    if not document.throughput.measured:
        # Plans of scenarios without measurements stay as they were, byte for byte.
        plain["throughput"].pop("measured", None)
    return plain


def digest_of(scenario: Facts) -> str:
    """SHA-256 of every fact that decides libraries and plans; names, descriptions and sources decide nothing.

    Configurations that no region offers are left out, as by a reader of the document.
    """
    offered: Bools = scenario.availability.max(axis=0) > 0
    price = scenario.price_usd_h[:, offered].tolist()
    facts: dict[str, Any] = {  # JSON, changed below
        "mode": scenario.mode,
        "model_phases": [asdict(phase) for phase in scenario.model_phases],
        "configurations": [
            asdict(configuration) for configuration, some in zip(scenario.configurations, offered, strict=True) if some
        ],
        "regions": scenario.regions,
        "availability": scenario.availability[:, offered].tolist(),
        "price_usd_h": [[None if math.isnan(value) else value for value in row] for row in price],
        "instance_types": [
            [name for name, some in zip(row, offered, strict=True) if some] for row in scenario.instance_types
        ],
        "max_nodes": scenario.max_nodes,
        "memory_ratio": scenario.memory_ratio,
        "throughput_source": scenario.throughput_source
        if isinstance(scenario.throughput_source, str)
        else asdict(scenario.throughput_source),
        "initialization_penalty": scenario.initialization_penalty,
        "running": [asdict(instances) for instances in scenario.running],
        "solver": scenario.solver,
        "solver_options": scenario.solver_options,
    }
    if scenario.placement != PlacementRules():
        facts["placement"] = asdict(scenario.placement)
    if scenario.operations != Operations():
        operations = facts["operations"] = asdict(scenario.operations)
        rules = [limits for _, limits in operations["regions"]] + [rule["limits"] for _, rule in operations["models"]]
        for limits in (operations["limits"], *rules):
            if not limits["max_gpus"]:
                del limits["max_gpus"]
        for holder, name in (
            (operations, "start_first"),
            (operations, "start"),
            (operations, "cases"),
            *((rule, "survive_instance_loss") for _, rule in operations["models"]),
        ):
            if not holder[name]:
                del holder[name]
    if scenario.templates is not None:
        facts["templates"] = scenario.templates
    if scenario.kv_transfer.mode != "free" and any(phase.phase == "prefill" for phase in scenario.model_phases):
        facts["kv_transfer"] = asdict(scenario.kv_transfer)
    if scenario.sharing != Sharing():
        usual_ways = asdict(Sharing())
        facts["sharing"] = {
            name: value
            for name, value in asdict(scenario.sharing).items()
            if name == "models" or value != usual_ways[name]
        }
    if scenario.serving != PAPER_SERVING:
        facts["serving"] = asdict(scenario.serving)
    for entry in facts["model_phases"]:
        del entry["model"]["source"]
        del entry["serving"]
        # What asks for nothing new leaves the digest as it was before there was any.
        nothing: dict[str, object] = {"throughput_headroom": 0.0, "latency_headroom": 0.0, "attainment": None}
        nothing |= {"variant": None, "prefix_hit": 0.0, "request_class": None}
        nothing |= dict.fromkeys(("input_spread", "output_spread"), asdict(USUAL_SPREAD))
        for name, value in nothing.items():
            if entry[name] == value:
                del entry[name]
        usual: dict[str, object] = {"kv_format": "bf16", "measured_as": ""}
        usual |= dict.fromkeys(("latent", "published_format", "speculative", "adapters"))
        for name, value in usual.items():
            if entry["model"][name] == value:
                del entry["model"][name]
    for entry in facts["configurations"]:
        del entry["gpu"]["source"]
        for name, value in {"vendor": "nvidia", "like": "", "mig": ""}.items():
            if entry["gpu"][name] == value:
                del entry["gpu"][name]
    return hashlib.sha256(
        json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()

"""The scenario document: the shape of the whole file, as pydantic models. Names are looked up in ``resolve``."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from coralopt.scenario.facts.phases import Mode
from coralopt.scenario.file.fields import Name, Positive, Section, Text
from coralopt.scenario.file.models import Limits, Model
from coralopt.scenario.file.pool import CustomGpu, CustomNode, Egress, Pool
from coralopt.scenario.file.serving import Placing, Pruning, ServingPolicy, SharingPolicy, Throughput


class DemandCase(Section):
    """One of several demands that may come: that of the models, times a factor."""

    probability: Annotated[float, Field(gt=0, le=1)] = Field(description="how likely it is, above 0, at most 1")
    factor: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=1.0, description="what every demand is multiplied by"
    )
    factors: dict[Name, Annotated[float, Field(ge=0, le=1000)]] = Field(
        default_factory=dict, description="a key of 'models' -> its own factor"
    )


class Headroom(Section):
    """Room that a plan leaves beyond mean demand and mean requests."""

    throughput: Annotated[float, Field(ge=0, le=100)] = Field(
        default=0.0, description="share of the demand planned beyond it: 0.2 plans 20 % more"
    )
    latency: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="share of the SLO kept free for queues, KV transfers and long requests: 0.3 plans for 70 %",
    )


class Start(Section):
    """What starting an instance costs: its nodes are paid while they boot and load their weights."""

    load_gb_s: Positive = Field(
        default=0.31, description="rate at which one node loads weights into its GPUs, in 1e9 bytes/s"
    )
    boot_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=0.0, description="time of a node before it loads, in seconds"
    )
    interval_s: Annotated[float, Field(gt=0, le=1e8)] = Field(
        default=3600.0, description="time between two plans, over which it is spread, in seconds"
    )


class Running(Section):
    """Serving instances that run already."""

    model: Name = Field(description="a key of 'models'")
    phase: Literal["prefill", "decode", "mixed"] = Field(description="phase that the instances serve")
    region: Name = Field(description="a key of 'pool.regions'")
    nodes: dict[Name, Annotated[int, Field(ge=1, le=1000)]] = Field(
        description="node configuration -> number of nodes of one instance"
    )
    count: Annotated[int, Field(ge=1, le=1_000_000)] = Field(default=1, description="number of running instances")


class Solver(Section):
    """Who solves the allocation."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(default="highs", description="solver name")
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="common solver options, for example rel_gap"
    )

    @field_validator("options", mode="after")
    @classmethod
    def _finite(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name, value in options.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ValueError(f"option '{name}' holds a number that is not finite") from None
        return options


class Document(Section):
    """A coralopt scenario: models with latency SLOs and demand, and the pool of nodes that may be rented."""

    name: Name | None = Field(default=None, description="name of the scenario; default: the name of the file")
    description: Text | None = Field(default=None, description="what this scenario is about")
    mode: Mode = Field(
        default="disaggregated",
        description="disaggregated: prefill and decode instances; mixed: instances that do both; auto: what costs less, "
        "or both with the requests split",
    )
    models: dict[Name, Model] = Field(description="model name -> its SLO and demand")
    pool: Pool = Field(description="regions and the nodes that they offer")
    kv_transfer: Literal["free", "region", "priced"] | None = Field(
        default=None,
        description="where decode may stand: free: anywhere; region: where the prefill is; priced (the default): anywhere "
        "at the price of egress, as far as there is one",
    )
    egress: dict[Name, dict[Name, Egress]] = Field(
        default_factory=dict, description="sending region -> receiving region, or any -> its price and bandwidth"
    )
    limits: Limits = Field(default_factory=Limits, description="most nodes and USD/h (the budget) of the whole plan")
    gpus: dict[Name, CustomGpu] = Field(default_factory=dict, description="GPU types beyond the catalog")
    nodes: dict[Name, CustomNode] = Field(default_factory=dict, description="node configurations beyond the catalog")
    templates: Literal["every", "on-demand"] | None = Field(
        default=None,
        description="every: all node sets of pruning become templates; on-demand: those that pay, with a bound over "
        "node sets of any size; default: every, as long as there are few enough",
    )
    pruning: Pruning = Field(default_factory=Pruning, description="which node sets become templates")
    placement: Placing = Field(default_factory=Placing, description="what placements may look like")
    serving: ServingPolicy = Field(default_factory=ServingPolicy, description="how engines and the router work")
    sharing: SharingPolicy | None = Field(
        default=None, description="models that may share a node; default: every instance has nodes of its own"
    )
    throughput: Throughput = Field(default_factory=Throughput, description="source of the throughput tables")
    headroom: dict[Annotated[str, Field(min_length=1, max_length=300)], Headroom] | None = Field(
        default=None,
        description="room by phase ('prefill') or model phase ('qwen3-32b/prefill', which wins); default: none",
    )
    running: list[Running] = Field(default_factory=list, description="serving instances that run already")
    transition: Literal["free", "start-first"] = Field(
        default="free",
        description="free: a new instance may have the nodes of one that stops; start-first: instances stop once the new "
        "ones run, so there must be nodes for both",
    )
    initialization_penalty: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.1,
        description="K: node initialization time divided by the time between two plans (6 min / 60 min), a ratio",
    )
    demand_cases: dict[Name, DemandCase] = Field(
        default_factory=dict, description="name -> one of several demands that may come: probability and factor"
    )
    start: Start | None = Field(
        default=None,
        description="start costs by template, in place of initialization_penalty: load_gb_s, boot_s, interval_s",
    )
    horizon_h: Positive | None = Field(
        default=None, description="how long the plan is to hold, which says what a commitment costs, in hours"
    )
    solver: Solver = Field(default_factory=Solver, description="who solves the allocation")

    @model_validator(mode="before")
    @classmethod
    def _any_size(cls, data: object) -> object:
        """On demand, templates may be of any size unless the scenario says otherwise."""
        if isinstance(data, dict) and data.get("templates") == "on-demand":
            pruning = data.get("pruning") or {}
            if isinstance(pruning, dict):
                return {**data, "pruning": {"max_nodes": 32, "memory_ratio": 1e6, **pruning}}
        return data

"""The portable plan: what to rent and how to split each model over it, as versioned JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from coralopt.display import Tabular
from coralopt.errors import PlanError
from coralopt.plan.certificate import Certificate
from coralopt.plan.files import write_text
from coralopt.plan.parts import (
    Figure,
    PlannedCase,
    PlannedDemand,
    PlannedFlow,
    PlannedInstance,
    PlannedMode,
    PlannedNodeClass,
    PlannedOption,
    PlanPart,
    Simulated,
)
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.scenario.file.fields import Name
from coralopt.solving.status import gap_met, relative_gap

#: Bumped whenever a field changes its meaning.
VERSION: Literal[1] = 1
#: Fields that are off in a document whose first are named; pydantic takes seconds to gather a million.
MOST_MISTAKES = 200_000


class Plan(PlanPart, Tabular):
    """A plan. Money is USD/h, throughput tokens/s, time ms. Holds no wall times: equal input gives equal bytes."""

    format: Literal["coralopt-plan"] = "coralopt-plan"
    version: Literal[1] = VERSION
    planner: str
    coralopt_version: str
    solver: str
    solver_version: str
    formulation: str
    status: Literal["optimal", "feasible"] = Field(
        description="optimal (gap within the one asked for, and no unconfirmed models) or feasible."
    )
    cost_usd_h: Figure = Field(description="Provisioning, initialization, unmet demand and egress, the objective.")
    provisioning_usd_h: Figure
    initialization_usd_h: Figure
    lower_bound_usd_h: Figure = Field(description="No allocation of this library can cost less.")
    gap: Figure = Field(
        description="The larger of (cost - lower bound) / cost and, where demand was scaled, (served_factor_bound - "
        "served_factor) / served_factor_bound."
    )
    requested_gap: Figure = Field(ge=0, lt=1)
    on_infeasible: Literal["met", "scale", "shortfall"] = Field(
        default="met", description="met: all demand is; else what was done since the pool cannot meet it."
    )
    served_factor: Figure = Field(default=1.0, ge=0, le=1, description="scale: this share of every demand is served.")
    served_factor_bound: Figure = Field(default=1.0, ge=0, le=1, description="scale: no larger share can be, proven.")
    unmet_usd_h: Figure = Field(
        default=0.0, ge=0, description="Price of unmet demand, expected over cases; part of the cost."
    )
    egress_usd_h: Figure = Field(default=0.0, ge=0, description="KV caches sent between regions, part of the cost.")
    scenario_digest: str
    library_digest: str
    demands: tuple[PlannedDemand, ...]
    instances: tuple[PlannedInstance, ...]
    options: tuple[PlannedOption, ...] = ()
    node_classes: tuple[PlannedNodeClass, ...] = Field(
        default=(), description="Nodes by supply class; empty when all are on demand."
    )
    flows: tuple[PlannedFlow, ...] = Field(
        default=(), description="Where requests go from prefill to decode; empty where transfers are free."
    )
    modes: tuple[PlannedMode, ...] = Field(
        default=(), description="How models in mode auto or with variants are served; empty where all go one way."
    )
    cases: tuple[PlannedCase, ...] = Field(
        default=(), description="Demands that may come, and what each leaves unserved; empty where demand is known."
    )
    simulated: Simulated | None = Field(default=None, description="Simulated against requests, and how that ended.")
    certificate: Certificate | None = Field(
        default=None, description="Whether the SLOs hold for the share of requests asked for, on fresh requests."
    )
    unconfirmed: tuple[Name, ...] = Field(
        default=(),
        description="Models whose instances were not seen to serve the share of requests asked for together when the search "
        "ended; empty where all were, and for mean requests.",
    )
    scenario: dict[str, Any] = Field(description="The validated scenario, so that the plan can be checked anywhere.")

    @field_validator("scenario")
    @classmethod
    def _finite(cls, value: dict[str, Any]) -> dict[str, Any]:
        """NaN and infinity are no JSON, so no document has them."""
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise ValueError("NaN and infinity are no values of a scenario") from error
        return value

    @cached_property
    def resolved(self) -> ResolvedScenario:
        """The scenario that the plan carries, checked and with every name looked up; made once.

        Raises:
            ScenarioError: It is not one.
        """
        return scenario_from_mapping(self.scenario, source="the plan's scenario")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Plan:
        """A copy with other fields; another scenario is looked up anew."""
        copied = super().model_copy(update=update, deep=deep)
        if update and "scenario" in update:
            copied.__dict__.pop("resolved", None)
        return copied

    def with_certificate(self, certificate: Certificate) -> Plan:
        """The plan with this certificate; what it confirms is not open any more."""
        unconfirmed = () if certificate.holds else self.unconfirmed
        optimal = gap_met(self.gap, self.requested_gap) and not unconfirmed
        status = "optimal" if optimal else "feasible"
        return self.model_copy(update={"certificate": certificate, "unconfirmed": unconfirmed, "status": status})

    def rented_nodes(self) -> Counter[tuple[str, str]]:
        """(region, node configuration) -> nodes; those that several instances share count once."""
        nodes: Counter[tuple[str, str]] = Counter()
        for instance in self.instances:
            for configuration, count in instance.nodes().items() if instance.rents else ():
                nodes[instance.region, configuration] += instance.count * count
        return nodes

    def __repr__(self) -> str:
        count = sum(item.count for item in self.instances)
        nodes = self.rented_nodes().total()
        return (
            f"<Plan {self.scenario.get('name', '')}: {self.cost_usd_h:,.4f} USD/h, proven gap {self.gap * 100:.4f} %, "
            f"{count:,} instances on {nodes:,} nodes>"
        )

    __str__ = __repr__

    def to_json(self) -> str:
        """The document as text; equal plans give equal bytes."""
        data = self.model_dump(mode="json")
        # A plan that was not simulated says nothing about it.
        for name in ("simulated", "certificate"):
            if data[name] is None:
                del data[name]
        if not self.flows:
            # Nor does one whose transfers are free say where they go.
            del data["flows"], data["egress_usd_h"]
        for name in ("modes", "cases", "unconfirmed"):
            if not data[name]:
                del data[name]
        for demand in data["demands"]:
            if not demand["prefix_hit"]:
                del demand["prefix_hit"]
        for item in data["instances"]:
            if item["shared"] is None:
                del item["shared"]
            else:
                # Steps that take turns say nothing of slices and swapping.
                item["shared"] = {name: value for name, value in item["shared"].items() if value is not None}
            if not item["classes"]:
                del item["classes"]
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the plan to ``path``, first beside it, then renamed.

        Raises:
            PlanError: The file cannot be written.
        """
        write_text(path, self.to_json(), "the plan")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan.

        Raises:
            PlanError: No such file, not JSON, or not a plan; names every field that is off.
        """
        source = Path(path)
        try:
            text = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
            raise PlanError(f"{source}: the plan cannot be read: {reason}") from error
        return Plan.parse(text, str(source))

    @staticmethod
    def parse(text: str, source: str) -> Plan:
        """A plan from its text.

        Raises:
            PlanError: Not JSON, or not a plan; names ``source`` and every field that is off.
        """
        try:
            plan = Plan.model_validate_json(text)
        except ValidationError as error:
            lines = [f"  - {error.error_count():,} fields are off, too many to name"]
            if error.error_count() <= MOST_MISTAKES:
                named = error.errors(include_url=False, include_context=False, include_input=False)[:20]
                lines = [f"  - {'.'.join(map(str, item['loc'])) or 'the document'}: {item['msg']}" for item in named]
                if any(item["loc"] == ("version",) and item["type"] == "literal_error" for item in named):
                    lines = ["  - another version of coralopt wrote it: plan anew, or use that version"]
            raise PlanError("\n".join([f"{source}: not a coralopt plan of version {VERSION}:", *lines])) from error
        try:
            json.loads(text, object_pairs_hook=_without_twins)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"{source}: the plan cannot be read: {error}") from error
        return plan


def headline_gap(cost: float, bound: float, factor: float, factor_bound: float) -> float:
    """The gap that a plan is judged by: that of its cost, or that of the share of demand it serves, whichever is larger.

    Args:
        cost: USD/h.
        bound: Proven lower bound on the cost of serving as much, USD/h.
        factor: Share of every demand that is served; 1 where demand was not scaled.
        factor_bound: No larger share can be served, proven.
    """
    unserved = (factor_bound - factor) / factor_bound if factor_bound > 0 else 0.0
    return max(relative_gap(cost, bound), unserved)


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one place, so programs may read it differently")
    return dict(pairs)


def plan_schema() -> dict[str, Any]:
    """JSON schema of the plan document."""
    return Plan.model_json_schema()

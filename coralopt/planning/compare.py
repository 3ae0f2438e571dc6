"""Plans of several planners for one scenario, side by side."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from coralopt.display import Tabular
from coralopt.errors import CoraloptError, InfeasibleError, NoSolutionError, OptionError
from coralopt.plan import Plan
from coralopt.plan.verify import verify_plan
from coralopt.planning.registry import get_planner
from coralopt.planning.request import Planner, PlanOutcome, PlanRequest, demand_met
from coralopt.scenario.resolved import ResolvedScenario

#: Shares of the demand that are tried where all of it cannot be met are whole percents.
PERCENT = 100
#: Gap and seconds of a look whether a share can be met.
PROBE_GAP, PROBE_SECONDS = 0.05, 20.0
#: Phases whose tokens are the answer.
GENERATING = ("decode", "mixed")


@dataclass(frozen=True)
class Contestant:
    """A planner with its settings, as the command line names it.

    Attributes:
        label: ``"homo:homogeneous=node"``: what tables call it.
        planner: The planner.
        settings: Its settings.
    """

    label: str
    planner: Planner
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Contestant:
        """From ``NAME`` or ``NAME:SETTING=VALUE;SETTING=VALUE``; values are read as JSON, else as text.

        Raises:
            OptionError: No such planner or setting, or not of this form.
        """
        name, _, rest = text.partition(":")
        planner = get_planner(name.strip())
        settings: dict[str, object] = {}
        for item in filter(None, rest.split(";")):
            key, separator, value = item.partition("=")
            if not separator or key.strip() not in planner.settings:
                known = ", ".join(planner.settings) or "none"
                raise OptionError(
                    f"planner {text!r}: {item!r} is not SETTING=VALUE of {name}, whose settings are: {known}"
                )
            try:
                settings[key.strip()] = json.loads(value)
            except json.JSONDecodeError:
                settings[key.strip()] = value
        return cls(text, planner, settings)


@dataclass(frozen=True)
class Row:
    """One planner's result.

    Attributes:
        label: The contestant.
        plan: Its plan, or ``None``.
        share: Share of every demand that the plan was made for: 1, or less where a whole one could not be had.
        demand_met: Least share of its (full) demand that any model phase is given, at most 1.
        cost_usd_h: Cost of the plan, USD/h; NaN without one.
        bound_usd_h: Proven lower bound of the scenario, where ``coral`` took part and met all demand; else NaN.
        above_bound: (cost - bound) / bound for plans of the full demand that the bound is about; else NaN. Where the
            scenario asks for a share of requests, plans for mean ones may cost less.
        own_gap: Gap that the planner's own programme proved among the plans it considers, or ``None``.
        tokens_usd: Generated tokens per USD that the plan promises, counted up to the demand.
        verified: Whether every figure of the plan was recomputed and stands, demand apart.
        violations: What does not.
        seconds: Wall time of the planner, library included.
        error: Why there is no plan; empty otherwise.
        notes: Remarks of the planner.
        simulated: Figures of a simulation: ``attainment``, ``goodput_tokens_s``, ``tokens_usd``, ``requests``; empty
            without one.
        attained: Model phase -> ``attainment``, ``low``, ``high`` (interval) and ``requests``; empty without a simulation.
    """

    label: str
    plan: Plan | None
    share: float = 1.0
    demand_met: float = 0.0
    cost_usd_h: float = float("nan")
    bound_usd_h: float = float("nan")
    above_bound: float = float("nan")
    own_gap: float | None = None
    tokens_usd: float = float("nan")
    verified: bool = False
    violations: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""
    notes: tuple[str, ...] = ()
    simulated: Mapping[str, float] = field(default_factory=dict)
    attained: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Comparison(tuple[Row, ...], Tabular):
    """The rows of a comparison, in the order of the contestants."""

    def __repr__(self) -> str:
        costs = ", ".join(f"{row.label} {row.cost_usd_h:,.4f}" for row in self)
        return f"<Comparison in USD/h: {costs}>"


def compare(
    request: PlanRequest,
    contestants: Sequence[Contestant],
    *,
    shrink: bool = True,
    on_start: Callable[[str], None] | None = None,
    on_row: Callable[[Row], Row] | None = None,
) -> Comparison:
    """Plan the scenario with each contestant.

    Args:
        request: What to plan; the settings are those of the contestants.
        contestants: Who plans, in this order.
        shrink: Where a planner cannot meet all demand, plan for the largest whole percent of every demand that it can
            (paper, section 5.4), found by bisection.
        on_start: Told the label of who begins.
        on_row: Given each row as it is finished; may return it with more figures.

    Returns:
        One row a contestant, in order. A planner that fails has a row with its error.
    """
    rows: list[Row] = []
    with suppress(CoraloptError):  # each planner says what is wrong
        # Throughput tables are the same for all of them; what one leaves beyond these must not help the next.
        request = replace(request, warm=request.warm.covering(request.scenario))
    for contestant in contestants:
        if on_start is not None:
            on_start(contestant.label)
        row = _row(contestant, replace(request, settings=contestant.settings), shrink)
        rows.append(on_row(row) if on_row is not None else row)
    return with_bound(rows)


def with_bound(rows: Sequence[Row]) -> Comparison:
    """The rows with the lower bound that ``coral`` proved for the full demand, where it is among them."""
    whole = [
        row.plan.lower_bound_usd_h
        for row in rows
        if row.plan is not None and row.plan.planner == "coral" and row.share == 1.0
    ]
    bound = max(whole, default=float("nan"))

    def above(row: Row) -> float:
        if row.plan is None or row.demand_met < 1 or not bound > 0 or not _is_bounded(row.plan):
            return float("nan")
        return row.cost_usd_h / bound - 1

    return Comparison(replace(row, bound_usd_h=bound, above_bound=above(row)) for row in rows)


def _is_bounded(plan: Plan) -> bool:
    """Whether a bound of coral's holds for this plan: one for a share of requests does not for plans for mean ones."""
    return plan.planner == "coral" or all(phase.attainment is None for phase in plan.resolved.model_phases)


def _row(contestant: Contestant, request: PlanRequest, shrink: bool) -> Row:
    started = time.perf_counter()
    share = 1.0
    try:
        try:
            outcome = contestant.planner.plan(request)
        except (InfeasibleError, NoSolutionError):
            if not shrink:
                raise
            largest = largest_share(contestant.planner, request)
            if largest is None:
                raise
            share, outcome = largest
    except CoraloptError as error:
        return Row(contestant.label, None, seconds=time.perf_counter() - started, error=str(error))
    seconds = time.perf_counter() - started
    return _finished(contestant, outcome, share, seconds)


def _finished(contestant: Contestant, outcome: PlanOutcome, share: float, seconds: float) -> Row:
    row = planned_row(contestant.label, outcome.plan, share)
    return replace(row, own_gap=outcome.own_gap, seconds=seconds, notes=outcome.notes)


def planned_row(label: str, plan: Plan, share: float = 1.0) -> Row:
    """The row of a plan, verified anew, made for this share of every demand."""
    # A plan on borrowed nodes may fall short of its demand and says so; that is a column of its own.
    others = tuple(violation.text for violation in verify_plan(plan).violations if violation.kind != "demand")
    useful = sum(min(d.planned_tokens_s, d.demand_tokens_s) for d in plan.demands if d.phase in GENERATING)
    return Row(
        label=label,
        plan=plan,
        share=share,
        demand_met=share * demand_met(plan),
        cost_usd_h=plan.cost_usd_h,
        tokens_usd=useful * 3600 / plan.cost_usd_h if plan.cost_usd_h > 0 else float("nan"),
        verified=not others,
        violations=others,
    )


def largest_share(planner: Planner, request: PlanRequest) -> tuple[float, PlanOutcome] | None:
    """The largest whole percent of every demand that a planner can meet, by bisection, and its plan; ``None`` if none.

    A share counts as not met, too, where no plan was found in ``PROBE_SECONDS``. A greedy planner may fail at some share
    and meet a larger one; the bisection then finds a share it can meet, perhaps not the largest.
    """
    # Whether a share can be met at all is asked with a wide gap and little time; only the last plan has to be good.
    limit = request.solve_options.time_limit
    probe = {**request.options, "rel_gap": PROBE_GAP, "time_limit": min(limit or math.inf, PROBE_SECONDS)}
    low, high = 0, PERCENT
    best: PlanOutcome | None = None
    while high - low > 1:
        middle = (low + high) // 2
        try:
            share_of = scaled(request.scenario, middle / PERCENT)
            best = planner.plan(replace(request, scenario=share_of, options=probe))
            low = middle
        except (InfeasibleError, NoSolutionError):
            high = middle
    if best is None:
        return None
    with suppress(NoSolutionError):  # the probe's plan stands then
        best = planner.plan(replace(request, scenario=scaled(request.scenario, low / PERCENT)))
    return low / PERCENT, best


def scaled(scenario: ResolvedScenario, share: float) -> ResolvedScenario:
    """The scenario with every demand times ``share``."""
    return scenario.with_demand(np.array([phase.demand_tokens_s for phase in scenario.model_phases]) * share)

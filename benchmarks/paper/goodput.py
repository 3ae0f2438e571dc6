"""Sections 5.3 to 5.5 over adapting epochs: cost and goodput of every planner, simulated at equal load.

    python -m benchmarks.paper.goodput --quick     # core, two epochs, one seed: a minute or two
    python -m benchmarks.paper.goodput             # core and extended, five epochs, three seeds: ten minutes of CPU time

Each epoch of six minutes is planned for what arrives in it, with the instances of the epoch before running and
initialization spread over an hour (K = 0.1), as in the paper. The cases:

* ``ample``: supply as the built-in scenarios have it (section 5.3);
* ``scarce``: the generator of hourly GPU availability (docs/workload.md), scaled to 25 % (core) or 75 % (extended) above
  what coral's plan for the demand uses, in GPUs (section 5.4);
* ``large-heavy``, ``small-heavy``: ample supply, and the largest (smallest) third of the models receives 80 % of the
  requests; the rest is split equally among the others, which the paper leaves open (section 5.5).

A planner ``coral@0.99`` plans for 99 % of the requests within both SLOs (docs/concepts/promise.md) where the others plan
for the mean request, as the paper does; a plan takes it minutes.

All planners are offered the same requests. Where one cannot meet an epoch's demand, it plans for the largest whole
percent that it can, and the rest of that epoch's requests is refused at the door; a request refused with a large share
is refused with every smaller one. Goodput is generated tokens/s of requests that met their decode SLO in the simulation;
refused requests count as missed. Figures are means over the seeds with 95 % confidence intervals (Student's t); the
goodput ratio is that of the means.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.paper.experiment import Estimate, arguments, save, show
from benchmarks.paper.rolling_horizon import goodput, requests_of, setup
from coralopt import Plan
from coralopt.planning import EpochInputs, PlanRequest, epoch_inputs, epoch_scenario
from coralopt.planning.compare import Contestant, Row, compare
from coralopt.planning.coral import CoralPlanner
from coralopt.planning.rolling.adapt import planned_instances
from coralopt.scenario.facts.facts import RunningInstances
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import SimulationConfig, simulate
from coralopt.workload import (
    EpochAvailability,
    PoolHours,
    PoolScale,
    Trace,
    epoch_demand,
    load_availability_model,
    pool_availability,
    request_shares,
)
from coralopt.workload.series.availability import RULES, plan_worth

EPOCH_S = 360.0
#: Initialization is spread over an hour (section 5.1).
PENALTY = 0.1
#: (case, setup, planner) -> (cost of coral / its cost, goodput of coral / its goodput), as printed; "about 10 % cheaper"
#: for small-heavy in core.
PAPER = {
    ("ample", "core", "homo"): (1 / 1.62, None),
    ("ample", "core", "cauchy"): (1 / 1.60, None),
    ("ample", "extended", "homo"): (1 / 3.14, None),
    ("ample", "extended", "cauchy"): (1 / 2.66, None),
    ("scarce", "core", "homo"): (1.0, 1.24),
    ("scarce", "core", "cauchy"): (1 / 1.51, 1.0),
    ("scarce", "extended", "homo"): (1.52, 7.64),
    ("scarce", "extended", "cauchy"): (1 / 1.25, 2.39),
    ("large-heavy", "core", "homo"): (1 / 1.82, None),
    ("large-heavy", "core", "cauchy"): (1 / 1.78, None),
    ("large-heavy", "extended", "homo"): (1 / 2.79, None),
    ("large-heavy", "extended", "cauchy"): (1 / 3.47, None),
    ("small-heavy", "core", "homo"): (1 / 1.1, None),
    ("small-heavy", "core", "cauchy"): (1 / 1.1, None),
    ("small-heavy", "extended", "homo"): (1 / 2.34, None),
    ("small-heavy", "extended", "cauchy"): (1 / 1.64, None),
}
CASES = ("ample", "scarce", "large-heavy", "small-heavy")


@dataclass(frozen=True)
class Hours:
    """One planner over the epochs of one seed.

    Attributes:
        setup: Built-in scenario.
        case: One of ``CASES``.
        planner: Its label.
        seed: Of requests and supply.
        planned_share: Mean over epochs of the share of the demand that is planned for.
        cost_usd_h: Mean over the epochs after the first that have a plan, initialization included; NaN without any.
        initialization_usd_h: The same mean of the cost of starting.
        offered_tokens_s: Generated tokens/s of all requests, refused ones too.
        decode_tokens_s: Those of requests that met their decode SLO.
        both_tokens_s: Those of requests that met both SLOs.
        seconds: Wall time.
        unconfirmed: Plans whose search time ended before their instances were seen to serve the share asked for.
    """

    setup: str
    case: str
    planner: str
    seed: int
    planned_share: float
    cost_usd_h: float
    initialization_usd_h: float
    offered_tokens_s: float
    decode_tokens_s: float
    both_tokens_s: float
    seconds: float
    unconfirmed: int


def scarce_supply(scenario: ResolvedScenario, needed: float, epochs: int, seed: int) -> EpochAvailability:
    """Supply of every epoch, scaled to the GPUs that a plan with ample supply needs."""
    table = pool_availability(
        load_availability_model().sample(24 * 7, seed),
        {region: [c.name for c in scenario.configurations] for region in scenario.regions},
        epochs,
        PoolScale(needed, RULES[f"scarce-{scenario.name}"]),
        PoolHours(seed=seed),
    )
    # What no region sells has no price and cannot be had.
    names = [c.name for c in scenario.configurations]
    priced = np.isfinite(scenario.price_usd_h)[
        np.ix_([scenario.regions.index(r) for r in table.regions], [names.index(c) for c in table.configurations])
    ]
    return EpochAvailability(table.regions, table.configurations, np.where(priced[None], table.count, 0))


def planned_epochs(request: PlanRequest, inputs: EpochInputs, contestant: Contestant) -> list[Row]:
    """Its plan of every epoch, each with the instances of the one before running."""
    rows: list[Row] = []
    running: tuple[RunningInstances, ...] = ()
    share = contestant.label.partition("@")[2]
    for demand, available, price in zip(inputs.demand, inputs.availability, inputs.price, strict=True):
        now = epoch_scenario(request.scenario, demand, available, price, running, PENALTY)
        now = now.with_attainment(float(share)) if share else now
        (row,) = compare(PlanRequest(now, options=request.options, seed=request.seed, warm=request.warm), [contestant])
        rows.append(row)
        running = planned_instances(row.plan)
    return rows


def admitted(trace: Trace, shares: Sequence[float], seed: int) -> Trace:
    """The requests of each epoch kept with its share; the same ones first for every planner."""
    epoch = np.minimum((trace.arrival_s // EPOCH_S).astype(np.int64), len(shares) - 1)
    return trace.take(np.random.default_rng(seed).random(len(trace)) < np.array(shares)[epoch])


def served(rows: Sequence[Row], trace: Trace, seed: int) -> tuple[float, float]:
    """Goodput within the decode SLO, and within both, tokens/s over all epochs."""
    kept = admitted(trace, [row.share if row.plan is not None else 0.0 for row in rows], seed)
    # Requests of an epoch without a plan are all refused, so that it does not matter what stands there then.
    known: list[tuple[float, Plan]] = [(e * EPOCH_S, row.plan) for e, row in enumerate(rows) if row.plan is not None]
    if not known or not len(kept):
        return 0.0, 0.0
    schedule = [(0.0, known[0][1]), *known[1:]]
    result = simulate(
        schedule, kept, config=SimulationConfig(seed=seed), duration_s=EPOCH_S * len(rows), epoch_s=EPOCH_S
    )
    return goodput(result)


def hours_of(
    request: PlanRequest, trace: Trace, inputs: EpochInputs, contestant: Contestant, place: tuple[str, str]
) -> Hours:
    """One planner over the epochs of one seed; ``place`` is setup and case."""
    begin = time.perf_counter()
    rows = planned_epochs(request, inputs, contestant)
    decode, both = served(rows, trace, request.seed)
    # The first epoch starts from nothing in every system.
    plans = [row.plan for row in rows[1:] or rows if row.plan is not None]
    return Hours(
        *place,
        contestant.label,
        request.seed,
        float(np.mean([row.share if row.plan is not None else 0.0 for row in rows])),
        float(np.mean([plan.cost_usd_h for plan in plans])) if plans else math.nan,
        float(np.mean([plan.initialization_usd_h for plan in plans])) if plans else math.nan,
        float(trace.output_tokens.sum()) / (EPOCH_S * len(rows)),
        decode,
        both,
        time.perf_counter() - begin,
        sum(bool(row.plan.unconfirmed) for row in rows if row.plan is not None),
    )


HEAD = (
    f"{'setup':9}{'case':12}{'planner':24}{'planned':>9}{'USD/h':>15}{'init.':>7}{'goodput of all':>16}{'both SLOs':>15}"
    f"{'cost ratio':>15}{'paper':>7}{'goodput ratio':>15}{'paper':>7}"
)


def line(mine: Sequence[Hours], coral: Sequence[Hours]) -> str:
    """The row of one planner over all seeds, ratios of the first planner's figures to its."""
    first = mine[0]
    printed = PAPER.get((first.case, first.setup, first.planner.partition(":")[0]), (None, None))
    words = [f"{value:.2f}" if value is not None else "-" for value in printed]
    cost = Estimate.of([h.cost_usd_h for h in mine])
    costs = Estimate.of([c.cost_usd_h / h.cost_usd_h for c, h in zip(coral, mine, strict=True)])
    theirs = sum(h.decode_tokens_s for h in mine)
    gain = sum(c.decode_tokens_s for c in coral) / theirs if theirs > 0 else math.inf
    start = Estimate.of([h.initialization_usd_h / h.cost_usd_h for h in mine]).mean
    decode = Estimate.of([h.decode_tokens_s / h.offered_tokens_s for h in mine])
    both = Estimate.of([h.both_tokens_s / h.offered_tokens_s for h in mine])
    return (
        f"{first.setup:9}{first.case:12}{first.planner:24}{np.mean([h.planned_share for h in mine]):9.0%}{cost:>15.2f}"
        f"{'-' if math.isnan(start) else format(start, '.1%'):>7}{decode:>16.1%}{both:>15.1%}"
        f"{costs:>15.2f}{words[0]:>7}{gain:>15.2f}{words[1]:>7}"
        + (f"  {unconfirmed} plans not confirmed in time" if (unconfirmed := sum(h.unconfirmed for h in mine)) else "")
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--traffic", default="dataset", choices=["poisson", "dataset"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--epochs", type=int, help="2 with --quick, else 5")
    parser.add_argument("--seeds", type=int, help="1 with --quick, else 3, from --seed on")
    options = parser.parse_args()
    epochs = options.epochs or (2 if options.quick else 5)
    seeds = range(options.seed, options.seed + (options.seeds or (1 if options.quick else 3)))
    contestants = [replace(Contestant.parse(text.partition("@")[0]), label=text) for text in options.planners]
    results: list[Hours] = []
    show(HEAD)
    limits = {"time_limit": options.time_limit}
    for name in ["core"] if options.quick else options.setups:
        # Neither templates nor what supply is scaled to depend on the case.
        plain = PlanRequest(setup(name)).warmed()
        sizes = {phase.model.name: float(phase.model.total_params) for phase in plain.scenario.model_phases}
        needed = math.nan
        if "scarce" in options.cases:
            ample = CoralPlanner().plan(replace(plain, options={"rel_gap": 0.005})).plan
            needed = plan_worth(ample, plain.scenario.configurations)
        for case in options.cases:
            shares = request_shares(sizes, case) if case.endswith("heavy") else {}
            scenario = setup(name, factors={model: share * len(sizes) for model, share in shares.items()})
            requests = [PlanRequest(scenario, options=limits, seed=seed, warm=plain.warm) for seed in seeds]
            traces = [requests_of(scenario, options.traffic, epochs * EPOCH_S / 60, seed) for seed in seeds]
            inputs = [
                epoch_inputs(
                    scenario,
                    epoch_demand(trace, EPOCH_S, epochs=epochs, models=list(sizes)),
                    scarce_supply(scenario, needed, epochs, seed) if case == "scarce" else None,
                )
                for trace, seed in zip(traces, seeds, strict=True)
            ]
            first: list[Hours] = []
            for contestant in contestants:
                mine = []
                for request, trace, epoch in zip(requests, traces, inputs, strict=True):
                    mine.append(hours_of(request, trace, epoch, contestant, (name, case)))
                    results.append(mine[-1])
                    save(options.output, [asdict(hours) for hours in results])
                first = first or mine
                show(line(mine, first))


if __name__ == "__main__":
    main()

"""Section 5.4 simulated: cost and goodput of coral under ample and scarce supply, five epochs of six minutes.

    python -m benchmarks.paper.goodput --quick     # core, three epochs, Poisson arrivals: about a minute
    python -m benchmarks.paper.goodput             # core and extended, five epochs, both kinds of traffic

Every epoch is planned for what arrives in it. Scarce supply follows the generator of hourly GPU availability, 25 % (core)
and 75 % (extended) above what the ample plan uses. Goodput is generated tokens/s of requests that met their decode SLO in
the simulation, over the tokens that arrived. Where an epoch's
supply cannot meet its demand, every model's requests are thinned by the same share, in steps of 5 %, in that epoch. The
paper prints that coral costs 10 % (core) and 25 % (extended) more under scarce supply than under ample supply, and that
initialization is below 1 % of the cost. Other planners have their rows in benchmarks/paper/scarcity.py, which does
not simulate.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.paper.rolling_horizon import LEARNED, goodput, requests_of, setup, simulate_horizon
from coralopt import plan_scenario
from coralopt.allocation import solve_allocation
from coralopt.errors import InfeasibleError, NoSolutionError
from coralopt.planning import allocation_problem, epoch_inputs, epoch_scenario
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import TemplateLibrary, obtain_library
from coralopt.workload import EpochAvailability, PoolHours, PoolScale, Trace, load_availability_model, pool_availability
from coralopt.workload.series.availability import RULES, plan_worth

PAPER = {"core": 1.10, "extended": 1.25}
EPOCH_S = 360.0


def scarce(scenario: ResolvedScenario, name: str, epochs: int, seed: int) -> EpochAvailability:
    """Supply of every epoch, scaled to the ample plan."""
    needed = plan_worth(plan_scenario(scenario, options={"rel_gap": 0.005}), scenario.configurations)
    table = pool_availability(
        load_availability_model().sample(24 * 7, seed),
        {region: [c.name for c in scenario.configurations] for region in scenario.regions},
        epochs,
        PoolScale(needed, RULES[f"scarce-{name}"]),
        PoolHours(seed=seed),
    )
    # What no region sells has no price and cannot be had.
    names = [c.name for c in scenario.configurations]
    priced = np.isfinite(scenario.price_usd_h)[
        np.ix_([scenario.regions.index(r) for r in table.regions], [names.index(c) for c in table.configurations])
    ]
    return EpochAvailability(table.regions, table.configurations, np.where(priced[None], table.count, 0))


def feasible_shares(
    scenario: ResolvedScenario, library: TemplateLibrary, supply: EpochAvailability, epochs: int
) -> list[float]:
    """For each epoch the largest share of the demand, in steps of 5 %, that its supply can meet."""
    inputs = epoch_inputs(scenario, None, supply, epochs=epochs)

    def meets(epoch: int, step: int) -> bool:
        demand, there, price = inputs.demand[epoch] * step / 20, inputs.availability[epoch], inputs.price[epoch]
        now = epoch_scenario(scenario, demand, there, price, (), 0.0)
        try:
            solve_allocation(allocation_problem(now, library), options={"rel_gap": 0.2, "time_limit": 60})
        except (InfeasibleError, NoSolutionError):
            return False
        return True

    shares = []
    for epoch in range(epochs):
        low, high = 0, 20
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if meets(epoch, middle) else (low, middle - 1)
        shares.append(low / 20)
    return shares


def thinned(trace: Trace, shares: list[float], seed: int) -> Trace:
    """Each epoch's requests kept with its share."""
    epoch = np.minimum((trace.arrival_s // EPOCH_S).astype(np.int64), len(shares) - 1)
    return trace.take(np.random.default_rng(seed).random(len(trace)) < np.array(shares)[epoch])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--setups", nargs="+", default=None, choices=["core", "extended"])
    parser.add_argument("--traffic", nargs="+", default=None, choices=["poisson", "dataset"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    setups = options.setups or (["core"] if options.quick else ["core", "extended"])
    kinds = options.traffic or (["poisson"] if options.quick else ["poisson", "dataset"])
    epochs = 3 if options.quick else 5
    print(
        f"{'setup':9}{'traffic':9}{'headroom':10}{'supply':8}{'kept':>7}{'USD/h':>9}{'ratio':>7}{'paper':>7}{'init.':>8}"
        f"{'goodput':>10}{'of all':>8}{'both':>8}{'seconds':>9}"
    )
    for name in setups:
        for kind in kinds:
            for label, rooms in (("none", {}), ("learned", LEARNED.get(name))):
                if rooms is None:
                    continue
                ample_cost = float("nan")
                scenario = setup(name, rooms)
                library, _ = obtain_library(scenario)
                whole = requests_of(scenario, kind, epochs * EPOCH_S / 60, options.seed)
                offered = float(whole.output_tokens.sum()) / (epochs * EPOCH_S)
                for supply in ("ample", "scarce"):
                    begin = time.perf_counter()
                    there, trace, scale = None, whole, 1.0
                    if supply == "scarce":
                        # The pool is that of the plan without headroom; 0.9 leaves room for epochs above the mean.
                        there = scarce(setup(name), name, epochs, options.seed)
                        shares = [0.9 * share for share in feasible_shares(scenario, library, there, epochs)]
                        trace, scale = thinned(whole, shares, options.seed), float(np.mean(shares))
                    # Initialization is spread over an hour, as in the paper (section 5.1).
                    horizon = simulate_horizon(scenario, trace, EPOCH_S, epochs, 0.1, there)
                    decode, both = goodput(horizon.result)
                    ample_cost = horizon.cost_usd_h if supply == "ample" else ample_cost
                    ratio = horizon.cost_usd_h / ample_cost
                    print(
                        f"{name:9}{kind:9}{label:10}{supply:8}{scale:7.0%}{horizon.cost_usd_h:9.2f}{ratio:7.2f}"
                        f"{PAPER[name] if supply == 'scarce' else 1.0:7.2f}"
                        f"{horizon.initialization_usd_h / horizon.cost_usd_h:8.2%}{decode:10.1f}{decode / offered:8.1%}"
                        f"{both / offered:8.1%}{time.perf_counter() - begin:9.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

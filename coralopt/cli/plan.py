"""``coralopt plan``: from a scenario to a checked plan."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coralopt.cli.console import ScenarioArgument, keep_apart, parse_options, progress_bar, say
from coralopt.cli.exit_codes import CHECK_FAILED, OK
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, PlanOutput, present_plan
from coralopt.cli.shared_options import AllocationOptions, LibraryOptions, OperatorOptions, PlannedTrafficOptions

if TYPE_CHECKING:
    from coralopt.planning import EpochInputs, PlanRequest, Round, VerifiedPlanning
    from coralopt.workload import Traffic

#: Where it may take long, the cheapest plan of one GPU type is looked for in such a part of the plan's seconds, or so many.
PART, LEAST_S = 0.2, 3.0


@dataclass(frozen=True)
class PlannerOptions(OptionGroup):
    """Who plans."""

    planner: str = option("coral", "Planner; see docs/planners.md.")
    planner_option: list[str] | None = option(
        None, "Setting of another planner; may be repeated.", metavar="NAME=VALUE"
    )
    play: bool = option(
        True,
        "Simulate requests on the plan: what share meets its SLOs, certified where the scenario asks for a share.",
        "--play/--no-play",
    )
    one_gpu: bool | None = option(
        None,
        "Compare the bill with the cheapest plan of one GPU type. By default for up to a fifth of the plan's time (for "
        "mean requests, seconds a type); --one-gpu looks on to the end.",
        "--one-gpu/--no-one-gpu",
    )


@dataclass(frozen=True)
class SimulateOptions(OptionGroup):
    """Whether and how the plan is corrected by simulation."""

    panel = "Verified by simulation"

    simulate: bool = option(
        False, "Simulate requests on the plan and correct it until it keeps its promise.", "--simulate"
    )
    attainment: float | None = option(
        None,
        "Share of the requests of every model that must meet its SLOs, in place of the scenario's; with --simulate that "
        "of each model phase, 0.99 by default.",
    )
    attainment_of: str = option(
        "all", "With --simulate: all requests, or the possible ones that some node could serve in time."
    )
    rounds: int = option(16, "With --simulate: most plans to make and simulate.")


@takes_groups
def plan(
    scenario: ScenarioArgument,
    output: PlanOutput,
    planner: PlannerOptions,
    solver: AllocationOptions,
    operator: OperatorOptions,
    templates: LibraryOptions,
    simulation: SimulateOptions,
    traffic: PlannedTrafficOptions,
) -> None:
    """Plan SCENARIO: which nodes to rent and how to split every model, at proven cost."""
    from coralopt.errors import OptionError

    keep_apart([scenario, traffic.trace, templates.library], output.output, output.page_file)
    loaded = templates.load(scenario)
    # A second of imports, which a file with mistakes is refused without.
    from coralopt.planning import asks_for_shares

    wanted, windows = operator.on(loaded), None
    if simulation.attainment is not None and not simulation.simulate:
        wanted = wanted.with_attainment(simulation.attainment)
    if traffic.peak is not None or traffic.perfect:
        if traffic.trace is None or simulation.simulate:
            raise OptionError("--peak and --perfect look at short windows of a --trace; they do not go with --simulate")
        wanted, windows = traffic.planned_for(wanted)
        windows = windows if traffic.perfect else None
    request = solver.request(wanted, templates.library, operator.on_infeasible)
    if simulation.simulate:
        if solver.settings != AllocationOptions().settings or operator.on_infeasible != "explain":
            raise OptionError(
                "--simulate plans with the default formulation and all reductions, and for the whole demand; leave out "
                "--formulation, --no-reductions, --restrict and --on-infeasible"
            )
        if planner.planner != "coral":
            raise OptionError("--simulate corrects plans of coral; for others see coralopt compare --simulate")
        if asks_for_shares(request.scenario):
            raise OptionError(
                "--simulate corrects plans for mean requests; this scenario asks for a share of requests within SLO, which "
                "plan holds and certifies by itself. Leave --simulate out, or say `attainment: mean`"
            )
        _plan_verified(request, simulation, traffic.source(), output)
    elif traffic.trace is not None and traffic.peak is None and not traffic.perfect:
        raise OptionError("a --trace is simulated with --simulate, or planned for with --peak")
    elif planner.planner != "coral":
        if operator.on_infeasible != "explain":
            raise OptionError("--on-infeasible is for the planner coral; others tell what share they cannot serve")
        settings = parse_options(planner.planner_option)
        _plan_by(planner, replace(request, settings=settings, seed=traffic.seed), output, windows)
    elif planner.planner_option:
        raise OptionError("--planner-option is for other planners than coral; give --planner")
    else:
        settings = {**solver.settings, "certify": planner.play}
        _plan_by(planner, replace(request, settings=settings), output, windows)


def _plan_by(
    options: PlannerOptions, request: PlanRequest, output: PlanOutput, windows: EpochInputs | None = None
) -> None:
    """The plan of one planner; coral says what its library is, another planner who it is.

    With windows of a trace the rent is held against what a system costs that rents for each of them alone.
    """
    from coralopt.planning import (
        asks_for_shares,
        cheapest_of_one_gpu,
        cheapest_that_holds,
        expected_shares,
        get_planner,
        perfect_cost,
    )
    from coralopt.report.epochs import perfect_line

    planner, expected, alternative, one_gpu, perfect, code = get_planner(options.planner), None, None, None, None, OK
    with progress_bar("plan", quiet=output.json_output) as progress:
        outcome = planner.plan(replace(request, progress=progress))
        plan, seconds = outcome.plan, dict(outcome.steps)
        if options.play:
            started = time.perf_counter()
            expected = expected_shares(plan)
            seconds["simulation"] = time.perf_counter() - started
            alternative = cheapest_that_holds(replace(request, progress=progress), outcome, expected)
            seconds["alternative"] = time.perf_counter() - started - seconds["simulation"]
        if options.one_gpu is not False:
            quick = not asks_for_shares(plan.resolved) and plan.resolved.sharing.models == 1
            limit = max(LEAST_S, PART * sum(seconds.values()))
            started = time.perf_counter()
            one_gpu = cheapest_of_one_gpu(request, outcome, math.inf if quick or options.one_gpu else limit)
            seconds["one gpu"] = time.perf_counter() - started
        if windows is not None:
            perfect = perfect_cost(replace(request, progress=progress), windows)
    facts: dict[str, object] = {"seconds": seconds} | ({} if perfect is None else {"perfect_usd_h": perfect})
    facts["notes"] = outcome.notes
    notes = [f"note: {note}" for note in outcome.notes]
    took = "seconds: " + ", ".join(f"{step} {value:.2f}" for step, value in seconds.items())
    used = outcome.library
    if planner.name == "coral" and used is not None:
        facts |= {"templates": used.templates, "node_sets": used.node_sets, "library_reused": used.reused}
        origin = "read from the library" if used.reused else f"from {used.node_sets:,} node sets"
        lines = [f"{used.templates:,} templates {origin}; {took}"]
    else:
        facts |= {"own_gap": outcome.own_gap}
        lines = [f"planner {planner.name}: {planner.summary} ({planner.source})", took]
    if perfect is not None:
        lines.append(perfect_line(plan.provisioning_usd_h, perfect))
    lines += notes
    cut_short = outcome.notes and options.play and asks_for_shares(plan.resolved)
    if plan.certificate is None and (cut_short or plan.unconfirmed):
        code = CHECK_FAILED
    elif plan.certificate is not None and not plan.certificate.holds:
        lines.append("NOT CERTIFIED: the share of requests asked for is not confirmed for every SLO, see the table")
        code = CHECK_FAILED
    answer = CommandOutput(facts, lines=lines, code=code)
    present_plan(plan, output, answer, expected=expected, one_gpu=one_gpu, alternative=alternative)


def _plan_verified(request: PlanRequest, simulation: SimulateOptions, traffic: Traffic, output: PlanOutput) -> None:
    """Plan, simulate, correct: the cheapest plan that keeps its promise; exit 1 when no plan passed."""
    from coralopt.planning import USUAL_SHARE, VerifiedSettings, plan_verified
    from coralopt.report.verified import rounds_table

    with progress_bar("plan", quiet=output.json_output) as progress:
        outcome = plan_verified(
            replace(request, progress=progress),
            traffic,
            VerifiedSettings(simulation.attainment or USUAL_SHARE, simulation.attainment_of, simulation.rounds),
            on_round=None if output.json_output else _say_round,
        )
    answer = CommandOutput(
        {"interrupted": outcome.interrupted, "impossible": outcome.impossible, "rounds": outcome.rounds},
        [rounds_table(outcome.rounds)],
        [f"requests: {traffic.words}", *_judgement(outcome)],
        ["interrupted: this is the best of the rounds that were finished"] if outcome.interrupted else (),
        OK if outcome.verified else CHECK_FAILED,
    )
    present_plan(
        outcome.plan, output, answer, "plan written to {}" + ("" if outcome.verified else ", marked as failed")
    )


def _say_round(number: int, item: Round) -> None:
    if math.isnan(item.cost_usd_h):
        say(f"round {number}: the pool has no room for the headroom asked for")
        return
    worst = min(item.attainment, key=lambda key: item.attainment[key], default="")
    ending = "passed" if item.passed else "failed"
    least = f", least {item.attainment[worst]:.2%} of {worst}" if worst else ""
    say(f"round {number}: {item.cost_usd_h:,.4f} USD/h, {ending}{least} ({sum(item.seconds.values()):.1f} s)")


def _judgement(outcome: VerifiedPlanning) -> Iterator[str]:
    if outcome.verified:
        yield (
            f"verified: the cheapest of {sum(item.passed for item in outcome.rounds)} plans that passed; "
            f"{outcome.plan.cost_usd_h:,.4f} USD/h, the first plan cost {outcome.rounds[0].cost_usd_h:,.4f} USD/h"
        )
        return
    mark = outcome.plan.simulated
    yield (
        f"NOT VERIFIED: none of {len(outcome.rounds)} plans passed; this one came nearest. Allow more --rounds, "
        f"a lower --attainment than {mark.target if mark else 0:g}, looser SLOs or a larger pool"
    )
    if mark is not None and mark.over == "all":
        for key, share in outcome.impossible.items():
            if share > 1 - mark.target:
                yield (
                    f"  - {key}: {share:.2%} of the requests can meet the SLO on no node of the pool; "
                    "--attainment-of possible leaves them out"
                )

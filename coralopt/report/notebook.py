"""What values look like in notebooks: the tables of the terminal and the drawings of the pages, with their colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

import numpy as np
from markupsafe import Markup
from rich.table import Table

from coralopt.display import Columns, register
from coralopt.plan.bill import bill_of
from coralopt.plan.document import Plan
from coralopt.planning.compare import Comparison, Row
from coralopt.planning.sweep import COLUMNS, Sweep
from coralopt.report.bill import bill_table, model_table
from coralopt.report.comparison import comparison_table
from coralopt.report.pages.comparison import cost_figures
from coralopt.report.pages.page import Block, HtmlTable, blocks_html
from coralopt.report.pages.pipelines import pipeline_blocks
from coralopt.report.pages.simulation import latency_figures, miss_figure, simulated_requests
from coralopt.report.simulation import promise_table, simulation_summary
from coralopt.report.svg import element, stylesheet
from coralopt.report.sweep import sweep_curves, sweep_table
from coralopt.report.table import Column, facts_table, make_table, numbers
from coralopt.report.tables import demand_table, instance_table, plan_summary
from coralopt.scenario import ResolvedScenario
from coralopt.simulation import SimulationResult
from coralopt.simulation.causes import CAUSES
from coralopt.simulation.results import STATUS
from coralopt.solving.solution import Solution
from coralopt.templates import TemplateLibrary

#: Rows of a table in a notebook.
MOST_ROWS = 50


def shown(*parts: Table | Markup) -> str:
    """Tables and drawings as one element with the colours of the pages."""
    inside = [part if isinstance(part, Markup) else drawn([HtmlTable(part)]) for part in parts]
    return str(element("div", element("style", Markup(stylesheet())), *inside, class_="coralopt"))


def drawn(blocks: Sequence[Block]) -> Markup:
    """Blocks of a page."""
    return blocks_html(tuple(blocks))


def _plan(plan: Plan) -> str:
    bill = bill_of(plan)
    tables = bill_table(bill, MOST_ROWS), model_table(bill), demand_table(plan), plan_summary(plan)
    return shown(*tables, instance_table(plan, MOST_ROWS), drawn(tuple(pipeline_blocks(plan))[1:]))


def _plan_columns(plan: Plan) -> Columns:
    names = ("name", "model", "phase", "region", "count", "kept", "tokens_s", "price_usd_h")
    columns: dict[str, list[object]] = {name: [getattr(item, name) for item in plan.instances] for name in names}
    columns["nodes"] = [item.nodes() for item in plan.instances]
    columns["layers"] = [tuple(stage.layers for stage in item.stages) for item in plan.instances]
    return columns


def _scenario(scenario: ResolvedScenario) -> str:
    phases = [(p.key, p.slo_ms, p.demand_tokens_s) for p in scenario.model_phases]
    columns = ("model phase", Column("SLO ms", "{:g}"), Column("demand tokens/s", "{:,.1f}"))
    supply = make_table(
        "Supply: nodes at USD/h",
        ("configuration", *scenario.regions),
        [
            (item.name, *(f"{n} at {price:,.4f}" if n else "-" for n, price in zip(*column, strict=True)))
            for item, column in zip(
                scenario.configurations, zip(scenario.availability.T, scenario.price_usd_h.T, strict=True), strict=True
            )
        ],
    )
    return shown(make_table(f"Scenario {scenario.name}", columns, phases), supply)


def _scenario_columns(scenario: ResolvedScenario) -> Columns:
    places = [(r, c) for r in range(len(scenario.regions)) for c in range(len(scenario.configurations))]
    hosts = scenario.configurations
    return {
        "region": [scenario.regions[r] for r, _ in places],
        "configuration": [hosts[c].name for _, c in places],
        "gpu": [hosts[c].gpu.name for _, c in places],
        "gpus": [hosts[c].count for _, c in places],
        "available": [int(scenario.availability[place]) for place in places],
        "price_usd_h": [float(scenario.price_usd_h[place]) for place in places],
    }


def _solution(solution: Solution[object]) -> str:
    facts = {
        "status": f"{solution.termination.reason.value} ({solution.termination.raw})",
        "objective": f"{solution.objective:,.10g}",
        "bound": "-" if solution.bound is None else f"{solution.bound:,.10g}",
        "gap": f"{solution.gap:.4g} (asked for {solution.requested_gap:g})",
        "solver": f"{solution.solver} {solution.formulation}".strip(),
        "seconds": ", ".join(f"{step} {value:.3f}" for step, value in solution.seconds.items()),
        "nodes": f"{solution.nodes:,}",
    }
    return shown(facts_table("Solution", facts.items()))


def _simulation(result: SimulationResult) -> str:
    simulated = simulated_requests(result)
    pictures = drawn([*miss_figure(None, simulated)[:1], *latency_figures(simulated)])
    return shown(simulation_summary(result), promise_table(result.outcomes), pictures)


def _simulation_columns(result: SimulationResult) -> Columns:
    words = {"model": result.models, "status": STATUS, "cause_ttft": CAUSES, "cause_tpot": CAUSES}
    columns: dict[str, Iterable[object]] = {
        name: [words[name][k] for k in column.tolist()] if name in words else column
        for name, column in result.requests.items()
    }
    return columns


def _library(library: TemplateLibrary) -> str:
    rows = [
        (phase.key, len(phase), phase.examined, float(phase.throughput.max(initial=0.0))) for phase in library.phases
    ]
    heads: tuple[Column | str, ...] = (
        "model phase",
        *numbers("{:,}", "templates", "node sets examined"),
        Column("most tokens/s", "{:,.1f}"),
    )
    return shown(make_table(f"Template library of {library.scenario}", heads, rows))


def _library_columns(library: TemplateLibrary) -> Columns:
    keys = np.repeat([phase.key for phase in library.phases], [len(phase) for phase in library.phases])
    nodes = {name: library.usage[:, c] for c, name in enumerate(library.configurations)}
    return {"key": keys, "tokens_s": library.throughput, **nodes}


def _comparison(rows: Comparison) -> str:
    return shown(comparison_table(rows, "Planners"), drawn(cost_figures(rows)))


def _comparison_columns(rows: Comparison) -> Columns:
    return {item.name: [getattr(row, item.name) for row in rows] for item in fields(Row) if item.name != "plan"}


def _sweep(sweep: Sweep) -> str:
    return shown(*(sweep_curves(sweep, axis) for axis in sweep.variations if len(axis.values) > 1), sweep_table(sweep))


def _sweep_columns(sweep: Sweep) -> Columns:
    values: Mapping[str, list[object]] = {a.path: [p.values[a.path] for p in sweep.points] for a in sweep.variations}
    return {**values, **{name: [getattr(point, name) for point in sweep.points] for name in COLUMNS}}


register(Plan, _plan, _plan_columns)
register(ResolvedScenario, _scenario, _scenario_columns)
register(Solution, _solution)
register(SimulationResult, _simulation, _simulation_columns)
register(TemplateLibrary, _library, _library_columns)
register(Comparison, _comparison, _comparison_columns)
register(Sweep, _sweep, _sweep_columns)

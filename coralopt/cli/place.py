"""``coralopt place``: the best placement of one model on a fixed pool of nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, folder_to_write, progress_bar, say
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.cli.present import CommandOutput, present

if TYPE_CHECKING:
    from rich.table import Table

    from coralopt.placement import PlacementPool


@dataclass(frozen=True)
class StageOptions(OptionGroup):
    """How many stages."""

    max_stages: int | None = option(None, "Most stages.", least=1)
    stages: int | None = option(None, "Exactly so many stages.", least=1)
    frontier: bool = option(False, "The best placement for every limit on the stages.")
    solver: str = option("highs", "MILP back end; see `coralopt solvers`.")
    time_limit: float | None = option(None, "Seconds a placement; keeps the best so far.", least=0)


@dataclass(frozen=True)
class ServedOptions(OptionGroup):
    """What is served."""

    panel = "What is served"

    objective: str | None = option(
        None,
        "served: decode tokens/s when requests never end, found by search and simulated; flow: tokens/s of the maximum "
        "flow, proven. Default: served where the pool says how its nodes serve.",
    )
    pipelines: int = option(2, "Most pipelines that share the pool.", least=1)
    write_helix: Path | None = option(
        None, "Folder for the placement in the format of Helix's artifact.", check=folder_to_write
    )


@dataclass(frozen=True)
class RivalOptions(OptionGroup):
    """Other planners."""

    panel = "Other planners"

    planner: str = option("coral", "coral, helix or hexgen; see docs/planners.md.")
    start: str = option("heuristics", "What helix begins with: heuristics, pool or none.")
    seed: int = option(0, "Seed of the search for what is served, of helix and hexgen.", least=0)
    generations: int = option(300, "Generations of hexgen's search.", least=0)


@takes_groups
def place(
    pool: Annotated[
        str, typer.Argument(metavar="POOL", help="helix-10, helix-24, helix-42, or a YAML or JSON file of a pool.")
    ],
    stages: StageOptions,
    served: ServedOptions,
    rival: RivalOptions,
    json_output: JsonFlag = False,
) -> None:
    """Place one model on POOL, some 10 to 1,000 nodes of which some may stay idle, for most tokens/s.

    Where the pool has step times, tokens/s are decode tokens served, by search and simulation; else they are those of
    the maximum flow, proven.
    """
    from coralopt.errors import OptionError
    from coralopt.placement import load_pool

    loaded = load_pool(pool)
    if rival.planner == "coral":
        if stages.frontier and stages.stages is not None:
            raise OptionError("--frontier tries every limit on the stages; leave out --stages")
        objective = served.objective or ("served" if loaded.serving is not None and not stages.frontier else "flow")
        if objective == "served":
            if stages.frontier:
                raise OptionError("--frontier shows the maximum flow by stages; leave out --objective served")
            answer = _served(loaded, stages, served, rival.seed, quiet=json_output)
        elif objective != "flow":
            raise OptionError(f"--objective is {objective!r}; choose served or flow")
        elif served.write_helix is not None:
            raise OptionError("--write-helix writes what --objective served places; leave out --objective flow")
        else:
            answer = _flow(loaded, stages)
    elif served.objective is not None or served.write_helix is not None:
        raise OptionError("--objective and --write-helix belong to coral's placements; leave them out")
    elif stages.frontier or stages.max_stages is not None:
        raise OptionError("--frontier and --max-stages limit the stages of coral's placements; leave them out")
    elif rival.planner == "helix":
        answer = _helix(loaded, stages, rival)
    elif rival.planner == "hexgen":
        if stages.stages is not None:
            raise OptionError("hexgen chooses the stages of each pipeline itself; leave out --stages")
        answer = _hexgen(loaded, rival, quiet=json_output)
    else:
        raise OptionError(f"planner {rival.planner!r} does not place on pools; choose coral, helix or hexgen")
    present(answer, json_output)


def _head(pool: PlacementPool) -> dict[str, object]:
    nodes = dict(zip(pool.configurations, pool.counts, strict=True))
    return {"pool": pool.name, "source": pool.source, "layers": pool.layers, "nodes": nodes}


def _title(pool: PlacementPool, planner: str = "") -> str:
    nodes = ", ".join(f"{count} {name}" for name, count in zip(pool.configurations, pool.counts, strict=True))
    return f"{pool.name}{planner}: {pool.layers} layers on {nodes}"


def _flow(pool: PlacementPool, options: StageOptions) -> CommandOutput:
    from coralopt.errors import InfeasibleError
    from coralopt.placement import place_pool
    from coralopt.report.library import stages_text

    most = min(pool.max_stages, options.max_stages or pool.max_stages)
    limits = list(range(1, most + 1)) if options.frontier else [options.max_stages]
    rows: list[dict[str, object]] = []
    stays_s: list[float | None] = []
    unbounded = None
    for limit in limits:
        started = time.perf_counter()
        try:
            best = place_pool(
                pool, max_stages=limit, stages=options.stages, solver=options.solver, time_limit=options.time_limit
            )
        except InfeasibleError:
            if not options.frontier:
                raise
            stays_s.append(None)
            rows.append({"max_stages": limit, "tokens_s": 0.0, "seconds": time.perf_counter() - started})
            continue
        cache_tokens = pool.cache_of(best.placement)
        # Little's law: the longest mean stay of a token in the caches at this flow.
        stay_s = None if cache_tokens is None else cache_tokens / best.throughput
        rows.append(
            {
                "max_stages": limit,
                "stages": len(best.placement.stages),
                "tokens_s": best.throughput,
                "bound_tokens_s": best.bound,
                "proven": best.proven,
                "latency_ms": pool.latency_ms(best.placement),
                "cache_tokens": cache_tokens,
                "idle_nodes": sum(pool.counts) - sum(best.placement.node_set),
                "seconds": best.seconds,
                "targets": best.targets,
                "columns": best.columns,
                "placement": stages_text(best.placement, pool.configurations),
            }
        )
        stays_s.append(stay_s)
        if options.frontier and unbounded is None:
            # Once no limit binds any more, larger ones only repeat.
            unbounded = place_pool(pool, max_stages=most, solver=options.solver, time_limit=options.time_limit)
        if unbounded is not None and best.proven and best.throughput >= unbounded.throughput:
            break
    lines = []
    if not options.frontier:
        proof = "not proven: the time was over, or a target has too many node multisets"
        lines = [str(rows[0]["placement"]), "proven optimal" if rows[0]["proven"] else proof]
    table = _frontier_table(pool, rows, stays_s, options.frontier)
    return CommandOutput({**_head(pool), "placements": rows}, [table], lines)


def _served(pool: PlacementPool, stages: StageOptions, served: ServedOptions, seed: int, quiet: bool) -> CommandOutput:
    from coralopt.placement.served import ServedSearch, place_served, write_helix_files
    from coralopt.report.library import stages_text
    from coralopt.report.table import Column, make_table, numbers

    search = ServedSearch(
        max_stages=stages.max_stages,
        stages=stages.stages,
        most_pipelines=served.pipelines,
        seed=seed,
        solver=stages.solver,
        time_limit=stages.time_limit,
    )
    moves, simulations = search.most_estimates, search.most_simulations
    say(
        f"searching: {moves:,} moves by formula, at most {simulations:,} layouts simulated; Ctrl-C keeps the best so far"
    )
    with progress_bar("layouts", quiet=quiet) as progress:
        best = place_served(pool, search, on_progress=progress)
    spread = max(best.simulated.decode_tokens_s) - min(best.simulated.decode_tokens_s)
    placements = [stages_text(placement, pool.configurations) for placement in best.pipelines]
    counts = [len(placement.stages) for placement in best.pipelines]
    used = sum(sum(placement.node_set) for placement in best.pipelines)
    document = {
        **_head(pool),
        "planner": "coral",
        "objective": "served",
        "decode_tokens_s": best.simulated.mean,
        "by_seed": list(best.simulated.decode_tokens_s),
        "largest_flow_decode_tokens_s": best.first,
        "estimate_tokens_s": best.estimate.decode_tokens_s,
        "token_ms": best.simulated.token_ms,
        "requests": best.simulated.requests,
        "flow_tokens_s": best.network.throughput,
        "stages": counts,
        "idle_nodes": sum(pool.counts) - used,
        "formulas": best.formulas,
        "simulations": best.simulations,
        "interrupted": best.interrupted,
        "seconds": best.seconds,
        "seed": seed,
        "pipelines": placements,
    }
    columns = (
        *numbers("{:,.1f}", "decode tokens/s", "between seeds", "by formula", "placement of most flow"),
        Column("flow tokens/s", "{:,.1f}"),
        Column("ms a token", "{:,.0f}"),
        Column("requests inside", "{:,.0f}"),
        Column("stages", "{}"),
        Column("idle nodes", "{}"),
        Column("seconds", "{:.1f}"),
    )
    row = (
        best.simulated.mean,
        spread,
        best.estimate.decode_tokens_s,
        best.first,
        best.network.throughput,
        best.simulated.token_ms,
        best.simulated.requests,
        " + ".join(map(str, counts)),
        sum(pool.counts) - used,
        best.seconds,
    )
    lines = [*placements]
    lines.append(
        f"{best.formulas:,} layouts by formula, {best.simulations:,} simulated; nothing is proven about others; "
        "--objective flow proves the largest flow"
    )
    if best.interrupted:
        lines.append("stopped by Ctrl-C: the best layout so far")
    if served.write_helix is not None:
        paths = write_helix_files(pool, best.network, served.write_helix)
        lines.append(f"written for Helix: {', '.join(str(path) for path in paths)}")
    return CommandOutput(document, [make_table(_title(pool), columns, [row])], lines)


def _frontier_table(
    pool: PlacementPool, rows: list[dict[str, object]], stays_s: list[float | None], frontier: bool
) -> Table:
    from coralopt.report.table import Column, make_table

    columns = {
        "max_stages": Column("stages at most", "{}"),
        "stages": Column("stages", "{}"),
        "tokens_s": Column("tokens/s", "{:,.3f}"),
        "bound_tokens_s": Column("proven bound", "{:,.3f}"),
        "latency_ms": Column("latency ms", "{:,.1f}"),
        "cache_tokens": Column("KV tokens", "{:,}"),
        "stay_s": Column("KV stay s", "{:,.0f}"),
        "idle_nodes": Column("idle nodes", "{}"),
        "seconds": Column("seconds", "{:.2f}"),
    }
    if not frontier:
        del columns["max_stages"]
    if all(row.get("latency_ms") is None for row in rows):
        del columns["latency_ms"]
    if all(row.get("cache_tokens") is None for row in rows):
        del columns["cache_tokens"], columns["stay_s"]
    cells = []
    for row, stay_s in zip(rows, stays_s, strict=True):
        shown = {**row, "stay_s": stay_s}
        if "stages" not in row:
            shown = {"max_stages": row["max_stages"], "stages": None, "tokens_s": "none exists"}
        cells.append([shown.get(name, "") for name in columns])
    return make_table(_title(pool), list(columns.values()), cells)


def _helix(pool: PlacementPool, stages: StageOptions, rival: RivalOptions) -> CommandOutput:
    from coralopt.planning.rivals.place_helix import DEFAULT_SECONDS, place_helix
    from coralopt.report.table import Column, make_table, numbers

    limit_s = DEFAULT_SECONDS if stages.time_limit is None else stages.time_limit
    say(f"helix: up to {limit_s:g} s; Ctrl-C keeps the best so far")
    best = place_helix(
        pool,
        stages=stages.stages,
        solver=stages.solver,
        time_limit=stages.time_limit,
        start=rival.start,
        seed=rival.seed,
    )
    least, most, mean = best.hops
    parts = list(zip(best.nodes, best.layout.first, best.layout.layers, strict=True))
    document = {
        **_head(pool),
        "planner": "helix",
        "tokens_s": best.throughput,
        "bound_tokens_s": best.bound,
        "gap": best.gap,
        "proven": best.proven,
        "solver_bound_tokens_s": best.solver_bound,
        "start_tokens_s": best.start,
        "hops": {"least": least, "most": most, "mean": mean},
        "seconds": best.seconds,
        "outcome": best.raw,
        "ranges": [{"node": name, "first_layer": first, "layers": layers} for name, first, layers in parts],
    }
    columns = (
        *numbers("{:,.3f}", "tokens/s", "proven bound"),
        Column("gap", "{:.1f} %"),
        Column("started from", "{:,.3f}"),
        Column("nodes on a path", "{}"),
        Column("seconds", "{:.1f}"),
    )
    hops = f"{least}-{most}, mean {mean:.1f}"
    row = (best.throughput, best.bound, best.gap * 100, best.start, hops, best.seconds)
    proof = (
        f"not proven ({best.raw}); the bound is the lesser of the back end's "
        f"{best.solver_bound:,.1f} and Helix's compute bound"
    )
    ranges = sorted((first, layers, name) for name, first, layers in parts)
    lines = [
        " ".join(f"{name}[{first},{first + layers})" for first, layers, name in ranges),
        "proven optimal" if best.proven else proof,
    ]
    return CommandOutput(document, [make_table(_title(pool, " by helix"), columns, [row])], lines)


def _hexgen(pool: PlacementPool, rival: RivalOptions, quiet: bool) -> CommandOutput:
    from coralopt.errors import InfeasibleError
    from coralopt.planning.rivals.hexgen import hexgen_search
    from coralopt.report.library import stages_text
    from coralopt.report.table import Column, make_table

    started = time.perf_counter()
    with progress_bar("hexgen", quiet=quiet) as progress:
        best = hexgen_search(
            pool.values,
            pool.counts,
            seed=rival.seed,
            generations=rival.generations,
            on_generation=lambda count, most: progress(f"{most:,.1f} tokens/s", count, rival.generations),
        )
    if not best.pipelines:
        raise InfeasibleError(f"hexgen found no pipeline on pool {pool.name}: the layers do not fit one node a stage")
    seconds = time.perf_counter() - started
    pipelines = [
        {"tokens_s": value, "stages": len(placement.stages), "placement": stages_text(placement, pool.configurations)}
        for value, placement in zip(best.throughputs, best.pipelines, strict=True)
    ]
    document = {
        **_head(pool),
        "planner": "hexgen",
        "tokens_s": best.throughput,
        "generations": best.generations,
        "evaluations": best.evaluations,
        "seed": rival.seed,
        "seconds": seconds,
        "pipelines": pipelines,
    }
    columns = (Column("pipeline", "{}"), Column("tokens/s", "{:,.3f}"), Column("stages", "{}"), "placement")
    table = make_table(
        _title(pool, " by hexgen"), columns, [(n, *item.values()) for n, item in enumerate(pipelines, start=1)]
    )
    line = (
        f"{best.throughput:,.3f} tokens/s in all; {best.evaluations:,} groups laid out in "
        f"{best.generations} generations, {seconds:.1f} s; nothing proven"
    )
    return CommandOutput(document, [table], [line])

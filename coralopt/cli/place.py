"""``coralopt place``: the best placement of one model on a fixed pool of nodes."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from coralopt.cli.console import JsonFlag, print_json, print_rich, say
from coralopt.cli.place_by import place_by


def place(
    pool: Annotated[
        str, typer.Argument(metavar="POOL", help="helix-10, helix-24, helix-42, or a YAML or JSON file of a pool.")
    ],
    max_stages: Annotated[int | None, typer.Option(min=1, help="Most stages.")] = None,
    stages: Annotated[int | None, typer.Option(min=1, help="Exactly so many stages.")] = None,
    frontier: Annotated[bool, typer.Option(help="The best placement for every limit on the stages.")] = False,
    solver: Annotated[str, typer.Option(help="MILP back end; see `coralopt solvers`.")] = "highs",
    time_limit: Annotated[float | None, typer.Option(min=0, help="Seconds a placement; keeps the best so far.")] = None,
    planner: Annotated[str, typer.Option(help="coral, helix or hexgen; see docs/planners.md.")] = "coral",
    start: Annotated[str, typer.Option(help="What helix begins with: heuristics, pool or none.")] = "heuristics",
    seed: Annotated[int, typer.Option(min=0, help="Seed of helix and hexgen.")] = 0,
    generations: Annotated[int, typer.Option(min=0, help="Generations of hexgen's search.")] = 300,
    json_output: JsonFlag = False,
) -> None:
    """Place one model on POOL for most tokens/s, proven: some 10 to 1,000 nodes, of which some may stay idle."""
    from coralopt.errors import InfeasibleError, OptionError
    from coralopt.placement import load_pool, place_pool
    from coralopt.report import stages_text

    loaded = load_pool(pool)
    if planner != "coral":
        if frontier or max_stages is not None:
            raise OptionError("--frontier and --max-stages limit the stages of coral's placements; leave them out")
        place_by(loaded, planner, stages, solver, time_limit, start, seed, generations, json_output)
        return
    if frontier and stages is not None:
        raise OptionError("--frontier tries every limit on the stages; leave out --stages")
    limits: list[int | None] = [max_stages]
    most = min(loaded.max_stages, max_stages or loaded.max_stages)
    if frontier:
        limits = list(range(1, most + 1))
    rows: list[dict[str, Any]] = []
    unbounded = None
    for limit in limits:
        started = time.perf_counter()
        try:
            found = place_pool(loaded, max_stages=limit, stages=stages, solver=solver, time_limit=time_limit)
        except InfeasibleError:
            if not frontier:
                raise
            rows.append({"max_stages": limit, "tokens_s": 0.0, "seconds": time.perf_counter() - started})
            continue
        rows.append(
            {
                "max_stages": limit,
                "stages": len(found.placement.stages),
                "tokens_s": found.throughput,
                "bound_tokens_s": found.bound,
                "proven": found.proven,
                "latency_ms": loaded.latency_ms(found.placement),
                "cache_tokens": loaded.cache_of(found.placement),
                "idle_nodes": sum(loaded.counts) - sum(found.placement.node_set),
                "seconds": found.seconds,
                "targets": found.targets,
                "columns": found.columns,
                "placement": stages_text(found.placement, loaded.configurations),
            }
        )
        if frontier and unbounded is None:
            # Once no limit binds any more, larger ones only repeat.
            unbounded = place_pool(loaded, max_stages=most, solver=solver, time_limit=time_limit)
        if unbounded is not None and found.proven and found.throughput >= unbounded.throughput:
            break
    document = {
        "pool": loaded.name,
        "source": loaded.source,
        "layers": loaded.layers,
        "nodes": dict(zip(loaded.configurations, loaded.counts, strict=True)),
        "placements": rows,
    }
    if json_output:
        print_json(document)
        return
    _print(document, frontier)


def _print(document: dict[str, Any], frontier: bool) -> None:
    from rich.table import Table

    nodes = ", ".join(f"{count} {name}" for name, count in document["nodes"].items())
    table = Table(title=f"{document['pool']}: {document['layers']} layers on {nodes}")
    rows = document["placements"]
    wide = any(row.get("latency_ms") is not None for row in rows)
    cached = any(row.get("cache_tokens") is not None for row in rows)
    heads = ["stages at most"] if frontier else []
    heads += ["stages", "tokens/s", "proven bound", *(["latency ms"] * wide), *(["KV tokens", "KV stay s"] * cached)]
    for head in [*heads, "idle nodes", "seconds"]:
        table.add_column(head, justify="right")
    for row in rows:
        cells = [str(row["max_stages"])] if frontier else []
        if "stages" not in row:
            table.add_row(*cells, "-", "none exists")
            continue
        cells += [str(row["stages"]), f"{row['tokens_s']:,.3f}", f"{row['bound_tokens_s']:,.3f}"]
        if wide:
            cells.append(f"{row['latency_ms']:,.1f}")
        if cached:
            # Little's law: the longest mean stay of a token in the caches at this flow.
            cells += [f"{row['cache_tokens']:,}", f"{row['cache_tokens'] / row['tokens_s']:,.0f}"]
        table.add_row(*cells, str(row["idle_nodes"]), f"{row['seconds']:.2f}")
    print_rich(table)
    if not frontier:
        say(rows[0]["placement"])
        say(
            "proven optimal"
            if rows[0]["proven"]
            else "not proven: the time was over, or a target has too many node multisets"
        )

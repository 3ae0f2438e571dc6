"""``coralopt place --planner helix|hexgen``: one model on a fixed pool by another planner."""

from __future__ import annotations

import time
from typing import Any

from coralopt.cli.console import print_json, print_rich, progress_bar, say
from coralopt.placement import PlacementPool


def place_by(
    pool: PlacementPool,
    planner: str,
    stages: int | None,
    solver: str,
    time_limit: float | None,
    start: str,
    seed: int,
    generations: int,
    json_output: bool,
) -> None:
    """Place with helix or hexgen and print what came of it."""
    from coralopt.errors import OptionError

    if planner == "helix":
        document = _helix(pool, stages, solver, time_limit, start, seed)
    elif planner == "hexgen":
        if stages is not None:
            raise OptionError("hexgen chooses the stages of each pipeline itself; leave out --stages")
        document = _hexgen(pool, seed, generations, json_output)
    else:
        raise OptionError(f"planner {planner!r} does not place on pools; choose coral, helix or hexgen")
    head = {"pool": pool.name, "source": pool.source, "layers": pool.layers, "planner": planner}
    head["nodes"] = dict(zip(pool.configurations, pool.counts, strict=True))
    if json_output:
        print_json({**head, **document})
        return
    _print(pool, planner, document)


def _helix(
    pool: PlacementPool, stages: int | None, solver: str, time_limit: float | None, start: str, seed: int
) -> dict[str, Any]:
    from coralopt.planning.rivals.place_helix import DEFAULT_SECONDS, place_helix

    say(f"helix: up to {DEFAULT_SECONDS if time_limit is None else time_limit:g} s; Ctrl-C keeps the best so far")
    found = place_helix(pool, stages=stages, solver=solver, time_limit=time_limit, start=start, seed=seed)
    return {
        "tokens_s": found.throughput,
        "bound_tokens_s": found.bound,
        "gap": found.gap,
        "proven": found.proven,
        "solver_bound_tokens_s": found.solver_bound,
        "start_tokens_s": found.start,
        "hops": {"least": found.hops[0], "most": found.hops[1], "mean": found.hops[2]},
        "seconds": found.seconds,
        "outcome": found.raw,
        "ranges": [
            {"node": name, "first_layer": first, "layers": layers}
            for name, first, layers in zip(found.nodes, found.layout.first, found.layout.layers, strict=True)
        ],
    }


def _hexgen(pool: PlacementPool, seed: int, generations: int, quiet: bool) -> dict[str, Any]:
    from coralopt.errors import InfeasibleError
    from coralopt.planning.rivals.hexgen import hexgen_search
    from coralopt.report import stages_text

    started = time.perf_counter()
    with progress_bar("hexgen", quiet=quiet) as progress:
        found = hexgen_search(
            pool.values,
            pool.counts,
            seed=seed,
            generations=generations,
            on_generation=lambda done, best: progress(f"{best:,.1f} tokens/s", done, generations),
        )
    if not found.pipelines:
        raise InfeasibleError(f"hexgen found no pipeline on pool {pool.name}: the layers do not fit one node a stage")
    return {
        "tokens_s": found.throughput,
        "generations": found.generations,
        "evaluations": found.evaluations,
        "seed": seed,
        "seconds": time.perf_counter() - started,
        "pipelines": [
            {
                "tokens_s": value,
                "stages": len(placement.stages),
                "placement": stages_text(placement, pool.configurations),
            }
            for value, placement in zip(found.throughputs, found.pipelines, strict=True)
        ],
    }


def _print(pool: PlacementPool, planner: str, document: dict[str, Any]) -> None:
    from rich.table import Table

    nodes = ", ".join(f"{count} {name}" for name, count in zip(pool.configurations, pool.counts, strict=True))
    table = Table(title=f"{pool.name} by {planner}: {pool.layers} layers on {nodes}")
    if planner == "helix":
        for head in ("tokens/s", "proven bound", "gap", "started from", "nodes on a path", "seconds"):
            table.add_column(head, justify="right")
        hops = document["hops"]
        table.add_row(
            f"{document['tokens_s']:,.3f}",
            f"{document['bound_tokens_s']:,.3f}",
            f"{document['gap'] * 100:.1f} %",
            f"{document['start_tokens_s']:,.3f}",
            f"{hops['least']}-{hops['most']}, mean {hops['mean']:.1f}",
            f"{document['seconds']:.1f}",
        )
        print_rich(table)
        ranges = sorted((item["first_layer"], item["layers"], item["node"]) for item in document["ranges"])
        say(" ".join(f"{node}[{first},{first + layers})" for first, layers, node in ranges))
        say(
            "proven optimal"
            if document["proven"]
            else f"not proven ({document['outcome']}); the bound is the lesser of the back end's "
            f"{document['solver_bound_tokens_s']:,.1f} and Helix's compute bound"
        )
        return
    for head in ("pipeline", "tokens/s", "stages", "placement"):
        table.add_column(head, justify="left" if head == "placement" else "right")
    for position, item in enumerate(document["pipelines"], start=1):
        table.add_row(str(position), f"{item['tokens_s']:,.3f}", str(item["stages"]), item["placement"])
    print_rich(table)
    say(
        f"{document['tokens_s']:,.3f} tokens/s in all; {document['evaluations']:,} groups laid out in "
        f"{document['generations']} generations, {document['seconds']:.1f} s; nothing proven"
    )

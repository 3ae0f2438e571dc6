"""``coralopt catalog``: the models, GPUs and prices that scenarios may name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import JsonFlag, file_to_write_as
from coralopt.cli.present import CommandOutput, present

if TYPE_CHECKING:
    from coralopt.report.table import Column

app = typer.Typer(no_args_is_help=True, help="Models, GPUs and prices that scenarios may name.")

WordsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[WORD]...", help="Only rows that hold every word, in any case.")
]


@app.command("models")
def models(words: WordsArgument = None, json_output: JsonFlag = False) -> None:
    """List models: name in scenarios, checkpoint, size, formats, context."""
    from coralopt.catalog import models as known
    from coralopt.report.table import Column, numbers

    rows = [
        (
            *(model.name, model.hf_id, model.total_params / 1e9, model.weight_format, model.weight_bytes / 1e9),
            *(model.layers, model.experts or None, model.kv_bytes(1000) / 1e6, model.max_position),
        )
        for model in known().values()
    ]
    columns: list[Column | str] = ["name", Column("checkpoint"), *numbers("{:,.1f}", "1e9 parameters")]
    columns += ["weights", *numbers("{:,.1f}", "GB"), *numbers("{:,}", "layers", "experts")]
    columns += [*numbers("{:,.1f}", "KV MB/1,000 tokens"), *numbers("{:,}", "context")]
    _list("models", columns, rows, (asdict(model) for model in known().values()), words, json_output)


@app.command("gpus")
def gpus(words: WordsArgument = None, json_output: JsonFlag = False) -> None:
    """List GPUs: memory, data sheet, link, and the nodes that have them."""
    from coralopt.catalog import gpus as known
    from coralopt.catalog import node_configurations
    from coralopt.report.table import numbers

    nodes = {name: [node.name for node in node_configurations().values() if node.gpu.name == name] for name in known()}
    rows = [
        (
            *(
                gpu.name,
                gpu.vendor,
                gpu.architecture,
                gpu.memory_gib,
                gpu.bandwidth_gb_s,
                gpu.bf16_tflops,
                gpu.fp8_tflops,
            ),
            *(gpu.link_gb_s, "yes" if gpu.nvlink else "no", " ".join(nodes[gpu.name]) or None),
        )
        for gpu in known().values()
    ]
    columns: list[Column | str] = ["name", "vendor", "generation", *numbers("{:,.1f}", "GiB")]
    columns += [*numbers("{:,g}", "GB/s", "BF16 TFLOP/s", "FP8 TFLOP/s", "link GB/s"), "NVLink", "nodes"]
    documents = ({**asdict(gpu), "nodes": nodes[gpu.name]} for gpu in known().values())
    _list("GPUs", columns, rows, documents, words, json_output)


@app.command("offers")
def offers(
    words: WordsArgument = None,
    catalog: Annotated[
        str | None,
        typer.Option(help="Those of a catalog that `catalog import` wrote: a file, or `user` for your own."),
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """List prices: region, node configuration, the cloud's instance type, USD per node-hour."""
    from coralopt.catalog import offers as known
    from coralopt.catalog.price_files import read_user_catalog
    from coralopt.replacing import user_catalog
    from coralopt.report.table import Column, numbers

    if catalog is not None:
        nodes = read_user_catalog(user_catalog() if catalog == "user" else Path(catalog))
        own: list[Column | str] = ["region", "node", "instance type", *numbers("{:,.4f}", "USD/h", "spot USD/h")]
        own += [*numbers("{:,}", "quota"), "date", Column("source")]
        _list("offers", own, [tuple(vars(node).values()) for node in nodes], map(asdict, nodes), words, json_output)
        return
    rows = [
        (
            *(offer.region, offer.configuration, offer.instance_type, offer.on_demand_usd_h, offer.spot_usd_h),
            None if offer.instance_type == offer.priced_as else offer.priced_as,
        )
        for offer in known().values()
    ]
    columns: list[Column | str] = ["region", "node", "instance type", *numbers("{:,.4f}", "USD/h", "spot USD/h")]
    columns.append(Column("priced as"))
    _list("offers", columns, rows, (asdict(offer) for offer in known().values()), words, json_output)


def _list(
    what: str,
    columns: Sequence[Column | str],
    rows: Sequence[Sequence[object]],
    documents: Iterable[dict[str, object]],
    words: Sequence[str] | None,
    json_output: bool,
) -> None:
    """Print the rows, or the documents, that hold every word.

    Raises:
        CoraloptError: None does.
    """
    from coralopt.errors import CoraloptError
    from coralopt.report.table import make_table

    wanted = [word.lower() for word in words or ()]
    kept = [
        (row, document)
        for row, document in zip(rows, documents, strict=True)
        if all(word in " ".join(str(cell) for cell in row).lower() for word in wanted)
    ]
    if not kept:
        raise CoraloptError(
            f"no {what} with {' and '.join(repr(word) for word in words or ())}; without words all are listed"
        )
    table = make_table(f"{what}: {len(kept):,}", columns, [row for row, _ in kept])
    present(CommandOutput([document for _, document in kept], [table]), json_output)


@app.command("import")
def import_prices(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="SkyPilot catalogs (skypilot:aws for an installed one's), price lists of AWS (CSV, JSON), Azure and "
            "Google Cloud (JSON), CSV files of your own.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The catalog; your own by default.", callback=file_to_write_as(".csv")),
    ] = None,
    date: Annotated[str | None, typer.Option(help="Date of the prices; that of the file by default.")] = None,
    source: Annotated[str, typer.Option(help="Where they are from; the file by default.")] = "",
    json_output: JsonFlag = False,
) -> None:
    """Take prices, instance types and quotas of FILES into a catalog of your own, which scenarios name."""
    from coralopt.catalog.price_files import catalog_text, cheapest, read_prices, read_user_catalog, skypilot_file
    from coralopt.errors import OptionError
    from coralopt.plan.files import write_text
    from coralopt.replacing import user_catalog
    from coralopt.report.table import make_table, numbers

    if date is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise OptionError(f"--date {date!r} is no date; write it like 2026-01-31")
    target, nodes, skipped = output or user_catalog(), [], Counter[str]()
    for path in map(skypilot_file, files):
        day = date or datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat() if path.exists() else ""
        prices, left_out = read_prices(path, day, source)
        nodes += prices
        skipped += left_out
    merged = {
        (node.region, node.configuration): node for node in (read_user_catalog(target) if target.exists() else ())
    }
    new = cheapest(nodes)
    merged |= {(node.region, node.configuration): node for node in new}
    write_text(target, catalog_text(merged.values()), "the catalog")
    regions = Counter(node.region for node in new)
    table = make_table("Imported", ["region", *numbers("{:,}", "nodes")], sorted(regions.items()))
    lines = [
        f"{len(new)} prices taken into {target}, which has {len(merged)}; `catalog: {output or 'user'}` in a scenario's "
        f"pool names it, `coralopt catalog offers --catalog {output or 'user'}` lists it"
    ]
    if skipped:
        known = ", ".join(f"{name} ({count})" for name, count in skipped.most_common(12))
        lines.append(f"left out, nodes that the catalog does not know (rows): {known}")
    document = {"catalog": target, "imported": new, "left_out": dict(skipped)}
    present(CommandOutput(document, [table], lines), json_output)

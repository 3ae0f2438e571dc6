"""``coralopt scenario new`` and ``coralopt init``: a commented scenario file, from flags, questions or a log of requests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coralopt.cli.console import file_to_write_as, parse_pairs, say
from coralopt.cli.option_groups import OptionGroup, option, takes_groups
from coralopt.errors import OptionError

if TYPE_CHECKING:
    from coralopt.scenario.new import NewModel
    from coralopt.workload import Trace

#: Nodes of each configuration where none are named, and shares of requests whose lengths stand for a trace.
USUAL_QUOTA = 8
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True)
class PromiseOptions(OptionGroup):
    """What every request is promised."""

    panel = "Promises"

    ttft_ms: float = option(2000.0, "Time to first token, ms.", least=1)
    tpot_ms: float = option(100.0, "Time per output token, ms.", least=1)
    attainment: str = option("0.99", "Share of requests within both; mean: plan for mean requests, faster.")


@dataclass(frozen=True)
class SupplyOptions(OptionGroup):
    """What can be rented, and what is owned."""

    panel = "Nodes"

    region: list[str] | None = option(None, "Region of the catalog to rent in; may be repeated.")
    node: list[str] | None = option(
        None,
        "Node configuration to rent, and how many; without any, 8 of all with a price. May be repeated.",
        metavar="[REGION:]4xL40S=8",
    )
    own: list[str] | None = option(
        None, "Nodes of your own, which cost nothing more; may be repeated.", metavar="8xH100=2"
    )

    def rented(self) -> dict[str, Mapping[str, int] | int]:
        """Region -> configuration -> nodes, or nodes of each.

        Raises:
            OptionError: Not of these forms.
        """
        from coralopt.catalog import regions

        everywhere = self.region or []
        nodes: dict[str, dict[str, int]] = {name: {} for name in everywhere}
        for item, count in _counts("--node", self.node).items():
            place, _, configuration = item.rpartition(":")
            for name in [place] if place else everywhere or regions()[:1]:
                nodes.setdefault(name, {})[configuration] = count
        if not nodes and not self.own:
            nodes[regions()[0]] = {}
        return {name: supply or USUAL_QUOTA for name, supply in nodes.items()}


def _counts(name: str, items: list[str] | None) -> dict[str, int]:
    pairs = parse_pairs(name, items, "CONFIGURATION=NODES")
    wrong = [text for text in pairs.values() if not text.isdecimal()]
    if wrong:
        raise OptionError(f"{name}: {wrong[0]!r} is no number of nodes")
    return {key: int(text) for key, text in pairs.items()}


OutputFile = Annotated[
    Path, typer.Option("--output", "-o", help="The scenario file, .yaml.", callback=file_to_write_as(".yaml", ".yml"))
]
ForceFlag = Annotated[bool, typer.Option("--force", help="Replace the file when it exists.")]


@takes_groups
def new_scenario(
    promise: PromiseOptions,
    supply: SupplyOptions,
    output: OutputFile = Path("scenario.yaml"),
    model: Annotated[
        list[str] | None, typer.Option(help="Catalog or checkpoint name; may be repeated. Asked for on a terminal.")
    ] = None,
    requests_s: Annotated[float | None, typer.Option(help="Requests/s of each model. Asked for on a terminal.")] = None,
    input_tokens: Annotated[float | None, typer.Option(help="Mean prompt length, 1,000 by default.")] = None,
    output_tokens: Annotated[float | None, typer.Option(help="Mean answer length, 250 by default.")] = None,
    force: ForceFlag = False,
) -> None:
    """Write a new scenario file with comments, that plans as it is."""
    from coralopt.scenario.new import NewModel

    _check_free(output, force)
    if sys.stdin.isatty():
        model = model or typer.prompt("Models, by catalog or checkpoint name (see `coralopt catalog models`)").split()
        requests_s = requests_s or typer.prompt("Requests/s of each", type=float)
        input_tokens = input_tokens or typer.prompt("Mean prompt length, tokens", type=float, default=1000)
        output_tokens = output_tokens or typer.prompt("Mean answer length, tokens", type=float, default=250)
    if not model or requests_s is None:
        raise OptionError("name at least one --model, and its --requests-s; on a terminal they are asked for")
    lengths = (1000.0 if input_tokens is None else input_tokens, 250.0 if output_tokens is None else output_tokens)
    # By key: one model may go by several names.
    entries = {entry[0]: entry for entry in (_entry(name, output.parent, None, requests_s, *lengths) for name in model)}
    _write(output, [NewModel(*entry) for entry in entries.values()], promise, supply, "")


@takes_groups
def init(
    trace: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="Usage log or trace: CSV or JSON lines; see docs/workload.md."),
    ],
    promise: PromiseOptions,
    supply: SupplyOptions,
    output: OutputFile = Path("scenario.yaml"),
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="arrival=NAME", help="Which column (or JSON key) is arrival, input, output, model; may be repeated."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LOGGED=]NAME", help="Catalog or checkpoint name of a model, as the log calls it; may be repeated."
        ),
    ] = None,
    force: ForceFlag = False,
) -> None:
    """Write a scenario file from LOG: rate, and lengths as quantiles, of every model in it."""
    from coralopt.workload import read_trace_file

    _check_free(output, force)
    file = read_trace_file(trace, sort=True, columns=parse_pairs("--column", column))
    if file.failed:
        say(f"{file.failed:,} failed requests (0 tokens) left out")
    names = dict(item.rpartition("=")[::2] for item in model or ())
    models = _models_of(file.trace, names, output.parent)
    said = f"From {trace.name}: {len(file.trace):,} requests in {file.trace.last_arrival_s:,.0f} s"
    _write(output, models, promise, supply, said)


def _models_of(trace: Trace, names: Mapping[str, str], folder: Path) -> list[NewModel]:
    """The models of a log, each with its rate and quantiles of its lengths.

    Raises:
        OptionError: A model that is named has no requests, or a nameless log is given no model.
    """
    import numpy as np

    from coralopt.catalog import find_model
    from coralopt.scenario.new import NewModel

    unknown = sorted(set(names) - set(trace.models) - {""})
    if unknown or (not any(trace.models) and "" not in names):
        logged = ", ".join(filter(None, trace.models)) or "no model"
        what = f"--model {unknown[0]}={names[unknown[0]]}: no such requests" if unknown else "say --model NAME"
        raise OptionError(f"{what}; the log names {logged}")
    span = trace.last_arrival_s
    if len(trace) < 2 or span <= 0:
        raise OptionError("the log has fewer than two requests at different times: no rate follows from it")
    models = []
    # Several names may stand for one model.
    targets: dict[str, list[str]] = {}
    for logged in trace.models:
        name = names.get(logged, names.get("", logged))
        known = find_model(name)
        targets.setdefault(known.name if known else name, []).append(logged)
    for words in targets.values():
        logged = words[0]
        mine = np.isin(trace.model, [trace.models.index(word) for word in words])
        arrivals = np.sort(trace.arrival_s[mine])
        hour = np.searchsorted(arrivals, arrivals + min(3600.0, span), side="right") - np.arange(len(arrivals))
        busiest = float(hour.max()) / min(3600.0, span)
        lengths = [
            {f"{share:g}": float(np.quantile(tokens[mine], share)) for share in SHARES}
            for tokens in (trace.input_tokens, trace.output_tokens)
        ]
        rate = len(arrivals) / span
        entry = _entry(names.get(logged, names.get("", logged)), folder, logged, rate, lengths[0], lengths[1])
        note = f"mean of {len(arrivals):,} requests; the busiest hour has {busiest:.4g}/s"
        models.append(NewModel(*entry, note=note))
    return models


def _entry(
    name: str,
    folder: Path,
    logged: str | None,
    rate: float,
    inputs: float | Mapping[str, float],
    outputs: float | Mapping[str, float],
) -> tuple[str, float, float | Mapping[str, float], float | Mapping[str, float], str | None]:
    """Key, rate, lengths and, where it is not the key, model of an entry: one of the catalog, or a path from ``folder``.

    Raises:
        OptionError: It is neither.
    """
    from coralopt.catalog import find_model

    if Path(name).exists():
        # A checkpoint folder or its config.json.
        key = (Path(name).parent if Path(name).is_file() else Path(name)).resolve().name
        return key, rate, inputs, outputs, f"./{os.path.relpath(name, folder)}"
    known = find_model(name)
    if known is None:
        hint = f"; map it, --model {logged}=NAME" if logged else ""
        raise OptionError(f"the catalog has no model {name!r}{hint}; see `coralopt catalog models`")
    return known.name, rate, inputs, outputs, name if name != known.name else None


def _check_free(output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise OptionError(f"{output}: exists; name another file with -o, or replace it with --force")


def _write(
    output: Path, models: list[NewModel], promise: PromiseOptions, supply: SupplyOptions, description: str
) -> None:
    from coralopt.plan.files import write_text
    from coralopt.scenario.new import NewSlo, scenario_text

    share = promise.attainment
    try:
        attainment: float | str = share if share == "mean" else float(share)
    except ValueError:
        raise OptionError(f"--attainment {share!r}: a share below 1, such as 0.99, or mean") from None
    slo = NewSlo(promise.ttft_ms, promise.tpot_ms, attainment)
    owned = _counts("--own", supply.own)
    text = scenario_text(models, slo, supply.rented(), owned, output, description)
    write_text(output, text, "the scenario")
    say(f"scenario written to {output}; `coralopt plan {output}` plans it")

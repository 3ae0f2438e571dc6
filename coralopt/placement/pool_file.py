"""Pools from files: tables given in the file, or a model of the catalog on nodes of the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from coralopt.errors import Mistake, ScenarioError
from coralopt.placement.pool import PlacementPool
from coralopt.placement.pool_serving import PoolLinks, PoolServing, RequestKind
from coralopt.scenario.explain import explain
from coralopt.scenario.file.requests import Lengths
from coralopt.scenario.lengths import LengthDistribution, LengthPair
from coralopt.scenario.mistakes import MistakeList
from coralopt.scenario.mistakes import Path as Place
from coralopt.scenario.read import parse_text, read_file
from coralopt.types import Floats

#: Pools that come with the package: the three published cases of Helix.
BUILTIN_POOLS = ("helix-10", "helix-24", "helix-42")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


#: ms by number of tokens or requests.
_Points = Annotated[
    dict[Annotated[int, Field(ge=0, le=1_000_000)], Annotated[float, Field(ge=0, le=1e9)]], Field(min_length=1)
]


class _Node(_Section):
    count: Annotated[int, Field(ge=1, le=10_000)] = Field(description="nodes of this kind")
    tokens_s: list[Annotated[float, Field(ge=0, le=1e12)]] = Field(
        min_length=1, description="tokens/s of one node with 1, 2, ... layers; 0 or the end of the list: it cannot"
    )
    cache_tokens: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="tokens whose KV entries fit on one node with 1, 2, ... layers"
    )

    prompt_ms: _Points | None = Field(
        default=None, description="ms of one layer over so many prompt tokens; linear between them and to 0 at 0"
    )
    decode_ms: _Points | None = Field(
        default=None,
        description="ms of one layer over so many decoding requests; linear between them, the first below it",
    )
    prompts: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="most prompts in a pass")
    decodes: list[Annotated[int, Field(ge=1, le=10_000)]] | None = Field(
        default=None,
        description="most decoding requests in a pass with 1, 2, ... layers; by default what decode_ms covers",
    )
    memory_gb: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=0.0, description="memory of one node, GB; only written into files for other planners"
    )


class _Lengths(_Section):
    """How long prompts and answers are."""

    lengths: Lengths | None = Field(default=None, description="input and output: quantiles, in tokens")
    input_tokens: Annotated[float, Field(gt=0)] | None = Field(default=None, description="mean prompt length")
    output_tokens: Annotated[float, Field(gt=0)] | None = Field(default=None, description="mean answer length")

    @model_validator(mode="after")
    def _lengths_known(self) -> _Lengths:
        lengths = self.lengths
        for mean, quantiles, name in (
            (self.input_tokens, lengths and lengths.input, "input"),
            (self.output_tokens, lengths and lengths.output, "output"),
        ):
            if (mean is None) == (quantiles is None):
                raise ValueError(f"give either {name}_tokens, the mean, or lengths.{name}, quantiles")
        return self

    @property
    def pair(self) -> LengthPair:
        """Lengths of prompts and answers; a mean alone is that of a lognormal distribution with cv 1."""
        quantiles = self.lengths or Lengths()
        return LengthPair(
            quantiles.input.distribution if quantiles.input else LengthDistribution(self.input_tokens or 0.0),
            quantiles.output.distribution if quantiles.output else LengthDistribution(self.output_tokens or 0.0),
        )


class _Kind(_Lengths):
    """Requests that are alike."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="of all requests")


class _Serving(_Section):
    """Requests and links: with step times of the nodes, what the pool serves."""

    requests: list[_Kind] = Field(min_length=1, description="kinds of requests, by lengths; the shares are 1 in all")
    reserved_output: Annotated[float, Field(ge=0, le=1e6)] = Field(
        description="answer tokens for which the KV cache of a request is reserved"
    )
    link_gb_s: Annotated[float, Field(gt=0, le=1e6)] = Field(description="bandwidth of a link, GB/s")
    nic_gb_s: Annotated[float, Field(gt=0, le=1e6)] = Field(description="bandwidth of a node's network interface, GB/s")
    latency_ms: Annotated[float, Field(ge=0, le=1e4)] = Field(description="latency of a link, ms")
    activation_bytes: Annotated[float, Field(gt=0, le=1e9)] = Field(description="activations of one token, bytes")
    copy_ms: Annotated[float, Field(ge=0, le=1e3)] = Field(
        default=0.0, description="a node's time to take one token's activations over, ms"
    )

    @model_validator(mode="after")
    def _shares_are_all(self) -> _Serving:
        whole = sum(kind.share for kind in self.requests)
        if abs(whole - 1.0) > 1e-4:
            raise ValueError(f"the shares of requests are {whole:g} in all; they must be 1")
        return self

    @property
    def kinds(self) -> tuple[RequestKind, ...]:
        """Requests, with shares that are exactly 1 in all."""
        whole = sum(kind.share for kind in self.requests)
        return tuple(RequestKind(kind.share / whole, kind.pair) for kind in self.requests)


class _Tables(_Section):
    """Throughput by node and layers, the same for every number of stages."""

    name: str | None = None
    description: str = ""
    source: str = "given in the pool file"
    layers: Annotated[int, Field(ge=1, le=1000)] = Field(description="layers of the model")
    nodes: dict[str, _Node] = Field(min_length=1)
    serving: _Serving | None = Field(default=None, description="requests and links; prompt_ms and decode_ms of nodes")


class _Slo(_Section):
    ttft_ms: Annotated[float, Field(ge=1, validation_alias=AliasChoices("ttft_ms", "prefill_ms"))]
    tpot_ms: Annotated[float, Field(ge=1, validation_alias=AliasChoices("tpot_ms", "decode_ms"))]


class _Catalog(_Section):
    """A model and nodes of the catalog; throughput tables are made from them."""

    name: str | None = None
    description: str = ""
    model: str = Field(description="model of the catalog")
    phase: Literal["prefill", "decode", "mixed"]
    slo: _Slo
    input_tokens: Annotated[float, Field(gt=0)] = Field(description="mean prompt length")
    output_tokens: Annotated[float, Field(gt=0)] = Field(description="mean answer length")
    nodes: dict[str, Annotated[int, Field(ge=1, le=10_000)]] = Field(min_length=1)
    max_stages: Annotated[int, Field(ge=1, le=64)] = 16


def load_pool(name_or_path: str | Path) -> PlacementPool:
    """A built-in pool or a pool file (YAML or JSON).

    Raises:
        ScenarioError: No such pool, or every mistake of the file with its place.
    """
    if isinstance(name_or_path, str) and name_or_path in BUILTIN_POOLS:
        text = files("coralopt.placement").joinpath("pools", f"{name_or_path}.yaml").read_text(encoding="utf-8")
        return _pool(parse_text(text, name_or_path)[0], name_or_path, name_or_path, {})
    path = Path(name_or_path)
    try:
        path.stat()
        data, lines = read_file(path)
    except FileNotFoundError as error:
        builtin = f"built in: {', '.join(BUILTIN_POOLS)}"
        raise _mistake(str(path), "pool", "no such file or built-in pool", builtin) from error
    except (OSError, ValueError) as error:
        raise _mistake(str(path), "pool", f"cannot be read: {error}") from error
    except ScenarioError as error:
        # The reader calls a whole file "scenario".
        whole = [replace(m, place="pool", hint="") if m.place == "scenario" else m for m in error.mistakes]
        raise ScenarioError(error.source, whole) from error
    return _pool(data, str(path), path.stem, lines)


def _mistake(source: str, place: str, problem: str, hint: str = "") -> ScenarioError:
    return ScenarioError(source, [Mistake(place=place, problem=problem, hint=hint)])


def _pool(data: object, source: str, name: str, lines: Mapping[Place, int]) -> PlacementPool:
    if not isinstance(data, dict):
        raise _mistake(source, "pool", "not a mapping", "give layers and nodes, or model, phase, slo and nodes")
    root: type[_Catalog | _Tables] = _Catalog if "model" in data else _Tables
    try:
        document = root.model_validate(data)
    except ValidationError as error:
        mistakes = MistakeList(source, lines)
        explain(error, data, mistakes, root)
        mistakes.raise_any()
        raise
    if isinstance(document, _Catalog):
        return _from_catalog(document, source, name)
    return _from_tables(document, source, name)


def _from_tables(document: _Tables, source: str, name: str) -> PlacementPool:
    layers = document.layers
    table = np.zeros((len(document.nodes), layers + 1))
    cache = np.zeros(table.shape, dtype=np.int64)
    for c, (key, node) in enumerate(document.nodes.items()):
        if len(node.tokens_s) > layers:
            raise _mistake(
                source, f"nodes.{key}.tokens_s", f"{len(node.tokens_s)} entries, the model has {layers} layers"
            )
        table[c, 1 : len(node.tokens_s) + 1] = node.tokens_s
        if node.cache_tokens is not None:
            cache[c, 1 : len(node.cache_tokens) + 1] = node.cache_tokens[:layers]
    every = all(node.cache_tokens is not None for node in document.nodes.values())
    return PlacementPool(
        name=document.name or name,
        values=np.broadcast_to(table, (layers, 3, *table.shape)),
        counts=tuple(node.count for node in document.nodes.values()),
        configurations=tuple(document.nodes),
        stage_free=True,
        cache_tokens=cache if every else None,
        source=document.source,
        serving=None if document.serving is None else _serving(document, document.serving, source),
    )


def _serving(document: _Tables, serving: _Serving, source: str) -> PoolServing:
    prompts: list[Floats] = []
    decodes: list[Floats] = []
    most: list[list[int]] = []
    for key, node in document.nodes.items():
        if node.prompt_ms is None or node.decode_ms is None or node.cache_tokens is None:
            missing = (
                "prompt_ms" if node.prompt_ms is None else "decode_ms" if node.decode_ms is None else "cache_tokens"
            )
            raise _mistake(source, f"nodes.{key}.{missing}", "missing", "a pool with serving needs it for every node")
        prompts.append(_dense(node.prompt_ms, 0.0))
        decodes.append(_dense(node.decode_ms, node.decode_ms[min(node.decode_ms)]))
        decodes[-1][0] = 0.0
        covered = len(decodes[-1]) - 1
        if node.decodes is not None and max(node.decodes) > covered:
            raise _mistake(
                source, f"nodes.{key}.decodes", f"{max(node.decodes)} requests in a pass, decode_ms ends at {covered}"
            )
        limits = (node.decodes or [covered])[: document.layers]
        most.append(limits + [limits[-1]] * (document.layers - len(limits)))
    return PoolServing(
        kinds=serving.kinds,
        reserved_output=serving.reserved_output,
        prompt_ms=np.stack([table[: min(map(len, prompts))] for table in prompts]),
        # Beyond its own end, which no pass reaches, a table keeps its last value.
        decode_ms=np.stack([np.pad(table, (0, max(map(len, decodes)) - len(table)), "edge") for table in decodes]),
        prompts=np.array([node.prompts for node in document.nodes.values()], dtype=np.int64),
        decodes=np.array([[0, *limits] for limits in most], dtype=np.int64),
        memory_gb=tuple(node.memory_gb for node in document.nodes.values()),
        links=PoolLinks(
            bytes_s=serving.link_gb_s * 1e9,
            nic_bytes_s=serving.nic_gb_s * 1e9,
            latency_ms=serving.latency_ms,
            activation_bytes=serving.activation_bytes,
            copy_ms=serving.copy_ms,
        ),
    )


def _dense(points: dict[int, float], least: float) -> Floats:
    """A value for 0, 1, ..., the last point; ``least`` at 0."""
    known = {0: least, **points}
    return np.interp(np.arange(max(known) + 1), sorted(known), [known[at] for at in sorted(known)])


def _from_catalog(document: _Catalog, source: str, name: str) -> PlacementPool:
    from coralopt.scenario import scenario_from_mapping
    from coralopt.throughput import build_tables, throughput_source

    lengths = {"input_tokens": document.input_tokens, "output_tokens": document.output_tokens}
    scenario = scenario_from_mapping(
        {
            "name": document.name or name,
            "mode": "mixed" if document.phase == "mixed" else "disaggregated",
            "models": {
                document.model: {
                    "slo": {**document.slo.model_dump(), "attainment": "mean"},
                    "demand": {"requests_s": 1.0, **lengths},
                },
            },
            "serving": {"preset": "paper"},
            "pool": {
                "regions": {
                    "pool": {
                        "configurations": {
                            key: {"available": count, "price_usd_h": 0.0} for key, count in document.nodes.items()
                        }
                    }
                }
            },
        },
        source=source,
    )
    phase = next(item for item in scenario.model_phases if item.phase == document.phase)
    tables = build_tables(
        throughput_source(scenario.throughput_source), phase, scenario.configurations, document.max_stages
    )
    return PlacementPool(
        name=scenario.name,
        values=tables.values,
        counts=tuple(document.nodes[c.name] for c in scenario.configurations),
        configurations=tables.configurations,
        stage_ms=tables.stage_ms,
        source="; ".join(sorted(set(tables.provenance))),
    )

"""Sections about requests: time limits, lengths and rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, field_validator, model_validator

from coralopt.scenario.file.fields import Milliseconds, Name, Rate, Section, Share, Text, Tokens, Variation
from coralopt.scenario.lengths import LengthDistribution, through_quantiles

#: Names of the time limits before they had those of the field, which stay readable -> name.
SLO_ALIASES = {"prefill_ms": "ttft_ms", "decode_ms": "tpot_ms"}


def _slo_schema(schema: dict[str, JsonValue]) -> None:
    """Editors accept either name of a limit."""
    fields, required = schema["properties"], schema["required"]
    assert isinstance(fields, dict)
    assert isinstance(required, list)
    for old, name in SLO_ALIASES.items():
        fields[old] = {**dict(fields[name]), "deprecated": True}  # type: ignore[arg-type]
        required.remove(name)
    schema["allOf"] = [{"oneOf": [{"required": [name]}, {"required": [old]}]} for old, name in SLO_ALIASES.items()]


class Slo(Section):
    """Latency service-level objectives of a model."""

    model_config = ConfigDict(json_schema_extra=_slo_schema)

    ttft_ms: Milliseconds = Field(
        validation_alias=AliasChoices("ttft_ms", "prefill_ms"), description="time to first token, in ms"
    )
    tpot_ms: Milliseconds = Field(
        validation_alias=AliasChoices("tpot_ms", "decode_ms"), description="time per output token, in ms"
    )
    attainment: Literal["mean"] | Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.99,
        description="share of requests that meet both, above 0 and below 1; or mean: plan for mean requests, as the paper",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, data: object) -> object:
        for old, name in SLO_ALIASES.items():
            if isinstance(data, Mapping) and old in data and name in data:
                raise ValueError(f"give {name} or {old} (the same limit by its old name), not both")
        return data

    @field_validator("attainment", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        if value == "mean" or (isinstance(value, float) and 0 < value < 1):
            return value
        raise ValueError(f"must be mean, or a share of requests above 0 and below 1 (0.99 is 99 %), not {value!r}")


class Quantiles(Section):
    """Lengths by the shares of requests that do not exceed them."""

    quantiles: dict[str, Tokens] = Field(description="share ('0.5', '0.95'; '1' is the longest) -> length, in tokens")

    @field_validator("quantiles", mode="after")
    @classmethod
    def _add_up(cls, quantiles: dict[str, float]) -> dict[str, float]:
        through_quantiles(_pairs(quantiles))
        return quantiles

    @property
    def distribution(self) -> LengthDistribution:
        """The distribution through them."""
        return through_quantiles(_pairs(self.quantiles))


def _pairs(quantiles: Mapping[str, float]) -> list[tuple[float, float]]:
    pairs = []
    for text, tokens in quantiles.items():
        try:
            share = float(text)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise ValueError(f"'{text[:30]}' is no share; write shares above 0 and at most 1, for example '0.95'")
        pairs.append((share, float(tokens)))
    return pairs


class Lengths(Section):
    """Lengths of requests as quantiles, where they are not lognormal; a trace's become quantiles when a file is read."""

    input: Quantiles | None = Field(default=None, description="of prompts: quantiles, in tokens")
    output: Quantiles | None = Field(default=None, description="of answers: quantiles, in tokens")
    trace: Text | None = Field(
        default=None,
        description="in a scenario file: path of a CSV file with the columns input_tokens and output_tokens",
    )

    @model_validator(mode="after")
    def _no_trace_left(self) -> Lengths:
        if self.trace is not None:
            raise ValueError("a trace is read with a scenario file, and stands alone: no input or output beside it")
        return self


#: Lengths of requests: as means with their spread, by a data set, or by quantiles.
MeanInput = Annotated[Tokens | None, Field(description="mean prompt length, in tokens")]
MeanOutput = Annotated[Tokens | None, Field(description="mean answer length, in tokens")]
DataSet = Annotated[
    Literal["azure-code", "azure-conv", "burstgpt"] | None,
    Field(description="published trace whose mean lengths are used"),
]
InputSpread = Annotated[
    Variation | None, Field(description="coefficient of variation of prompt lengths (lognormal); default: 1")
]
OutputSpread = Annotated[
    Variation | None, Field(description="coefficient of variation of answer lengths (lognormal); default: 1")
]
LengthsGiven = Annotated[Lengths | None, Field(description="input and output: quantiles, in tokens")]


class DemandClass(Section):
    """Some of the requests, told apart by their lengths: the first class that holds a request has it."""

    requests_s: Rate = Field(description="request rate, in requests/s")
    most_input: Tokens | None = Field(default=None, description="longest prompt, in tokens; default: any")
    most_output: Tokens | None = Field(
        default=None, description="longest answer that is asked for (max_tokens), in tokens; default: any"
    )
    input_tokens: MeanInput = None
    output_tokens: MeanOutput = None
    dataset: DataSet = None
    input_cv: InputSpread = None
    output_cv: OutputSpread = None
    lengths: LengthsGiven = None

    @model_validator(mode="after")
    def _one_length(self) -> DemandClass:
        _check_lengths(self)
        return self


class Demand(Section):
    """What must be served: a rate (requests, or tokens of each phase) and mean lengths (or a data set with them)."""

    requests_s: Rate | None = Field(default=None, description="request rate, in requests/s")
    prefill_tokens_s: Rate | None = Field(default=None, description="input tokens to process, in tokens/s")
    decode_tokens_s: Rate | None = Field(default=None, description="output tokens to generate, in tokens/s")
    mixed_tokens_s: Rate | None = Field(default=None, description="output tokens of mixed instances, in tokens/s")
    input_tokens: MeanInput = None
    output_tokens: MeanOutput = None
    dataset: DataSet = None
    input_cv: InputSpread = None
    output_cv: OutputSpread = None
    lengths: LengthsGiven = None
    prefix_hit: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share of the prompt tokens whose KV cache is there already, 0 to below 1"
    )
    min_quality: Share | None = Field(
        default=None, description="least mean quality of the requests over the model's variants, above 0 to 1"
    )
    min_shares: dict[Name, Share] = Field(
        default_factory=dict, description="variant -> least share of the requests that it serves, above 0 to 1"
    )
    classes: dict[Name, DemandClass] = Field(
        default_factory=dict, description="name -> some of the requests, by their lengths, with their rate"
    )

    @model_validator(mode="after")
    def _one_rate_and_one_length(self) -> Demand:
        given = {name for name, value in self if value is not None}
        rates = given & {"prefill_tokens_s", "decode_tokens_s", "mixed_tokens_s"}
        if self.classes:
            _check_classes(self, given)
            return self
        if "requests_s" in given and rates:
            raise ValueError(f"give requests_s or {', '.join(sorted(rates))}, not both")
        if "requests_s" not in given and not rates:
            raise ValueError("the rate is missing: give requests_s, or prefill_tokens_s and decode_tokens_s")
        _check_lengths(self)
        return self


def _check_lengths(demand: Demand | DemandClass) -> None:
    """Lengths are said once: as means, by quantiles, or by a data set."""
    given = {name for name, value in demand if value is not None}
    lengths = given & {"input_tokens", "output_tokens"}
    if "dataset" in given and (lengths or demand.lengths):
        others = sorted(lengths | ({"lengths"} if demand.lengths else set()))
        raise ValueError(f"give dataset or {', '.join(others)}, not both")
    for side in ("input", "output"):
        quantiles = None if demand.lengths is None else getattr(demand.lengths, side)
        mean = getattr(demand, f"{side}_tokens")
        if quantiles is None:
            if "dataset" not in given and mean is None:
                raise ValueError("the lengths are missing: give input_tokens and output_tokens, or a dataset")
            continue
        if f"{side}_cv" in given:
            raise ValueError(f"give {side}_cv or lengths.{side}, not both")
        own = quantiles.distribution.mean
        if mean is not None and abs(mean - own) > 0.05 * own:
            raise ValueError(
                f"{side}_tokens says a mean of {mean:g} tokens, the quantiles of lengths.{side} have one of {own:.4g}; "
                f"leave {side}_tokens out, or correct one of them"
            )


def _check_classes(demand: Demand, given: set[str]) -> None:
    """Classes have rates and lengths of their own, and the last one takes what no other holds."""
    beside = sorted(given - {"requests_s", "prefix_hit", "classes", "min_quality", "min_shares"})
    if beside:
        raise ValueError(f"{', '.join(beside)}: classes have rates and lengths of their own; leave it out beside them")
    total = sum(entry.requests_s for entry in demand.classes.values())
    if demand.requests_s is not None and abs(demand.requests_s - total) > 1e-6 * max(total, demand.requests_s):
        raise ValueError(
            f"requests_s is {demand.requests_s:g}, those of the classes sum to {total:g}; leave it out, or correct one"
        )
    *others, last = demand.classes
    for name in others:
        if demand.classes[name].most_input is None and demand.classes[name].most_output is None:
            raise ValueError(f"class '{name}' holds every request, so none is left for those behind it; give it bounds")
    if demand.classes[last].most_input is not None or demand.classes[last].most_output is not None:
        raise ValueError(f"class '{last}' is the last one and takes what no other does; leave its bounds out")

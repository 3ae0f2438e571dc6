"""What a valid document says of engines, looked up: how they serve, and where their times come from."""

from __future__ import annotations

import dataclasses

from coralopt.scenario.facts.measured import MeasuredNodeTimes, MeasuredSourceChoice, MeasuredTimesGrid
from coralopt.scenario.facts.serving import SERVING_PRESETS, Serving
from coralopt.scenario.file.document import Document
from coralopt.scenario.file.serving import MeasuredTimes
from coralopt.scenario.mistakes import MistakeList


def serving_of(document: Document) -> Serving:
    """What the section says, else the longest host times that were measured, else the preset."""
    policy, throughput = document.serving, throughput_of(document)
    given = {name: value for name, value in policy if name != "preset" and value is not None}
    if policy.preset == "engine" and isinstance(throughput, MeasuredSourceChoice):
        measured = zip(("host_step_ms", "host_request_ms"), throughput.host_ms, strict=True)
        given = {name: value for name, value in measured if value is not None} | given
    return dataclasses.replace(SERVING_PRESETS[policy.preset], **given)


def throughput_of(document: Document) -> str | MeasuredSourceChoice:
    given = document.throughput
    if not given.measured or given.source not in ("auto", "measured"):
        return given.source
    nodes = tuple(
        MeasuredNodeTimes(
            item.model,
            item.configuration,
            item.weight_format,
            item.measured_with,
            _grid(item.prefill),
            _grid(item.decode),
            item.kv_format or "bf16",
            item.mixed_factor or 1.0,
        )
        for item in given.measured
    )
    step_ms, request_ms = (
        max((value for node in given.measured if (value := getattr(node, name)) is not None), default=None)
        for name in ("host_step_ms", "host_request_ms")
    )
    return MeasuredSourceChoice(given.source, nodes, (step_ms, request_ms))


def _grid(given: MeasuredTimes) -> MeasuredTimesGrid:
    layer, other = (tuple(tuple(map(float, row)) for row in rows) for rows in (given.layer_ms, given.other_ms))
    return MeasuredTimesGrid(tuple(map(float, given.tokens)), tuple(map(float, given.batch)), layer, other)


def check_measured(document: Document, mistakes: MistakeList) -> None:
    given, place = document.throughput, ("throughput",)
    if given.source == "measured" and not given.measured:
        hint = "name the files that `coralopt profile` wrote: measured: [FILE]"
        mistakes.add((*place, "measured"), "source 'measured' has no measurements", hint)
    if given.measured and given.source not in ("auto", "measured"):
        hint = "choose measured, or auto: measured ones first"
        mistakes.add((*place, "source"), f"source '{given.source}' does not use the measurements that are given", hint)
    seen: set[tuple[str, ...]] = set()
    for position, item in enumerate(given.measured):
        key = (item.model, item.configuration, item.weight_format, item.kv_format or "bf16")
        if key in seen:
            what = f"{item.model} on {item.configuration} is measured twice"
            mistakes.add((*place, "measured", position), what, "keep one")
        seen.add(key)

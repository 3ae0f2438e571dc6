"""From a name, a file or a mapping to a resolved scenario."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from coralopt.scenario.checkpoints import include_checkpoints
from coralopt.scenario.explain import existing, explain, plain_path
from coralopt.scenario.file.document import Document
from coralopt.scenario.lengths_of_traces import include_traces
from coralopt.scenario.measured import include_measurements
from coralopt.scenario.mistakes import MistakeList, Path, suggest
from coralopt.scenario.prices import include_prices
from coralopt.scenario.read import parse_text, plain_data, read_file
from coralopt.scenario.resolved import ResolvedScenario

_BUILTINS = (
    "tiny",
    "core",
    "extended",
    "core-slo",
    "extended-slo",
    "auto",
    "variants",
    "longtail",
    "classes",
    "adapters",
    "routes",
    "operator",
    "swapping",
    "prefix",
)
#: A cut may leave its container incomplete, which then goes too; documents are far less deep than this.
_MOST_CUTS = 50


def builtin_scenarios() -> tuple[str, ...]:
    """Names of the scenarios that come with the package, from the smallest to the largest."""
    return _BUILTINS


def scenario_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of scenario files, for editors and other tools."""
    schema = Document.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def load_scenario(name_or_path: str | FilePath) -> ResolvedScenario:
    """Load a built-in scenario or a scenario file.

    Args:
        name_or_path: A built-in one, for example ``"core"``, or the path of a YAML or JSON file. A ``Path`` object is always
            a file.

    Raises:
        ScenarioError: with every mistake of the file, each with its place, its line, and what to do.
    """
    if isinstance(name_or_path, str) and name_or_path in _BUILTINS:
        text = files("coralopt.scenario").joinpath("builtin", f"{name_or_path}.yaml").read_text(encoding="utf-8")
        source = f"{name_or_path}.yaml"
        data, lines = parse_text(text, source)
        return _scenario(data, source, lines, name_or_path)
    file = FilePath(name_or_path)
    if not _is_there(file):
        mistakes = MistakeList(str(name_or_path))
        mistakes.add((), "no such file or built-in scenario", suggest(str(name_or_path), _BUILTINS, "a file or"))
        mistakes.raise_any()
    data, lines = read_file(file)
    include_checkpoints(data, file)
    include_prices(data, file)
    include_measurements(data, file)
    include_traces(data, file)
    # Whatever a file may be called, a name holds no blanks.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("._-")[:100]
    return _scenario(data, str(file), lines, name or "scenario")


def scenario_from_mapping(data: Mapping[str, Any], source: str = "scenario") -> ResolvedScenario:
    """Resolve a scenario given as plain data, for example the ``document`` of another one.

    Args:
        data: The content of a scenario file.
        source: What error messages call it.

    Raises:
        ScenarioError: with every mistake, each with its place and what to do.
    """
    return _scenario(data, source, {}, "scenario")


def _is_there(file: FilePath) -> bool:
    try:
        return file.exists()
    except (OSError, ValueError):
        return False


def _scenario(data: object, source: str, lines: Mapping[Path, int], name: str) -> ResolvedScenario:
    mistakes = MistakeList(source, lines)
    raw = plain_data(data, mistakes)
    include_checkpoints(raw)
    if not isinstance(raw, dict):
        mistakes.add((), "a scenario must be a mapping", "it needs at least 'models' and 'pool'")
        mistakes.raise_any()
        raise AssertionError("a mistake is raised")
    known = copy.deepcopy(raw)
    document = _validate(raw, mistakes)
    if document is not None:
        # What the checks of the shape left over is looked up as well, so that all mistakes come at once.
        resolved = ResolvedScenario.of(document, name, mistakes, known)
        if resolved is not None and not len(mistakes):
            return resolved
    mistakes.raise_any()
    raise AssertionError("a scenario without mistakes resolves")


def _validate(raw: dict[str, Any], mistakes: MistakeList) -> Document | None:
    """The document; what is wrong is noted, then cut out of ``raw`` until the rest is valid and can be looked up."""
    for attempt in range(_MOST_CUTS):
        try:
            return Document.model_validate(raw)
        except ValidationError as error:
            if not attempt:
                explain(error, raw, mistakes)
            cuts = {existing(raw, _cut(item["loc"], str(item["type"]))) for item in error.errors(include_url=False)}
            # From the back, so that positions in lists stay true.
            for cut in sorted(cuts, key=lambda path: [(isinstance(part, str), part) for part in path], reverse=True):
                _remove(raw, cut, mistakes)
            raw.setdefault("models", {})
            raw.setdefault("pool", {"regions": {}})
    return None


def _cut(location: Path, kind: str) -> Path:
    path = plain_path(location)
    return path[:-1] if kind == "missing" else path


def _remove(raw: Any, path: Path, mistakes: MistakeList) -> None:  # containers of whatever a user wrote
    try:
        for part in path[:-1]:
            raw = raw[part]
        if isinstance(raw, list) and isinstance(path[-1], int):
            mistakes.forget_item(path[:-1], path[-1], len(raw))
        del raw[path[-1]]
    except (KeyError, IndexError, TypeError):
        # It went already, with what contained it.
        return

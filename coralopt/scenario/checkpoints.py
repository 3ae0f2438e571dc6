"""Checkpoints' configurations that a scenario names or holds, as sizes in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

from coralopt.catalog.checkpoints import read_checkpoint, shape_of_config
from coralopt.catalog.shapes import ModelShape
from coralopt.errors import CoraloptError
from coralopt.scenario.mistakes import MistakeList
from coralopt.scenario.mistakes import Path as Place

#: Keys by which a mapping is a checkpoint's configuration, not sizes in the scenario's own words.
_SIGNS = ("hidden_size", "text_config", "num_hidden_layers")


def include_checkpoints(data: object, file: Path | None = None) -> None:
    """Put sizes in the place of the configurations that ``models.*.model`` and variants name or hold; a plan carries them.

    Args:
        data: Content of the scenario; changed in place.
        file: The scenario file: paths in it are relative to its folder. Without it no path is read.

    Raises:
        ScenarioError: A configuration cannot be read, or is none that is known.
    """
    models = data.get("models") if isinstance(data, Mapping) else None
    mistakes = MistakeList("scenario" if file is None else str(file))
    entries: list[tuple[Place, object]] = [
        (("models", key), entry) for key, entry in (models.items() if isinstance(models, Mapping) else ())
    ]
    for place, entry in tuple(entries):
        variants = entry.get("variants") if isinstance(entry, Mapping) else None
        named = variants.items() if isinstance(variants, Mapping) else ()
        entries += [((*place, "variants", name), variant) for name, variant in named]
    for place, entry in entries:
        if not isinstance(entry, dict):
            continue
        model = entry.get("model")
        try:
            if isinstance(model, Mapping) and any(sign in model for sign in _SIGNS):
                entry["model"] = _sizes(shape_of_config(model))
            elif isinstance(model, str) and file is not None and _is_path(model, file):
                entry["model"] = _sizes(read_checkpoint(file.parent / Path(model).expanduser()))
        except CoraloptError as error:
            hint = "give a config.json, a checkpoint's folder, a name of the catalog, or the sizes"
            mistakes.add((*place, "model"), str(error), hint)
    mistakes.raise_any()


def _is_path(model: str, file: Path) -> bool:
    """Whether a model is named by a path: it looks like one, or a folder of that name has a configuration."""
    if model.startswith((".", "/", "~")) or model.endswith(".json"):
        return True
    try:
        return (file.parent / model / "config.json").is_file()
    except (OSError, ValueError):
        return False


def _sizes(shape: ModelShape) -> dict[str, object]:
    usual = {field.name: field.default for field in fields(ModelShape)}
    return {name: value for name, value in asdict(shape).items() if value != usual[name]}

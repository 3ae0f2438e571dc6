"""Launches as JSON and YAML text, the same bytes every time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import yaml

from coralopt.runtime.launch import Launch


def json_text(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def launch_text(launch: Launch) -> str:
    """The launch document itself, for people and for other tools."""
    return json_text(launch.to_document())


class _Dumper(yaml.SafeDumper):
    """Block scalars for scripts; no anchors, which few readers of manifests know."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def yaml_text(documents: Iterable[Any]) -> str:
    """Several YAML documents in one text, keys in the given order."""
    return yaml.dump_all(list(documents), Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)

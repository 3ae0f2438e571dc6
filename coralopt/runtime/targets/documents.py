"""Launches as JSON and YAML text, the same bytes every time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import yaml

from coralopt.runtime.launch import Launch, PipelineLaunch
from coralopt.runtime.router.config import router_document
from coralopt.types import Json


def json_text(document: Json) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def common_files(launch: Launch, head: Callable[[PipelineLaunch], str] = lambda p: p.head.host) -> dict[str, str]:
    """What every target writes: ``router.json``, and the launch itself for people and other tools.

    Args:
        launch: Of the target.
        head: Host under which the router reaches the head of a pipeline.
    """
    router = router_document(launch)
    for backend, pipeline in zip(router["backends"], launch.pipelines, strict=True):
        host = head(pipeline)
        if host != pipeline.head.host:
            for field in {"url", "kv_url"} & set(backend):
                backend[field] = backend[field].replace(pipeline.head.host, f"[{host}]" if ":" in host else host)
    return {"router.json": json_text(router), "launch.json": json_text(launch.to_document())}


class _Dumper(yaml.SafeDumper):
    """Block scalars for scripts; no anchors, which few readers of manifests know."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def yaml_text(documents: Iterable[Json]) -> str:
    """Several YAML documents in one text, keys in the given order."""
    return yaml.dump_all(list(documents), Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)

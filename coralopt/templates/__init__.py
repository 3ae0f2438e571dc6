"""The offline stage: enumerate node sets, place each optimally, keep the templates in a library."""

from coralopt.templates.build import (
    build_library,
    check_slos,
    default_library_path,
    library_digest,
    obtain_library,
    scenario_tables,
)
from coralopt.templates.library import PhaseTemplates, TemplateLibrary, content_digest, load_library, save_library
from coralopt.templates.node_sets import node_sets, node_sets_for

__all__ = [
    "PhaseTemplates",
    "TemplateLibrary",
    "build_library",
    "check_slos",
    "content_digest",
    "default_library_path",
    "library_digest",
    "load_library",
    "node_sets",
    "node_sets_for",
    "obtain_library",
    "save_library",
    "scenario_tables",
]

"""The offline stage: enumerate node sets, place each optimally, keep the templates in a library."""

from coralopt.templates.affordable import AffordableInstances
from coralopt.templates.analysis import (
    PhaseDifference,
    RankedTemplate,
    Spread,
    compare_libraries,
    gpu_types_used,
    phase_of,
    rank_templates,
    template_prices,
    throughput_spread,
)
from coralopt.templates.build import (
    build_library,
    library_digest,
    obtain_library,
    scenario_node_sets,
)
from coralopt.templates.certificate import AllocationCertificate, AnySizeBounds, PricedNodes, allocation_certificate
from coralopt.templates.cheapest_token import CheapestToken, cheapest_token, phase_bounds, unlimited_tables
from coralopt.templates.check import LibraryCheck, check_library, library_scenario
from coralopt.templates.classes import class_rates
from coralopt.templates.demand_columns import DemandBlock, DemandColumn
from coralopt.templates.instance_prices import InstancePrices, PricedPipeline
from coralopt.templates.library import PhaseTemplates, TemplateLibrary, content_digest, load_library, save_library
from coralopt.templates.method import BuildMethod
from coralopt.templates.node_sets import AffordableNodes, PriceLimits, node_sets, node_sets_for, parts_of
from coralopt.templates.on_demand import NodeSetFamily, is_on_demand, with_templates
from coralopt.templates.patterns import Patterns, shared_patterns
from coralopt.templates.spare_batches import with_spare_batches
from coralopt.templates.stored import LibraryAhead, default_library_path
from coralopt.templates.tables import check_slos, placement_tables, scenario_tables
from coralopt.templates.unmet import DemandTerms
from coralopt.templates.unmet_branches import ShareBox, ShareBranches, SharePrices

__all__ = [
    "AffordableInstances",
    "AffordableNodes",
    "AllocationCertificate",
    "AnySizeBounds",
    "BuildMethod",
    "CheapestToken",
    "DemandBlock",
    "DemandColumn",
    "DemandTerms",
    "InstancePrices",
    "LibraryAhead",
    "LibraryCheck",
    "NodeSetFamily",
    "Patterns",
    "PhaseDifference",
    "PhaseTemplates",
    "PriceLimits",
    "PricedNodes",
    "PricedPipeline",
    "RankedTemplate",
    "ShareBox",
    "ShareBranches",
    "SharePrices",
    "Spread",
    "TemplateLibrary",
    "allocation_certificate",
    "build_library",
    "cheapest_token",
    "check_library",
    "check_slos",
    "class_rates",
    "compare_libraries",
    "content_digest",
    "default_library_path",
    "gpu_types_used",
    "is_on_demand",
    "library_digest",
    "library_scenario",
    "load_library",
    "node_sets",
    "node_sets_for",
    "obtain_library",
    "parts_of",
    "phase_bounds",
    "phase_of",
    "placement_tables",
    "rank_templates",
    "save_library",
    "scenario_node_sets",
    "scenario_tables",
    "shared_patterns",
    "template_prices",
    "throughput_spread",
    "unlimited_tables",
    "with_spare_batches",
    "with_templates",
]

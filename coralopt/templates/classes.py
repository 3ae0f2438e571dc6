"""Templates of models whose requests come in classes: what each of them serves of every class.

The library has templates for every class, each placed as is best for it. An engine serves requests of all classes on the
same placement: its throughput T_c for class c is that of its slowest stage by the tables of that class, 0 where a node
cannot hold its layers within that class's SLO. Of equally good templates that of the first class stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.library import TemplateLibrary, Templates
from coralopt.throughput import ThroughputTables
from coralopt.throughput.tables import FIRST, LAST, MIDDLE
from coralopt.types import Bools, Floats, Ints


def class_groups(scenario: ResolvedScenario) -> list[Ints]:
    """Positions of the model phases that the same instances serve: the classes of a model in one phase of serving."""
    groups: dict[tuple[str, str], list[int]] = {}
    for p, phase in enumerate(scenario.model_phases):
        if phase.request_class is not None:
            groups.setdefault((phase.served, phase.phase), []).append(p)
    return [np.array(group, dtype=np.int64) for group in groups.values()]


def class_rates(
    scenario: ResolvedScenario, library: TemplateLibrary, tables: Sequence[ThroughputTables]
) -> list[tuple[Ints, Ints, Floats]]:
    """Of every group of classes the templates worth having.

    Returns:
        A group's model phases (k,); rows of the stacked library (n,); tokens/s (n, k) of an instance that serves one class
        only. Another template with the same nodes, or one fewer, is as good for every class as one that is left out.
    """
    rates = []
    for group in class_groups(scenario):
        parts = [(library.phases[p], library.offsets[p]) for p in group.tolist()]
        rows = np.concatenate([first + np.arange(len(templates)) for templates, first in parts])
        speeds = np.concatenate(
            [np.stack([placed_tokens_s(own, tables[p]) for p in group.tolist()], axis=1) for own, _ in parts]
        )
        keep = _worth_having(library.usage[rows], speeds)
        rates.append((group, rows[keep], speeds[keep]))
    return rates


def placed_tokens_s(templates: Templates, table: ThroughputTables) -> Floats:
    """float64 (T,): tokens/s of the templates' placements by other tables than they were made from."""
    count, most = templates.stage_layers.shape
    stages = (templates.stage_layers > 0).sum(axis=1)
    row, node = np.nonzero((templates.node_stage >= 0) & (stages <= table.max_stages)[:, None])
    stage = templates.node_stage[row, node].astype(np.int64)
    role = np.where(stage == 0, FIRST, np.where(stage == stages[row] - 1, LAST, MIDDLE))
    layers = templates.stage_layers[row, stage]
    speed = table.values[stages[row] - 1, role, templates.node_configuration[row, node], layers]
    total = np.zeros((count, most))
    np.add.at(total, (row, stage), speed)
    slowest = np.where(np.arange(most) < stages[:, None], total, np.inf).min(axis=1)
    # Every node must be able to hold its layers, also beside others that do.
    slowest[row[speed <= 0]] = 0.0
    return np.where(stages <= table.max_stages, slowest, 0.0)


def _worth_having(usage: Ints, speeds: Floats) -> Bools:
    """bool (n,): no other template with these nodes, or without one of them, is at least as fast for every class."""
    known: dict[bytes, list[int]] = {}
    usage = usage.astype(np.int16)
    keep = np.ones(len(usage), dtype=np.bool_)
    for k in range(len(usage)):
        same = known.setdefault(usage[k].tobytes(), [])
        keep[k] = speeds[k].any() and not any((speeds[other] >= speeds[k]).all() for other in same)
        if keep[k]:
            for other in [other for other in same if (speeds[k] >= speeds[other]).all()]:
                keep[other] = False
                same.remove(other)
            same.append(k)
    for k in np.flatnonzero(keep).tolist():
        for c in np.flatnonzero(usage[k]).tolist():
            fewer = usage[k].copy()
            fewer[c] -= 1
            if any((speeds[other] >= speeds[k]).all() for other in known.get(fewer.tobytes(), ())):
                keep[k] = False
    return keep

"""How an allocation is searched: what a caller may choose, and how much work each step may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coralopt.allocation.problem import Allocation, AllocationProblem
from coralopt.solving import Formulation, SolveOptions
from coralopt.types import Floats

#: What holds when no options are given.
DEFAULT_OPTIONS = SolveOptions(rel_gap=1e-3, time_limit=120.0)


@dataclass(frozen=True)
class SearchLimits:
    """How much work the steps may take; measures that do not depend on the clock keep results repeatable.

    Attributes:
        many_templates: From more templates on, the first look is at those near capacity prices of 0.
        most_tries: How often better capacity prices are tried before everything is looked at.
        near_margin: How far above the bound at known capacity prices the target lies, as a share of it.
        near_templates: New columns kept at known capacity prices, at most.
        most_near: Those kept at most where the least cost is known well enough for a wider look.
        direct_columns: So few columns go to the back end at once, without a search for a good allocation beforehand; also
            where bounds leave no more.
        routed_columns: The same for models with routes.
        compact_columns: So few go there once the bound is at its highest, or no allocation is known, for about as long as
            all steps before that took.
        loss_columns: So few go there where an instance or a region may be lost, for most of the time left.
        share: Share of the time left that a step may take when it does not prove anything.
        share_first: Share of that which neighbourhoods may take before the tree over node counts.
        near_bound: The decomposition begins with columns whose bound is within this share of the root bound.
        near_columns: How many these are at most.
        cut_rounds: How often cutting planes on the supply are added.
        first_slack: First slack of the coverings, as a share of the bound.
        first_coverings: Most coverings that are chosen among at once, ahead of annealing.
        most_coverings: The same after it.
        covering_nodes: Branch-and-bound nodes of the back end that chooses ahead of annealing.
        choice_nodes: Nodes of the tree that chooses after it.
        tree_nodes: Nodes of the branching tree looked at in one go.
        leaf_coverings: Most coverings that a node of the branching tree may have to be a leaf.
        leaf_nodes: Nodes of the tree that chooses in a leaf; where these are too few, the leaf is split.
        programme_columns: Most columns that a node of the branching tree may have to go to the back end.
        programme_nodes: Branch-and-bound nodes of the back end there.
        first_rise: First target of the tree over the root bound where no allocation is known, as a share.
        doublings: How often the slack and the target are doubled where no allocation is found.
        many_instances: From so many instances on, all but those that fractions decide about are settled first.
        most_instances: From so many on, annealing, lists of coverings and the tree over them are left out.
        annealings: Rounds of annealing at most, where coverings end nothing.
        rests: How many rests of an allocation are searched where there are many instances, each leaving one instance more
            of every column open; one where there are few.
        repairs: How often a first allocation is looked for by repair, each time.
        first_columns: Columns of the first integer programme while more survive than can be handed over; each later one
            has twice as many.
        most_columns: Most columns that are handed to a back end at once, more or less: templates come whole.
        most_joint_columns: The same where templates serve several model phases.
    """

    many_templates: int = 50_000
    most_tries: int = 6
    near_margin: float = 0.03
    near_templates: int = 30_000
    most_near: int = 250_000
    direct_columns: int = 300
    routed_columns: int = 2_000
    compact_columns: int = 3_000
    loss_columns: int = 1_000
    share: float = 0.5
    share_first: float = 0.5
    near_bound: float = 0.01
    near_columns: int = 60_000
    cut_rounds: int = 20
    first_slack: float = 2e-4
    first_coverings: int = 12_000
    most_coverings: int = 40_000
    covering_nodes: int = 5_000
    choice_nodes: int = 500_000
    tree_nodes: int = 300
    leaf_coverings: int = 6_000
    leaf_nodes: int = 5_000
    programme_columns: int = 6_000
    programme_nodes: int = 500
    first_rise: float = 0.01
    doublings: int = 14
    many_instances: int = 45
    most_instances: int = 600
    annealings: int = 16
    rests: int = 2
    repairs: int = 1
    first_columns: int = 600
    most_columns: int = 6_000
    most_joint_columns: int = 30_000


@dataclass(frozen=True, eq=False)
class AllocationState:
    """What a solve leaves to the next, similar one.

    The columns worth looking at follow from the capacity prices, so they are not kept; the plan itself comes back as the
    next problem's running instances.

    Attributes:
        capacity_prices: float64 (R, C), USD/h per node, at which the Lagrangian bound was highest.
    """

    capacity_prices: Floats


@dataclass(frozen=True, eq=False)
class AllocationSearchOptions:
    """How :func:`coralopt.allocation.solve_allocation` searches.

    Attributes:
        formulation: ``"split"``, ``"paper"``, or a formulation itself.
        reductions: ``False`` hands the full model to the back end, for comparison.
        restrict: Never hand over more than this many columns; those of least column bound are chosen. The gap is still
            proven over all columns. For back ends whose licence stops at a size; needs ``reductions``.
        state: ``state`` of the result of a similar problem over the same regions and configurations, the last
            epoch's, say. The answer is as exact as without, and quicker; one that does not help does no harm.
        start: An allocation to begin with, no worse than which the answer is; one that is not feasible does no harm.
        enough: Bound to stop at, USD/h, for those who only ask whether anything costs so much or less.
        explained: Whether an :class:`InfeasibleError` says why, which takes time.
        limits: How much work each step may take.
    """

    formulation: str | Formulation[AllocationProblem, Allocation] = "split"
    reductions: bool = True
    restrict: int | None = None
    state: AllocationState | None = None
    start: Allocation | None = None
    enough: float = math.inf
    explained: bool = True
    limits: SearchLimits = SearchLimits()

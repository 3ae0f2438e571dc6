"""Which step comes next, behind the first bounds: what is known of the problem and of the bounds decides.

The steps themselves are told of in :mod:`coralopt.allocation.search.solve`.
"""

from __future__ import annotations

import math
from functools import partial

from coralopt.allocation.bounds.coverings import listable
from coralopt.allocation.bounds.fitting import knows_fitting
from coralopt.allocation.bounds.parts import RegionParts
from coralopt.allocation.search.annealing import Annealing
from coralopt.allocation.search.branching import Branching
from coralopt.allocation.search.context import Root, SearchContext, TooFarError
from coralopt.allocation.search.coverings import by_backend, by_tree, choose_among, choose_near_coverings
from coralopt.allocation.search.decomposition import Highest, add_cuts, fit_supply, raise_bound
from coralopt.allocation.search.fixing import close_gap, close_weighed
from coralopt.allocation.search.neighbourhood import NeighbourhoodSearch, repair, search_neighbourhoods
from coralopt.allocation.search.node_counts import branch_on_node_counts
from coralopt.allocation.search.node_programme import has_programme
from coralopt.allocation.search.rest import settle_most
from coralopt.allocation.search.restricted_master import begin_restricted_master, mostly_whole, restricted_master
from coralopt.types import Floats

#: Rounds of annealing ahead of a repair, most of which find an allocation if that is easy.
FIRST_LOOK = 4
#: Share of the time of a step that an integer programme over the templates of fractional allocations has.
SUPPORT = 0.5
#: Share of the time left that the back end has over few columns, before other steps.
AT_ONCE = 2 / 3
#: Gaps to prove that a quick look at neighbourhoods may halve, so that the tree ends.
NARROW = 5.0
#: From so many instances on, whole coverings say little more than fractions: no cuts count them, no tree comes early.
FRACTIONS = 200
#: Share of neighbourhoods ahead of the tree, and of the time left that few columns have; share that the tree has then.
LOOK, PROOF = 0.2, 0.85
#: The same of neighbourhoods and of the tree, turn by turn, and from how many gaps on.
TURNS, NEAR = ((0.6, 0.5), (0.8, 0.85)), 10.0


def prove(search: SearchContext, root: Root, known: Floats | None, early: bool, last: bool) -> None:
    """The steps after ``rounding``.

    Args:
        search: What is known; allocations and bounds are kept there.
        root: The bounds over all columns.
        known: float64 (R, C), capacity prices near which the columns are; ``None`` where all there are.
        early: Whether passes with better prices may follow.
        last: Whether none follows that looks further.

    Raises:
        TooFarError: What is near these prices says too little.
    """
    ranking, few = root.column_bounds, _at_once(search)
    if few and not len(search.small.joint) and not math.isinf(search.left()) and search.open():
        close_gap(search, root, ranking, AT_ONCE * search.left())
        if search.left() == 0 or search.solutions[-1].termination.limit is None:
            return
        few = False
    if not few and not len(search.small.joint):
        if search.small.adds_up and not search.done():
            without_cuts = raise_bound(search, root, known)
            too_low = search.bound * (1 + search.solve_options.rel_gap) > search.target
            if not search.settled_prices and (search.settled() or (too_low and early)):
                raise TooFarError
            tight = _tighten(search, without_cuts)
            if search.settled() and not last:
                return
            root, ranking = tight.root, without_cuts.root.column_bounds
            _choose(search, without_cuts, tight)
        if not search.done() and search.columns_left(root) > search.limits.direct_columns:
            # Where no other bound follows, the back end has most of the time.
            search_neighbourhoods(search, root, 1.0 if search.small.adds_up else LOOK)
    elif not few and not search.done():
        if not search.small.joint.divided:
            search_neighbourhoods(search, root, search.limits.share_first)
        branch_on_node_counts(search, root)
    if search.open():
        close_gap(search, root, ranking)


def _tighten(search: SearchContext, highest: Highest) -> Highest:
    """The steps ``cuts`` and ``fitting``; where coverings are parts of regions, cuts follow that count whole coverings."""
    loose, count = highest, float(highest.values(search.columns).sum())
    fitting = knows_fitting(search.small) and count < search.limits.most_instances
    highest = add_cuts(search, highest, whole=False)
    if search.allocation is None and highest.fits:
        if fitting:
            _anneal(search, loose, FIRST_LOOK)
        if search.allocation is None:
            _settle_losses(search, highest.root)
            _look(search, highest.root, loose)
        if search.allocation is None:
            # What whole instances leave has an allocation sooner than any programme over all of it.
            settle_most(search, highest.values(search.columns), 1, SUPPORT)
        if search.allocation is None:
            restricted_master(search, _fractional(search, loose, highest), highest.root.column_bounds, SUPPORT)
        repair(search, highest.values(search.columns), highest.root)
        if not math.isinf(search.target):
            # Its cost says how far the next pass looks.
            search_neighbourhoods(search, highest.root, LOOK)
    # What time is left is better spent on an allocation than on a bound that no cost is held against.
    if not fitting or (search.allocation is None and not math.isinf(search.left())):
        return highest
    if not mostly_whole(highest.values(search.columns)):
        begin_restricted_master(search, _fractional(search, loose, highest), highest.root.column_bounds)
    highest = fit_supply(search, highest)
    if count >= search.limits.many_instances:
        _use_support(search, loose, highest)
        if not search.close():
            # Cuts raise the bound by little; time is better spent on allocations.
            return highest
    return add_cuts(search, highest, whole=True) if count < FRACTIONS and RegionParts.known(search.small) else highest


def _fractional(search: SearchContext, loose: Highest, tight: Highest) -> tuple[Floats, Floats]:
    """float64 (N,) each: instances of every column in fractions, without cuts and with them."""
    return loose.values(search.columns), tight.values(search.columns)


def _at_once(search: SearchContext) -> bool:
    """Whether the back end has all columns before other steps."""
    small, limits = search.small, search.limits
    # Coverings of models with routes take long to make, and their bound is a weak one where what is sent has a price.
    most = limits.routed_columns if small.routes else limits.direct_columns
    return len(search.columns) <= most and not small.spared.any()


def _look(search: SearchContext, root: Root, loose: Highest) -> None:
    """The back end over few columns, for as long as all before took: it is often quick, and coverings may be too many.

    Not where it had them first, nor where so little is missing that coverings are few.
    """
    few = search.columns_left(root) <= search.limits.compact_columns and not _at_once(search)
    if few and not search.close(NARROW) and not math.isinf(search.left()):
        seconds = max(LOOK * search.left(), min(AT_ONCE * search.left(), sum(search.seconds.values())))
        close_gap(search, root, loose.root.column_bounds, seconds)


def _settle_losses(search: SearchContext, root: Root, share: float = PROOF) -> None:
    """The back end over few columns where an instance or a region may be lost: near coverings are often too many there."""
    small = search.small
    few = search.columns_left(root) <= search.limits.loss_columns
    lost = bool(small.spared.any() or small.surviving.any())
    if few and lost and has_programme(small, search.backend) and search.open():
        close_weighed(search, root, share * search.left())


def _choose(search: SearchContext, loose: Highest, tight: Highest) -> None:
    """The steps ``rest``, ``coverings`` and ``branching``, as far as they know the problem's terms.

    Args:
        search: What is known.
        loose: The highest bound without cuts; where annealing begins.
        tight: The highest bound.
    """
    root, met, values = tight.root, tight.met, tight.values(search.columns)
    small, limits, count = search.small, search.limits, float(values.sum())
    tree = Branching(search, root)
    if small.routes:
        if small.plain:
            choose_among(search, met, (by_backend,))
        return
    unmet, spared = bool(small.unmet_groups()), bool(small.spared.any())
    if spared or small.surviving.any() or small.replicas.any() or unmet:
        # Fractions say little of what an instance or a region may be lost from; whole coverings do.
        choose_among(search, met, (by_backend,))
    if unmet or small.surviving.any():
        _choose_without_rests(search, loose, tree)
        return
    if not spared:
        _look(search, root, loose)
    # Of replicas, fractions settle the wrong ones.
    rests = 0 if small.replicas.any() else limits.rests
    listed, many = count < limits.most_instances, count >= limits.many_instances
    if many:
        _settle_many(search, loose, tight, tree, rests)
    if listed and not many and search.close(NARROW) and search.open():
        _close_in(search, tree)
    # In between, short lists raise the bound by less than the tree does, and long ones are too long.
    between = search.close(NEAR) and not search.close(NARROW)
    if listed and search.open() and (spared or not between):
        choose_near_coverings(search, root, limits.first_coverings, by_tree if spared else by_backend)
    _settle_losses(search, root)
    if not many and not search.done():
        if not small.supply and not search.close(NEAR):
            # Where nodes of one kind have several prices, it finds less than what follows.
            _anneal(search, loose, limits.annealings)
        # Where instances are few, what fractions settle is often all but optimal, or far from it.
        _use_support(search, loose, tight)
        if search.far() or mostly_whole(values):
            settle_most(search, values, min(1, rests))
    if listed and not spared and search.close(NEAR):
        _by_turns(search, tree)
    elif listed and (many or small.supply):
        _anneal(search, loose, limits.annealings)
    _settle_losses(search, root, 1.0)
    # The slack needed is known now. What may be lost leaves few light coverings, and makes nodes of the branching tree slow.
    last = (partial(_choose_near, search, root), tree.go)
    for step in last if spared else reversed(last):
        if listed and search.open():
            step()


def _choose_without_rests(search: SearchContext, loose: Highest, tree: Branching) -> None:
    """Where demand may go unmet, or a region be lost: what whole instances leave is no problem of its own there."""
    small, limits, root = search.small, search.limits, tree.root
    _settle_losses(search, root)
    if search.columns_left(root) > (limits.direct_columns if small.unmet_groups() else limits.loss_columns):
        # Otherwise ``fixing`` ends it sooner.
        _anneal(search, loose, limits.annealings)
        if listable(small) and search.open():
            choose_near_coverings(search, root, limits.most_coverings, by_tree)
        if search.open():
            tree.go()
    elif search.open():
        _look(search, root, loose)


def _settle_many(search: SearchContext, loose: Highest, tight: Highest, tree: Branching, rests: int) -> None:
    """Where there are many instances: rests, what they leave searched around, and a tree if that is close to the bound."""
    root, values, before = tight.root, tight.values(search.columns), search.cost
    few = float(values.sum()) < FRACTIONS
    # Master programmes over many instances end before their fractions are good ones.
    if search.far() or mostly_whole(values):
        settle_most(search, values if few else loose.values(search.columns), rests)
    if search.allocation is None and tight.fits:
        repair(search, values, root)
    better = search.cost < before or search.far()
    listed = float(values.sum()) < search.limits.most_instances
    close = search.close() and few and listed and not search.small.spared.any()
    if better and search.open():
        # What rests leave above the bound, a few whole phases at a time close sooner than annealing.
        search_neighbourhoods(search, root, LOOK if close else 1.0)
    if close and search.open():
        # So little is left that the proof is what is missing.
        tree.go(PROOF)
        if better and search.open():
            search_neighbourhoods(search, root)


def _close_in(search: SearchContext, tree: Branching) -> None:
    """Where little is left: a lower cost, which makes all lists that follow shorter, and the tree that may end then."""
    search_neighbourhoods(search, tree.root, LOOK)
    if search.close(NARROW / 2) and search.open():
        tree.go(PROOF)


def _by_turns(search: SearchContext, tree: Branching) -> None:
    """Neighbourhoods and the tree, the one from where the other has come to."""
    neighbourhoods = NeighbourhoodSearch(search, tree.root)
    for looking, proving in TURNS:
        if search.open():
            neighbourhoods.go(looking)
        if search.open():
            tree.go(proving)


def _choose_near(search: SearchContext, root: Root) -> None:
    """The step ``coverings``, after annealing."""
    choose_near_coverings(search, root, search.limits.most_coverings, by_tree)


def _anneal(search: SearchContext, loose: Highest, rounds: int) -> None:
    """The step ``annealing``, where every phase has a covering to begin with."""
    annealing = Annealing.of(search, loose.root, loose.met) if search.open() else None
    if annealing is not None:
        annealing.run(rounds)


def _use_support(search: SearchContext, loose: Highest, tight: Highest) -> None:
    """The step ``restricted master`` and neighbourhoods around what it finds, where rests are hardly smaller or unknown.

    Args:
        search: What is known.
        loose: The highest bound without cuts.
        tight: The highest bound.
    """
    values, bounds = tight.values(search.columns), tight.root.column_bounds
    if search.open() and (search.small.spared.any() or not mostly_whole(values)):
        # It needs some seconds before it finds anything, and where it does not, nothing else does either.
        share = 1.0 if search.allocation is None else SUPPORT
        restricted_master(search, _fractional(search, loose, tight), bounds, share)
        if not (search.far() or search.close(NEAR)):
            search_neighbourhoods(search, tight.root)

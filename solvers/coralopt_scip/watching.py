"""What runs inside SCIP while it solves: its incumbents and bounds are told, and lazy rows are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from coralopt.solving.job import Job
from coralopt.solving.matrix import LazyRow
from coralopt.solving.plugin import lazy
from coralopt.types import Floats

if TYPE_CHECKING:
    from pyscipopt import Model, Variable

pyscipopt = lazy("pyscipopt")
#: What SCIP hands to its callbacks, of which its hints say nothing.
Untyped: TypeAlias = Any


def values(model: Model, point: Untyped, variables: list[Variable]) -> Floats:
    """float64 (n,): a solution of SCIP's, ``None`` for that of the relaxation at hand."""
    return np.array([model.getSolVal(point, variable) for variable in variables], dtype=np.float64)


def listen(model: Model, variables: list[Variable], job: Job) -> None:
    """Tell about incumbents and solved nodes."""
    kinds = pyscipopt.SCIP_EVENTTYPE
    watched = kinds.BESTSOLFOUND | kinds.NODESOLVED

    class Watch(pyscipopt.Eventhdlr):  # type: ignore[name-defined,misc]
        def eventinit(self) -> None:
            self.model.catchEvent(watched, self)

        def eventexit(self) -> None:
            self.model.dropEvent(watched, self)

        def eventexec(self, event: Untyped) -> None:
            own = self.model
            job.stop = own.interruptSolve
            # The primal bound lags behind while an incumbent is being announced.
            objective = own.getSolObjVal(own.getBestSol()) if own.getNSols() > 0 else math.inf
            new = event.getType() == kinds.BESTSOLFOUND
            job.tell(objective, own.getDualbound(), (lambda: values(own, own.getBestSol(), variables)) if new else None)

    model.includeEventhdlr(Watch(), "coralopt", "incumbents and bounds")


def watch_lazy(model: Model, variables: list[Variable], job: Job) -> None:
    """A constraint of SCIP's kind that asks for the lazy rows of every solution; it may hold any column back."""
    results = pyscipopt.SCIP_RESULT

    class Watch(pyscipopt.Conshdlr):  # type: ignore[name-defined,misc]
        def rows(self, solution: Untyped = None) -> Sequence[LazyRow]:
            job.stop = self.model.interruptSolve
            return job.missing(values(self.model, solution, variables))

        def conscheck(self, constraints: Untyped, solution: Untyped, *_: Untyped) -> dict[str, Any]:
            return {"result": results.INFEASIBLE if self.rows(solution) else results.FEASIBLE}

        def consenfolp(self, *_: Untyped) -> dict[str, Any]:
            rows = self.rows()
            for row in rows:
                terms = pyscipopt.quicksum(value * variables[j] for j, value in row.terms.items())
                for sense, side in row.sides:
                    self.model.addCons(terms >= side if sense == ">" else terms <= side)
            return {"result": results.CONSADDED if rows else results.FEASIBLE}

        consenfops = consenfolp

        def conslock(self, constraint: Untyped, locktype: Untyped, positive: int, negative: int) -> None:
            for variable in variables:
                own, locks = self.model.getTransformedVar(variable), positive + negative
                self.model.addVarLocksType(own, locktype, locks, locks)

    model.includeConshdlr(Watch(), "coralopt_lazy", "lazy rows", enfopriority=-1, chckpriority=-1, needscons=False)

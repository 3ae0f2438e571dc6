"""Wrong answers: what two runs of one instance claim that cannot both be true.

Every objective here was recomputed by the problem's own exact check before its row was written. So a proven bound that
a checked answer passes is wrong, and so is "infeasible" where there is one. Nothing is said about who is slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coralopt.benchmark.instances import parse_instance
from coralopt.benchmark.outcome import Outcome
from coralopt.benchmark.problem_file import answer_from_plain, problem_digest
from coralopt.benchmark.results import Row
from coralopt.errors import CoraloptError

#: Relative amount by which a floating-point solver's bound may pass a checked answer.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer.

    Attributes:
        instance: Its name.
        key: The run that is wrong.
        text: What it claims and what shows that it is wrong.
    """

    instance: str
    key: str
    text: str


def sense_of(kind: str) -> str:
    """``"max"`` for placements (tokens/s), ``"min"`` for allocations (USD/h)."""
    return "max" if kind == "placement" else "min"


def best_known(rows: Iterable[Row]) -> dict[str, tuple[float, str]]:
    """Instance -> best checked objective and the run that has it."""
    best: dict[str, tuple[float, str]] = {}
    for row in rows:
        if row["outcome"] not in (Outcome.OPTIMAL.value, Outcome.FEASIBLE.value) or row.get("objective") is None:
            continue
        sign = -1.0 if sense_of(row["kind"]) == "max" else 1.0
        old = best.get(row["instance"])
        if old is None or sign * row["objective"] < sign * old[0]:
            best[row["instance"]] = (float(row["objective"]), row["key"])
    return best


def conflicts(rows: Sequence[Row]) -> list[WrongAnswer]:
    """Everything that is wrong, run by run."""
    best = best_known(rows)
    wrong = []
    digests: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.get("instance_digest"):
            digests[row["instance"]].add(row["instance_digest"])
        text = _contradiction(row, best)
        if text:
            wrong.append(WrongAnswer(row["instance"], row["key"], text))
    for name, several in sorted(digests.items()):
        if len(several) > 1:
            text = f"drawn differently in different runs: digests {', '.join(sorted(several))}"
            wrong.append(WrongAnswer(name, "", text))
    return wrong


def _contradiction(row: Row, best: Mapping[str, tuple[float, str]]) -> str:
    """What is wrong about a run, given the best checked answers; empty when nothing is."""
    if row["outcome"] == Outcome.WRONG.value:
        return f"refused by the check: {row.get('message', '')}"
    if row["instance"] not in best:
        return ""
    objective, witness = best[row["instance"]]
    if row["outcome"] == Outcome.INFEASIBLE.value:
        return f"says infeasible, but {witness} has the checked answer {objective!r}"
    bound = row.get("bound")
    if bound is None:
        return ""
    beyond = objective - bound if sense_of(row["kind"]) == "max" else bound - objective
    if beyond <= TOLERANCE * max(1.0, abs(objective)):
        return ""
    return f"proves the bound {bound!r}, but {witness} has the checked answer {objective!r}"


def recheck(rows: Sequence[Row]) -> list[WrongAnswer]:
    """Draw every instance again and check every stored answer against it, from first principles."""
    wrong = []
    by_instance: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("answer") is not None:
            by_instance[row["instance"]].append(row)
    for name, mine in by_instance.items():
        try:
            problem = parse_instance(name).problem()
        except CoraloptError as error:
            wrong.append(WrongAnswer(name, "", f"cannot be drawn again: {error}"))
            continue
        digest = problem_digest(problem)
        if digest != mine[0]["instance_digest"]:
            text = f"drawn again it has the digest {digest}, the rows say {mine[0]['instance_digest']}"
            wrong.append(WrongAnswer(name, "", text))
            continue
        for row in mine:
            check = problem.check(answer_from_plain(row["kind"], row["answer"]))
            if not check.feasible:
                wrong.append(
                    WrongAnswer(name, row["key"], "stored answer fails its check: " + "; ".join(check.sentences))
                )
            elif abs(check.objective - row["objective"]) > 1e-9 * max(1.0, abs(check.objective)):
                text = f"stored objective {row['objective']!r}, its answer has {check.objective!r}"
                wrong.append(WrongAnswer(name, row["key"], text))
    return wrong

"""Wrong answers: what two runs of one instance claim that cannot both be true.

Every objective here was recomputed by the problem's own exact check before its row was written. So a proven bound that
a checked answer passes is wrong, and so is "infeasible" where there is one. Nothing is said about who is slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coralopt.benchmark.files import NOTHING, KnownValue, known_of
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


def sense_of(row: Row) -> str:
    """``"max"`` for placements (tokens/s), ``"min"`` for allocations (USD/h), what a model in a file says itself."""
    return row.get("sense") or ("max" if row["kind"] == "placement" else "min")


def best_known(rows: Iterable[Row], known: Mapping[str, KnownValue] = NOTHING) -> dict[str, tuple[float, str]]:
    """Instance -> best checked objective and who says so: a run, or the known values; no run beats a known optimum."""
    best: dict[str, tuple[float, str]] = {}
    for row in rows:
        value = known_of(row["instance"], known)
        if value is not None and value.value is not None and row["instance"] not in best:
            best[row["instance"]] = (value.value, f"the known values say {value.mark}")
        if row["outcome"] not in (Outcome.OPTIMAL.value, Outcome.FEASIBLE.value) or row.get("objective") is None:
            continue
        sign = -1.0 if sense_of(row) == "max" else 1.0
        old = best.get(row["instance"])
        if old is None or (not old[1].endswith("say =opt=") and sign * row["objective"] < sign * old[0]):
            best[row["instance"]] = (float(row["objective"]), f"{row['key']} has the checked answer")
    return best


def conflicts(rows: Sequence[Row], known: Mapping[str, KnownValue] = NOTHING) -> list[WrongAnswer]:
    """Everything that is wrong, run by run, also against what is known of models in files."""
    best = best_known(rows, known)
    wrong = []
    digests: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.get("instance_digest"):
            digests[row["instance"]].add(row["instance_digest"])
        text = _contradiction(row, best) or _against(row, known_of(row["instance"], known))
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
        return f"says infeasible, but {witness} {objective!r}"
    bound = row.get("bound")
    if bound is None:
        return ""
    beyond = objective - bound if sense_of(row) == "max" else bound - objective
    if beyond <= TOLERANCE * max(1.0, abs(objective)):
        return ""
    return f"proves the bound {bound!r}, but {witness} {objective!r}"


def _against(row: Row, known: KnownValue | None) -> str:
    """What a checked answer has against a known optimum, or against there being none."""
    objective = row.get("objective")
    if known is None or objective is None or row["outcome"] not in (Outcome.OPTIMAL.value, Outcome.FEASIBLE.value):
        return ""
    if known.mark == "=inf=":
        return f"has the answer {objective!r} to what is known to be infeasible"
    if known.mark != "=opt=" or known.value is None:
        return ""
    beyond = objective - known.value if sense_of(row) == "max" else known.value - objective
    if beyond <= TOLERANCE * max(1.0, abs(known.value)):
        return ""
    return f"has the answer {objective!r}, better than the known optimum {known.value!r}"


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

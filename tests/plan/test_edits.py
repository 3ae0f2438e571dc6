"""Nothing in a plan is taken for granted: every leaf of several plans is edited in several ways.

What changes the meaning of the plan is refused with a sentence, in time and without a crash.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from coralopt import load_scenario, plan_scenario, scenario_from_mapping, verify_plan
from coralopt.errors import PlanError
from coralopt.plan import Plan
from coralopt.planning import PlanRequest, VerifiedSettings, plan_verified, simulate_again
from coralopt.scenario.file.document import Document
from coralopt.workload import Traffic

#: Longest that refusing an edit may take, s of this thread's processor time: some 40 times what it takes, so that only
#: work that grows out of bounds is seen.
MOST_SECONDS = 2.0

BASE: dict[str, Any] = {
    "models": {
        "gpt-oss-20b": {
            "slo": {"ttft_ms": 900, "tpot_ms": 30, "attainment": "mean"},
            "demand": {"requests_s": 4, "dataset": "azure-code"},
        },
        "phi4-14b": {
            "slo": {"ttft_ms": 1200, "tpot_ms": 60, "attainment": "mean"},
            "demand": {"requests_s": 4, "dataset": "azure-conv"},
        },
    },
    "pool": {
        "regions": {
            "us-east-2": {"configurations": {"1xL4": 6, "1xL40S": 4}},
            "ap-northeast-2": {"configurations": {"1xL4": 4, "1xL40S": 4}},
        }
    },
    "pruning": {"max_nodes": 2, "memory_ratio": 12},
    "serving": {"preset": "paper"},
}

Place = tuple[str | int, ...]


def _options(data: dict[str, Any]) -> None:
    data["limits"] = {"max_usd_h": 30, "max_nodes": 30, "max_gpus": {"L40S": 30}}
    data["models"]["gpt-oss-20b"] |= {"min_replicas": 2, "survive_region_loss": 0.5}
    data["models"]["phi4-14b"] |= {"forbidden": ["L4"], "limits": {"max_nodes": 8, "max_usd_h": 20}}
    data["pool"]["regions"]["us-east-2"]["limits"] = {"max_nodes": 12, "max_usd_h": 20}
    data["running"] = [
        {"model": "phi4-14b", "phase": "decode", "region": "us-east-2", "nodes": {"1xL40S": 1}, "count": 1}
    ]


def _tight(data: dict[str, Any]) -> None:
    data["limits"] = {"max_usd_h": 5.5}


def _priced(data: dict[str, Any]) -> None:
    data["limits"] = {"max_usd_h": 5.5}
    for model in data["models"].values():
        model["unmet"] = {"input_usd_mtok": 1.0, "output_usd_mtok": 1.0}


def _classes(data: dict[str, Any]) -> None:
    data["pool"]["regions"]["us-east-2"]["configurations"] = {
        "1xL4": {"available": 6, "reserved": 3},
        "1xL40S": {"available": 2, "spot": {"available": 2, "price_usd_h": 0.9, "preemption_usd_h": 0.05}},
    }


def _share(data: dict[str, Any]) -> None:
    data["models"]["gpt-oss-20b"]["slo"]["attainment"] = 0.95
    data["models"]["gpt-oss-20b"]["min_replicas"] = 2
    data["serving"] = {"preset": "engine"}


def _plan(change: Callable[[dict[str, Any]], None], library: Path, **how: Any) -> Plan:
    data = copy.deepcopy(BASE)
    change(data)
    return plan_scenario(scenario_from_mapping(data), library=library, **how)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    """The plans by name."""
    library = tmp_path_factory.mktemp("library") / "small.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORALOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        simulated = plan_verified(
            PlanRequest(load_scenario("tiny")), Traffic(duration_s=20.0, seed=2), VerifiedSettings(0.8, rounds=6)
        ).plan
    return {
        "options": _plan(_options, library),
        "scale": _plan(_tight, library, on_infeasible="scale"),
        "shortfall": _plan(_priced, library, on_infeasible="shortfall"),
        "classes": _plan(_classes, library),
        "simulated": simulated,
        "certified": _plan(_share, library.with_name("share.parquet")),
        "requests": plan_scenario(load_scenario("classes"), library=library.with_name("requests.parquet")),
        "shared": plan_scenario(load_scenario("swapping"), library=library.with_name("shared.parquet")),
        "variants": plan_scenario(load_scenario("variants"), library=library.with_name("variants.parquet")),
    }


def leaves(data: Any, place: Place = ()) -> Iterator[Place]:
    """The places of all values that hold no others, and of empty ones that might."""
    parts: list[tuple[str | int, Any]] = []
    if isinstance(data, dict):
        parts = list(data.items())
    elif isinstance(data, list):
        parts = list(enumerate(data))
    if not parts:
        yield place
    for key, value in parts:
        yield from leaves(value, (*place, key))


def at(data: Any, place: Place) -> Any:
    """The value there."""
    for key in place:
        data = data[key]
    return data


def put(data: Any, place: Place, value: Any) -> None:
    """Another value there."""
    at(data, place[:-1])[place[-1]] = value


def another_type(value: Any) -> Any:
    """A value of another type."""
    if isinstance(value, bool) or value is None:
        return "yes"
    return str(value) if isinstance(value, (int, float)) else 7


def sibling(data: Any, place: Place) -> Any:
    """What stands in the place nearest to this one: the same of the next in a list, or the next of the same owner."""
    for depth in reversed(range(len(place))):
        if isinstance(place[depth], int):
            row = at(data, place[:depth])
            for step in range(1, len(row)):
                try:
                    other = at(row[(int(place[depth]) + step) % len(row)], place[depth + 1 :])
                except (KeyError, IndexError, TypeError):
                    continue
                if other != at(data, place):
                    return other
    owner = at(data, place[:-1])
    others = owner.values() if isinstance(owner, dict) else owner
    same = [other for other in others if type(other) is type(at(data, place)) and other != at(data, place)]
    return same[0] if same else at(data, place)


def edits(data: Any) -> Iterator[tuple[str, Place, str]]:
    """(way, place, the edited document as text) of everything that changes a value; ``data`` itself is put back."""
    for place in list(leaves(data)):
        value = at(data, place)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        ways = {
            "nan": math.nan,
            "infinite": math.inf,
            "scaled": value * 2 if number else f"{value}x" if isinstance(value, str) else not value,
            "negated": -value if number else str(value)[::-1],
            "nudged": value * 1.001 + (1 if isinstance(value, int) else 1e-6) if number else f"{value}"[:-1],
            "empty": None,
            "sibling": sibling(data, place),
            "type": another_type(value),
            "huge": 10**30 if isinstance(value, int) else 1e300,
            "nearly": value * (1 + 1e-6) if isinstance(value, float) else value,
        }
        for way, changed in ways.items():
            # As good as equal: a bound that rounding left a hair below the cost, put in its place.
            if type(changed) is type(value) and (
                changed == value or (number and math.isclose(changed, value, rel_tol=1e-8))
            ):
                continue
            put(data, place, changed)
            yield way, place, json.dumps(data)
            put(data, place, value)
        if isinstance(at(data, place[:-1]), dict):
            owner, names = at(data, place[:-1]), list(at(data, place[:-1]))
            del owner[place[-1]]
            yield "removed", place, json.dumps(data)
            owner.update({name: owner.pop(name, value) for name in names})
    for place in list(lists(data)):
        row = at(data, place)
        for position, item in enumerate(list(row)):
            del row[position]
            yield "removed", (*place, position), json.dumps(data)
            row[position:position] = [item, item]
            yield "twice", (*place, position), json.dumps(data)
            del row[position]


def lists(data: Any, place: Place = ()) -> Iterator[Place]:
    """The places of all lists."""
    if isinstance(data, list):
        yield place
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from lists(value, (*place, key))


def refusals(text: str, path: Path) -> tuple[str, ...]:
    """What `coralopt verify` says against a document."""
    path.write_text(text, encoding="utf-8")
    try:
        plan = Plan.load(path)
    except PlanError as error:
        return (str(error),)
    sentences = verify_plan(plan).sentences
    if plan.simulated is not None and not sentences:
        sentences = simulate_again(plan)
    return sentences


def _reads_the_same(text: str, plan: Plan) -> bool:
    try:
        return Plan.model_validate_json(text) == plan
    except ValueError:
        return False


#: Edits that change no meaning: plans they may happen to, way and place as one text, and why.
MEANINGLESS = (
    (r".* requested_gap", "what was asked for; the status has to follow from it and the gap"),
    (r".* simulated\.target", "what was asked for; `passed` has to follow from it and the attainment"),
    (r".* simulated\.rounds", "how many plans were tried before this one says nothing about this one"),
    (r".* scenario\.(name|description)", "words for people; they decide nothing"),
    (r".* scenario\.placement\.budget_units", "counts only with latency budgets of their own, which no plan here has"),
    (r"twice scenario\.models\.phi4-14b\.forbidden\.0", "what is forbidden twice is forbidden"),
    (r"twice scenario\.sharing\.ways\..*", "a way to share nodes that is named twice is one"),
    (r".* scenario\.models\..*\.model\.source", "where sizes come from, in words"),
    (
        r"removed scenario\.models\.phi4-14b\.variants\.ngram\.base",
        "the base is the model as it is, which is the default",
    ),
    (r"nearly gap|nearly instances\..*\.shared\.memory_share", "as good as equal"),
    (r"nearly simulated\..*", "as good as equal"),
    (r".* certificate\.(first_seed|window_s)", "windows are taken on trust; --prove simulates them again"),
)


NAMES = ("options", "scale", "shortfall", "classes", "simulated", "certified", "requests", "shared", "variants")


@pytest.mark.parametrize(
    ("name", "stride"),
    # All edits take minutes of processor time; every run tries a part of them, another one for every plan.
    [(name, 11) for name in NAMES] + [pytest.param(name, 1, marks=pytest.mark.slow) for name in NAMES],
)
def test_every_edit_that_changes_the_meaning_is_refused(
    name: str, stride: int, plans: dict[str, Plan], tmp_path: Path
) -> None:
    """Every one, in time and in words."""
    data, path = json.loads(plans[name].to_json()), tmp_path / "plan.json"
    assert refusals(json.dumps(data), path) == ()
    passed, slow, count = [], [], 0
    for way, place, text in itertools.islice(edits(data), NAMES.index(name), None, stride):
        if way == "removed" and _reads_the_same(text, plans[name]):
            # What is left out has a default, which is what stood there.
            continue
        begun = time.thread_time()
        sentences = refusals(text, path)
        count += 1
        if time.thread_time() - begun > MOST_SECONDS:
            slow.append((way, place))
        what = f"{way} {'.'.join(map(str, place))}"
        if not sentences and not any(re.fullmatch(pattern, what) for pattern, _ in MEANINGLESS):
            passed.append(what)
        assert all(isinstance(line, str) and line for line in sentences)
    assert count > 1000 / stride
    assert passed == []
    assert slow == []


def test_no_limit_of_a_field_is_lost() -> None:
    """Of two limits of one kind on one field the wider one would win, without a word."""
    parts: list[type[BaseModel]] = [Document, Plan]
    for part in parts:
        parts += [other for other in _parts_of(part) if other not in parts]
        for name, field in part.model_fields.items():
            kinds = [type(item).__name__ for item in field.metadata if type(item).__name__ in ("Ge", "Gt", "Le", "Lt")]
            assert len(kinds) == len(set(kinds)), (part.__name__, name)
    assert len(parts) > 25


def _parts_of(part: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Models that its fields hold."""
    waiting: list[Any] = [field.annotation for field in part.model_fields.values()]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind
        waiting += get_args(kind)

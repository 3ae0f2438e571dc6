"""Checks of demands that may come: what each leaves unserved, and what that costs on average, in exact arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from coralopt.plan.verify.demands import rule_of, served_share
from coralopt.plan.verify.inspected import Inspected, differs
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving.problem import Violation
from coralopt.solving.tolerance import TOLERANCE

#: (case, model) -> its probability, its factor, share of requests not served, USD/h.
Lacks = dict[tuple[str, str], tuple[Fraction, float, Fraction, Fraction]]


def cases(inspected: Inspected) -> Iterator[Violation]:
    """Every case of the scenario is stated once, with what is not served and what that costs."""
    due, seen = _lacks(inspected), set()
    for item in inspected.plan.cases:
        place = item.case, item.model
        if place not in due or place in seen:
            yield Violation(
                "figure", item.case, f"cases: {item.case} of {item.model} is not one of the scenario, or twice"
            )
            continue
        seen.add(place)
        chance, factor, share, usd_h = due[place]
        stated = (item.probability, item.factor, item.unmet_share, item.unmet_usd_h)
        figures = (float(chance), factor, float(share), float(usd_h))
        if any(differs(a, b) for a, b in zip(stated, figures, strict=True)):
            text = f"leaves {float(share):.6%} of {item.model} unserved at {float(usd_h)!r} USD/h, not as stated"
            yield Violation("figure", item.case, f"cases: {item.case} {text}")
    for case, model in due.keys() - seen:
        yield Violation("figure", case, f"cases: {case} of {model} is missing")
    for (case, model), (_, _, share, _) in due.items():
        phases = (phase for phase in inspected.scenario.model_phases if phase.served == model)
        if share > 0 and any(unmet_usd_h(inspected, phase) is None for phase in phases):
            yield Violation("demand", case, f"{case}: {float(share):.6%} of {model} is unserved, which has no price")


def expected_usd_h(inspected: Inspected) -> Fraction:
    """What is not served costs on average, USD/h."""
    return sum((chance * usd_h for chance, _, _, usd_h in _lacks(inspected).values()), Fraction(0))


def unmet_usd_h(inspected: Inspected, phase: ModelPhase) -> Fraction | None:
    """USD/h of one missing token/s; ``None`` where it has no price."""
    prices = rule_of(inspected, phase).unmet_usd_mtok
    if prices is None:
        return None
    prompt, answer = (Fraction(price) for price in prices)
    if phase.phase == "prefill":
        each = prompt
    elif phase.phase == "decode":
        each = answer
    else:
        each = answer + prompt * Fraction(phase.mean_input_tokens) / Fraction(phase.mean_output_tokens)
    return 3600 * each / 1_000_000


def _lacks(inspected: Inspected) -> Lacks:
    lacks: Lacks = {}
    for case in inspected.scenario.operations.cases:
        for model, times in case.factors:
            share, usd_h = Fraction(0), Fraction(0)
            mine = [phase for phase in inspected.scenario.model_phases if phase.served == model]
            for phase in mine:
                if phase.needed_tokens_s > 0 and times > 0:
                    share = max(share, 1 - served_share(inspected, phase) / Fraction(times))
            share = share if share > TOLERANCE else Fraction(0)
            for phase in mine:
                each = unmet_usd_h(inspected, phase) or Fraction(0)
                usd_h += share * Fraction(times) * Fraction(phase.needed_tokens_s) * each
            lacks[case.name, model] = Fraction(case.probability), times, share, usd_h
    return lacks

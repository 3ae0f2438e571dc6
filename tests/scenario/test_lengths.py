"""Distributions of lengths: moments by hand and by integration, quantiles, samples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import ScenarioError
from coralopt.scenario import load_scenario, scenario_from_mapping
from coralopt.scenario.lengths import LengthDistribution, LengthSpread, through_quantiles

#: Standard normal score that 90 % do not exceed.
Z90 = 1.2815515655446004


def test_moments_of_a_lognormal_by_hand() -> None:
    """E[X^k] = m^k (1 + cv^2)^(k (k - 1) / 2): at cv 1 twice and eight times the powers of the mean."""
    lengths = LengthDistribution(100.0)
    assert [lengths.moment(power) for power in (1, 2, 3)] == [100.0, 20_000.0, 8_000_000.0]
    half = LengthDistribution(100.0, LengthSpread(0.5))
    assert [half.moment(power) for power in (1, 2, 3)] == [100.0, 12_500.0, 1e6 * 1.25**3]
    assert LengthDistribution(100.0, LengthSpread(0.0)).moment(3) == 1e6
    # The median is the mean over sqrt(1 + cv^2); a share of 90 % lies below exp(1.2816 sqrt(ln 2)) times that.
    expected = [100 / math.sqrt(2), 100 / math.sqrt(2) * math.exp(Z90 * math.sqrt(math.log(2)))]
    assert lengths.quantile([0.5, 0.9]) == pytest.approx(expected)


def test_two_quantiles_are_a_lognormal() -> None:
    """Median 1,000 and 90 % below 1,000 e: mu = ln 1,000, sigma = 1 / 1.2816, mean = 1,000 exp(sigma^2 / 2)."""
    lengths = through_quantiles([(0.9, 1000 * math.e), (0.5, 1000.0)])
    sigma = 1 / Z90
    assert lengths.mean == pytest.approx(1000 * math.exp(sigma**2 / 2))
    assert lengths.cv == pytest.approx(math.sqrt(math.expm1(sigma**2)))
    same = LengthDistribution(lengths.mean, LengthSpread(lengths.cv))
    shares = [0.001, 0.3, 0.5, 0.7, 0.9, 0.99]
    assert lengths.quantile(shares) == pytest.approx(same.quantile(shares))
    assert [lengths.moment(k) for k in (1, 2, 3)] == pytest.approx([same.moment(k) for k in (1, 2, 3)])


@pytest.mark.parametrize(
    "quantiles",
    [
        [(0.1, 20.0), (0.5, 300.0), (0.9, 900.0), (0.99, 4000.0), (1.0, 9000.0)],
        [(0.25, 50.0), (0.5, 50.0), (0.75, 50.0)],
        [(0.5, 10.0), (0.9, 10_000.0), (1.0, 20_000.0)],
        [(0.5, 10.0), (0.9, 20.0), (1.0, 20.0)],
    ],
)
def test_moments_by_integration(quantiles: list[tuple[float, float]]) -> None:
    """E[X^k] is the integral of the k-th power of the quantile function over (0, 1); quantiles are hit as given."""
    lengths = through_quantiles(quantiles)
    inner = [pair for pair in quantiles if pair[0] < 1]
    assert lengths.quantile([share for share, _ in inner]) == pytest.approx([tokens for _, tokens in inner])
    count = 200_000
    lined = lengths.quantile([(i + 0.5) / count for i in range(count)])
    for power in (1, 2, 3):
        assert lengths.moment(power) == pytest.approx(float((lined**power).mean()), rel=0.01)
    assert lengths.moment(1) == pytest.approx(lengths.mean)
    sample = lengths.sample(np.random.default_rng(1), 200_000)
    assert sample.mean() == pytest.approx(lengths.mean, rel=0.02)
    assert sample.max() <= max(tokens for _, tokens in quantiles) * (1 + 1e-9) or quantiles[-1][0] < 1


@pytest.mark.filterwarnings("error")
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-4, 1 - 1e-6), st.floats(1.0, 1e8)), min_size=2, max_size=5), st.floats(1e-9, 1e-3)
)
def test_any_quantiles_have_finite_lengths_or_are_refused(pairs: list[tuple[float, float]], step: float) -> None:
    """Also where a share is there twice, or nearly."""
    share, tokens = pairs[0]
    for near in ((share, tokens), (min(share + step, 1.0), 1e8)):
        try:
            lengths = through_quantiles([*pairs, near, (1.0, 1e8)])
        except ValueError:
            continue
        drawn = lengths.sample(np.random.default_rng(1), 100)
        assert 0 < lengths.mean < math.inf
        assert lengths.cv >= 0
        assert (np.isfinite(drawn) & (drawn >= 0)).all()
        assert drawn.max() <= 1e8 * (1 + 1e-9)


def test_samples_by_seed() -> None:
    """Equal seeds draw equal lengths, whose mean and cv are the distribution's."""
    for spread in (
        LengthSpread(),
        LengthSpread(0.3),
        LengthSpread(quantiles=through_quantiles([(0.5, 7.0), (0.9, 9.0)]).spread.quantiles),
    ):
        lengths = LengthDistribution(500.0, spread)
        one, other = (lengths.sample(np.random.default_rng(3), 100_000) for _ in range(2))
        assert (one == other).all()
        assert one.mean() == pytest.approx(500, rel=0.02)
        assert one.std() / one.mean() == pytest.approx(lengths.cv, rel=0.05)


def with_trace(path: Path, **lengths: object) -> Path:
    """A scenario file whose demand names a trace."""
    demand = {"requests_s": 2, "lengths": {"trace": "requests.csv", **lengths}}
    document = {
        "models": {"phi4-14b": {"slo": {"ttft_ms": 1200, "tpot_ms": 60}, "demand": demand}},
        "pool": {"regions": {"us-east-2": {"configurations": {"1xL40S": 3}}}},
    }
    (path / "mine.json").write_text(json.dumps(document))
    return path / "mine.json"


def test_lengths_of_a_trace(tmp_path: Path) -> None:
    """Means and spreads of a trace are the scenario's, and its document needs the trace no more."""
    generator = np.random.default_rng(5)
    prompts = np.concatenate([generator.integers(50, 90, 3000), generator.integers(3000, 6000, 1000)])
    answers = np.rint(generator.lognormal(4.0, 1.0, 4000) + 1).astype(int)
    lines = [f"{i},{s},{o}" for i, (s, o) in enumerate(zip(prompts, answers, strict=True))]
    (tmp_path / "requests.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]))
    scenario = load_scenario(with_trace(tmp_path))
    (tmp_path / "requests.csv").unlink()
    assert scenario_from_mapping(scenario.document).digest == scenario.digest
    lengths = scenario.model_phases[0].lengths
    for distribution, values in ((lengths.input, prompts), (lengths.output, answers)):
        assert distribution.mean == pytest.approx(values.mean(), rel=0.05)
        assert distribution.cv == pytest.approx(values.std() / values.mean(), rel=0.1)
        assert distribution.quantile([0.5, 0.96]) == pytest.approx(np.quantile(values, [0.5, 0.96]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("arrival_s,input\n0,1\n", "no columns input_tokens and output_tokens"),
        ("input_tokens,output_tokens\n", "no requests"),
        ("input_tokens,output_tokens\n5,7\n5,-3\n", "line 3: output_tokens is '-3', not a whole number above 0"),
        ("input_tokens,output_tokens\n5,\u0663", "line 2: output_tokens is '\u0663', not a whole number above 0"),
        ("input_tokens,output_tokens\n5\n", "line 2: output_tokens is '', not a whole number above 0"),
    ],
)
def test_unusable_traces(tmp_path: Path, text: str | None, problem: str) -> None:
    """The place in the scenario, the file, what is wrong with it, and what to give."""
    if text is not None:
        (tmp_path / "requests.csv").write_text(text)
    with pytest.raises(ScenarioError, match=r"demand\.lengths\.trace") as told:
        load_scenario(with_trace(tmp_path))
    assert problem in str(told.value)
    with pytest.raises(ScenarioError, match="stands alone"):
        load_scenario(with_trace(tmp_path, input={"quantiles": {"0.5": 5, "0.9": 6}}))

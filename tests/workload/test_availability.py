"""Availability: the hourly table, the generator fitted to it, and scaling to an estimated demand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.catalog import parse_configuration
from coralopt.errors import WorkloadError
from coralopt.workload import (
    HourlyAvailability,
    PoolHours,
    PoolScale,
    fit_availability,
    load_availability_model,
    pool_availability,
    read_hourly,
    save_availability_model,
)
from coralopt.workload.series.availability import HOURLY

DATA = Path(os.environ.get("CORALOPT_TRACE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
POOL = {"r": ["1xL40S", "4xL40S", "8xL40S", "1xL4", "2xA10G"], "s": ["1xL40S", "8xA100", "4xL4"]}

#: Free share of the GFS trace, 4,416 hours: mean, 5 %, 50 % and 95 % quantile; autocorrelation after 1 h and 24 h.
#: Computed by other code from the hourly table (source in the packaged model).
GFS = {
    "A10": (0.2578, 0.0917, 0.2488, 0.4649, 0.9985, 0.975),
    "A100-SXM4-80GB": (0.3658, 0.1473, 0.3779, 0.5761, 0.9385, 0.8365),
    "GPU-series-1": (0.2754, 0.0791, 0.1794, 0.5498, 0.9954, 0.965),
    "H800": (0.5829, 0.3009, 0.5439, 0.9577, 0.8357, 0.5077),
    "GPU-series-2": (0.5311, 0.2145, 0.5328, 0.8133, 0.829, 0.5613),
    "A800-SXM4-80GB": (0.4991, 0.272, 0.4751, 0.7893, 0.847, 0.4873),
}


def hourly(hours: int = 500, seed: int = 0) -> HourlyAvailability:
    """A table from the packaged model."""
    return load_availability_model().sample(hours, seed)


def test_generated_levels_match_the_trace() -> None:
    """Pooled over seeds, free shares have the trace's mean and quantiles within 0.06 of the whole."""
    model = load_availability_model()
    drawn = np.concatenate([model.sample(4416, seed).free_share for seed in range(12)])
    for column, gpu in enumerate(model.gpus):
        mean, *quantiles = GFS[gpu][:4]
        assert drawn[:, column].mean() == pytest.approx(mean, abs=0.06), gpu
        assert np.quantile(drawn[:, column], [0.05, 0.5, 0.95]) == pytest.approx(quantiles, abs=0.075), gpu


def test_generated_memory_matches_the_trace() -> None:
    """Autocorrelation after an hour within 0.09 and after a day within 0.25, as a sample of 184 days shows it."""
    model = load_availability_model()
    tables = [model.sample(4416, seed).free_share for seed in range(12)]
    for column, gpu in enumerate(model.gpus):
        for lag, value, limit in ((1, GFS[gpu][4], 0.09), (24, GFS[gpu][5], 0.25)):
            seen = [np.corrcoef(table[:-lag, column], table[lag:, column])[0, 1] for table in tables]
            assert np.median(seen) == pytest.approx(value, abs=limit), (gpu, lag)


def test_generated_gpus_move_together_as_in_the_trace() -> None:
    """A100 is scarce when L40S's stand-in is (0.6 in the trace), and free when A10 is not (-0.59)."""
    model = load_availability_model()
    seen = np.mean([np.corrcoef(model.sample(4416, seed).free_share.T) for seed in range(12)], axis=0)
    position = {gpu: model.gpus.index(gpu) for gpu in model.gpus}
    assert seen[position["A100-SXM4-80GB"], position["GPU-series-2"]] > 0.35
    assert seen[position["A100-SXM4-80GB"], position["A10"]] < -0.1


def test_model_matches_the_table() -> None:
    """A new fit to the real table gives the packaged figures."""
    path = DATA / "availability" / "gfs_hourly_by_gpu.csv.gz"
    if not path.is_file():
        pytest.skip(f"the hourly table is not at hand: {path}")
    table = read_hourly(path)
    assert table.free_share.shape == (4416, 6)
    assert table.free_share.mean(axis=0) == pytest.approx([GFS[gpu][0] for gpu in table.gpus], abs=1e-3)
    fresh, packaged = fit_availability(table, "gfs"), load_availability_model()
    assert fresh.slow_memory == pytest.approx(packaged.slow_memory, rel=1e-4)
    assert fresh.quantiles == pytest.approx(packaged.quantiles, abs=1e-4)


def test_fit_finds_the_model_again() -> None:
    """A fit to a long generated table has nearly the parameters it was generated with."""
    model = load_availability_model()
    again = fit_availability(model.sample(60_000, 3), "again")
    fast = model.fast_weight > 0.3
    assert again.fast_memory[fast] == pytest.approx(model.fast_memory[fast], abs=0.06)
    assert again.fast_weight == pytest.approx(model.fast_weight, abs=0.12)
    assert again.daily == pytest.approx(model.daily, abs=0.2)


def test_seeds_and_files(tmp_path: Path) -> None:
    """Equal seeds give equal tables, other seeds others, and a saved model is the same model."""
    model = load_availability_model()
    save_availability_model(model, tmp_path / "m.json")
    again = load_availability_model(tmp_path / "m.json")
    assert np.array_equal(again.sample(50, 1).free_share, model.sample(50, 1).free_share)
    assert not np.array_equal(model.sample(50, 1).free_share, model.sample(50, 2).free_share)
    document = json.loads((tmp_path / "m.json").read_text())
    for key, value, words in (
        ("daily", [[0.0]], "daily: must have the shape"),
        ("slow_memory", [2.0] * 6, "slow_memory"),
        ("quantiles", document["quantiles"][::-1], "must not fall"),
    ):
        (tmp_path / "b.json").write_text(json.dumps(document | {key: value}))
        with pytest.raises(WorkloadError, match=words):
            load_availability_model(tmp_path / "b.json")


def _gpus(counts: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    return counts * np.array([parse_configuration(name).count for name in names])


@given(
    required=st.floats(1, 2000),
    headroom=st.floats(0, 4),
    at=st.sampled_from(["mean", "min"]),
    unit=st.sampled_from(["gpus", "memory", "bandwidth"]),
    seed=st.integers(0, 50),
)
@settings(max_examples=25, deadline=None)
def test_scaling_reaches_the_headroom(required: float, headroom: float, at: str, unit: str, seed: int) -> None:
    """The pool is worth the target or more, by no more than a few nodes, and never offers what a region lacks."""
    worth = {
        "gpus": lambda node: node.count,
        "memory": lambda node: node.count * node.gpu.memory_gib,
        "bandwidth": lambda node: node.count * node.gpu.bandwidth_gb_s,
    }[unit]
    unit_worth = worth(parse_configuration("1xL4"))
    table = pool_availability(
        hourly(),
        POOL,
        4,
        PoolScale(required * unit_worth, headroom, unit, at),
        PoolHours(seed=seed),
    )
    target = (1 + headroom) * required * unit_worth
    values = np.array([worth(parse_configuration(name)) for name in table.configurations])
    totals = (table.count @ values).sum(axis=1)
    reached = totals.mean() if at == "mean" else totals.min()
    assert reached >= target * (1 - 1e-9)
    # All GPUs of one kind may become free at the same factor; the total then jumps by whole nodes.
    assert reached <= target + 12 * values.max()
    for r, region in enumerate(table.regions):
        for c, name in enumerate(table.configurations):
            assert name in POOL[region] or (table.count[:, r, c] == 0).all()


def test_composition_follows_the_trace() -> None:
    """With much supply, GPUs of each type are in proportion to the free GPUs of the type they follow."""
    pool = {"r": ["1xL40S", "2xL40S", "8xL40S", "1xH100", "4xH100"]}
    table = pool_availability(hourly(), pool, 3, PoolScale(100_000, headroom=0), PoolHours(first=7))
    gpus = _gpus(table.count[:, 0], table.configurations)
    ratio = gpus[:, :3].sum(axis=1) / gpus[:, 3:].sum(axis=1)
    free = hourly().free_gpus[7:10]
    names = hourly().gpus
    expected = free[:, names.index("GPU-series-2")] / free[:, names.index("H800")]
    assert ratio == pytest.approx(expected, rel=1e-3)
    assert gpus[:, 0] == pytest.approx(gpus[:, 2], rel=1e-2)


def test_no_gpu_is_lost_to_rounding() -> None:
    """Where a one-GPU node is on offer, a type loses less than one GPU a region, however few there are."""
    pool = {"r": ["1xL40S", "2xL40S", "4xL40S", "8xL40S"], "s": ["1xL40S", "8xL40S"]}
    for required in range(1, 40):
        table = pool_availability(hourly(), pool, 1, PoolScale(required, headroom=0))
        gpus = int(_gpus(table.count, table.configurations).sum())
        assert required <= gpus <= required + 2


def test_regions_and_hours() -> None:
    """Regions follow hours of their own by seed, the same with first_hour, and hours_per_epoch stretches the table."""
    pool = {"r": ["1xH100"], "s": ["1xH100"]}
    apart = pool_availability(hourly(), pool, 20, PoolScale(10_000), PoolHours(seed=1)).count[:, :, 0]
    assert not np.array_equal(apart[:, 0], apart[:, 1])
    same = pool_availability(hourly(), pool, 20, PoolScale(10_000), PoolHours(first=3)).count[:, :, 0]
    assert np.array_equal(same[:, 0], same[:, 1])
    slow = pool_availability(hourly(), pool, 20, PoolScale(10_000), PoolHours(0.1, first=3)).count[:, 0, 0]
    assert len(set(slow.tolist())) == 2


def test_refusals() -> None:
    """Values that make no sense, GPUs without a counterpart, and tables that are too short."""
    for change, words in (
        ({"epochs": 0}, "number of epochs"),
        ({"epochs": 501}, "the table has 500"),
        ({"required": 0.0}, "estimated demand"),
        ({"headroom": -1.0}, "headroom"),
        ({"unit": "boxes"}, "unknown unit"),
        ({"at": "max"}, "'mean' or 'min'"),
        ({"first": 499}, "first hour"),
        ({"per_epoch": 0.0}, "hours per epoch"),
        ({"gpu_of_trace": {"L40S": "nosuch"}}, "no availability for L40S"),
        ({"pool": {}}, "no node configuration"),
    ):
        arguments = {"pool": POOL, "epochs": 5, "required": 10.0} | change
        scale = {name: arguments.pop(name) for name in ("required", "headroom", "unit", "at") if name in arguments}
        hours = {name: arguments.pop(name) for name in ("per_epoch", "first") if name in arguments}
        with pytest.raises(WorkloadError, match=words):
            pool_availability(hourly(), scale=PoolScale(**scale), hours=PoolHours(**hours), **arguments)  # type: ignore[arg-type]
    empty = HourlyAvailability(("L40S",), np.array([10.0]), np.zeros((3, 1)))
    with pytest.raises(WorkloadError, match="ever free"):
        pool_availability(empty, {"r": ["1xL40S"]}, 2, PoolScale(1))


def test_hourly_table_mistakes(tmp_path: Path) -> None:
    """Every broken row at once; then hours that are missing."""
    path = tmp_path / "h.csv"
    head = ",".join(HOURLY.columns) + "\n"
    path.write_text(head + "0,A,1,1,10,0.5\n0,A,1,1,10,0.5\n1,A,1,1,10,1.5\n2,A,1,1,11,0.5\nx,A,1,1,10,0.5\n")
    with pytest.raises(WorkloadError) as caught:
        read_hourly(path)
    for words in (
        "4 mistakes",
        "line 3: hour 0, A again (first line 2)",
        "line 4: free_frac must be a share from 0 to 1, not '1.5'",
        "line 5: effective_capacity of A is 11, but was 10 above",
        "line 6: hour must be a whole number from 0, not 'x'",
    ):
        assert words in str(caught.value)
    path.write_text(head + "0,A,1,1,10,0.5\n2,A,1,1,10,0.5\n")
    with pytest.raises(WorkloadError, match="hour 1: no rows"):
        read_hourly(path)
    path.write_text(head + "0,A,1,1,10,0.5\n1,A,1,1,10,0.5\n0,B,1,1,10,0.5\n")
    with pytest.raises(WorkloadError, match="hour 1: no row for B"):
        read_hourly(path)
    with pytest.raises(WorkloadError, match="too few"):
        fit_availability(hourly(100), "short")

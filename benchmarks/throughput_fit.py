"""Fit the roofline's efficiencies to the measured table and print how far it is off.

    python benchmarks/throughput_fit.py            # the errors of the packaged efficiencies
    python benchmarks/throughput_fit.py --refit    # fit anew and write coralopt/throughput/data/efficiency.json
    python benchmarks/throughput_fit.py --holdout  # one GPU: fit without a model, errors on that model

For each GPU and phase: median and 90th percentile of |roofline / silicon - 1| over the time of one layer, and the bias
(median of roofline / silicon - 1), by tensor-parallel degree.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.catalog import models, node_configurations
from coralopt.catalog.types import ModelArchitecture, NodeConfiguration
from coralopt.errors import CoraloptError
from coralopt.scenario.facts.serving import SERVING_PRESETS
from coralopt.throughput.build import measured_times
from coralopt.throughput.grid import GridTimes, TimeGrid
from coralopt.throughput.roofline import Efficiency, Link, efficiency_of, head_ms, layer_ms
from coralopt.throughput.silicon import SYSTEMS, SiliconSource
from coralopt.types import Floats

MODELS = ("phi4-14b", "gpt-oss-20b", "qwen3-32b", "llama3-70b", "gpt-oss-120b", "qwen3-235b")
DEGREES = (1, 2, 4, 8)
#: Measured systems without packaged rows: install the extra ``silicon`` to fit these.
BUILT = ("GB200", "RTXPRO6000")
#: Output tokens of AMD's latencies.
PUBLISHED_OUTPUT = 2048
SOURCE = "efficiencies fitted to aiconfigurator 0.12.0 kernels (Apache-2.0), benchmarks/throughput_fit.py"


def measured_grids(model: ModelArchitecture, configuration: NodeConfiguration) -> GridTimes | None:
    """Times of measured kernels: packaged, or made now by the extra ``silicon``; none where there are no such kernels."""
    source = SiliconSource()
    if source.covers(model, configuration):
        times = source.times(model, configuration)
        return times if times.measured else None
    if configuration.gpu.name not in BUILT:
        return None
    try:
        built: Any = measured_times(model, configuration)
    except CoraloptError:
        return None
    grids = (
        TimeGrid(*(np.array(built[phase][name]) for name in ("tokens", "batch", "layer_ms", "other_ms")))
        for phase in ("prefill", "decode")
    )
    return GridTimes("", *grids)


def samples(
    gpu: str, degree: int, phase: str, names: Sequence[str] = MODELS
) -> list[tuple[Any, Any, Floats, Floats, float, Floats]]:
    """(model, configuration, tokens, sequences, context, measured ms) over the measured grid."""
    measurements: list[tuple[Any, Any, Floats, Floats, float, Floats]] = []
    configuration = node_configurations().get(f"{degree}x{gpu}")
    if configuration is None:
        return measurements
    for name in names:
        model = models()[name]
        times = measured_grids(model, configuration)
        if times is None:
            continue
        grid = times.prefill if phase == "prefill" else times.decode
        for length in grid.tokens:
            batch = grid.batch
            measured, _ = grid.at(batch, float(length))
            tokens = batch * length if phase == "prefill" else batch
            measurements.append((model, configuration, tokens, batch, float(length), measured))
    return measurements


def errors(rows: list[Any], efficiency: Efficiency, phase: str) -> Floats:
    """log(roofline / silicon) over all samples."""
    parts = [
        np.log(layer_ms(model, configuration, efficiency, tokens, sequences, context, phase == "prefill") / measured)
        for model, configuration, tokens, sequences, context, measured in rows
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def solve(
    residual: Callable[[Floats], Floats], starts: list[list[float]], low: list[float], high: list[float]
) -> Floats:
    """The best robust fit over several starts, each on the logarithms of the parameters."""
    from scipy.optimize import least_squares

    bounds = (np.log(low), np.log(high))
    fits = [
        least_squares(lambda p: residual(np.exp(p)), np.log(start), loss="soft_l1", f_scale=0.1, bounds=bounds)
        for start in starts
    ]
    return np.asarray(np.exp(min(fits, key=lambda result: float(result.cost)).x))


def rounded(values: Floats) -> list[float]:
    """Four digits are more than the fit is worth; the optimiser itself needs all of them."""
    return [float(f"{value:.4g}") for value in values]


def efficiency_with(p: Floats | list[float], links: dict[int, Link]) -> Efficiency:
    """Efficiency from mfu, moe_mfu, half_tokens, mbu, overhead_ms."""
    mfu, moe, half, mbu, overhead = (float(value) for value in p)
    return Efficiency(mfu, moe, half, mbu, overhead, links, SOURCE)


def fit_kernels(single: list[Any], phase: str) -> list[float]:
    """The five figures that one GPU alone decides."""
    return rounded(
        solve(
            lambda p: errors(single, efficiency_with(p, {}), phase),
            [[0.6, 0.4, 5.0, 0.75, 0.02], [0.6, 0.1, 50.0, 0.75, 0.05]],
            [0.05, 0.02, 0.01, 0.1, 1e-4],
            [1.0, 1.0, 2000.0, 1.0, 1.0],
        )
    )


def fit(gpu: str, phase: str) -> Efficiency:
    """Efficiencies of one GPU and phase: the kernels' from one GPU, then the all-reduce from each larger node."""
    kernels = fit_kernels(samples(gpu, 1, phase), phase)
    links = {}
    for degree in DEGREES[1:]:
        rows = samples(gpu, degree, phase)
        if not rows:
            continue

        def off(q: Floats, degree: int = degree, rows: list[Any] = rows) -> Floats:
            return errors(rows, efficiency_with(kernels, {degree: Link(float(q[0]), float(q[1]))}), phase)

        # A slow link and a slow start of each all-reduce look alike from afar: begin at both.
        starts = [[gb_s, ms] for gb_s in (1.0, 10.0, 100.0, 400.0) for ms in (0.002, 0.02, 0.2)]
        links[degree] = Link(*rounded(solve(off, starts, [0.1, 1e-4], [2000.0, 5.0])))
    return efficiency_with(kernels, links)


def refit() -> dict[str, dict[str, dict[str, Any]]]:
    """All measured GPUs, and the two that nobody measured."""
    data: dict[str, dict[str, dict[str, Any]]]
    data = {gpu: {phase: asdict(fit(gpu, phase)) for phase in ("prefill", "decode")} for gpu in SYSTEMS}
    like = data["L40S"]
    for gpu, mfu, mbu, source in (
        ("L4", 0.40, 0.75, "MFU 0.40 and MBU 0.75 from Helix's L4 profile (Apache-2.0)"),
        ("A10G", 0.55, 0.75, "MFU 0.55 and MBU 0.75 are a guess between L4 and A100"),
    ):
        data[gpu] = {}
        for phase in ("prefill", "decode"):
            # PCIe 4 x16 moves 32 GB/s one way; 40 % of it is an ordinary all-reduce through host bridges.
            links = {8: Link(12.8, 0.02)}
            moe = round(min(mfu, mfu * like[phase]["moe_mfu"] / like[phase]["mfu"]), 4)
            overhead = like[phase]["overhead_ms"]
            told = f"{source}, overhead as fitted for L40S; all-reduce 12.8 GB/s assumed"
            # These shares are effective ones: no saturation on top.
            data[gpu][phase] = asdict(Efficiency(mfu, moe, 0.0, mbu, overhead, links, told))
    data["MI300X"] = {phase: asdict(efficiency) for phase, efficiency in fit_mi300x().items()}
    return data


def published_errors(prefill: Efficiency, decode: Efficiency) -> Floats:
    """log(roofline / published) over AMD's latencies of vLLM on 8 MI300X: host times included."""
    node, host = node_configurations()["8xMI300X"], SERVING_PRESETS["engine"]
    logs = []
    with (Path(__file__).parent / "data" / "mi300x_latency.csv").open() as stream:
        for row in csv.DictReader(line for line in stream if not line.startswith("#")):
            model = replace(models()[row["model"]], weight_format="fp8", kv_format="fp8")
            length, batch = float(row["input_tokens"]), np.array([float(row["batch"])])
            whole = [
                model.layers * layer_ms(model, node, efficiency, tokens, batch, context, efficiency is not decode)
                + head_ms(model, node, efficiency, batch)
                for efficiency, tokens, context in (
                    (prefill, batch * length, length),
                    (decode, batch, length + PUBLISHED_OUTPUT / 2),
                )
            ]
            steps = PUBLISHED_OUTPUT - 1
            ms = float(whole[0][0]) + host.host_request_ms + steps * (float(whole[1][0]) + host.host_step_ms)
            logs.append(np.log(ms / 1e3 / float(row["seconds"])))
    return np.array(logs)


def fit_mi300x() -> dict[str, Efficiency]:
    """Decode from AMD's published latencies; prefill, of which they show little, and links as on H100.

    With 8 GPUs alone, the start of an all-reduce is part of a layer's fixed time.
    """
    like = [efficiency_of(node_configurations()["8xH100"], phase) for phase in ("prefill", "decode")]
    prefill = replace(like[0], source=f"assumed like H100: {like[0].source}")

    def decode(p: Floats | list[float]) -> Efficiency:
        mfu, half, mbu, overhead = (float(value) for value in p)
        told = "decode fitted to AMD's published latencies of vLLM 0.11.1, benchmarks/throughput_fit.py"
        return replace(like[1], mfu=mfu, half_tokens=half, mbu=mbu, overhead_ms=overhead, source=told)

    starts = [[0.4, 15.0, 0.7, 0.05], [0.2, 50.0, 0.6, 0.02]]
    figures = solve(
        lambda p: published_errors(prefill, decode(p)), starts, [0.02, 0.01, 0.3, 1e-3], [1.0, 300.0, 1.0, 0.3]
    )
    return {"prefill": prefill, "decode": decode(rounded(figures))}


HEAD = f"{'samples':>7} {'median':>8} {'p90':>8} {'bias':>8}"


def line(logs: Floats) -> str:
    """Samples, median and 90th percentile of the relative error, bias."""
    off = np.expm1(logs)
    size = np.abs(off)
    return f"{len(off):7} {np.median(size):8.1%} {np.quantile(size, 0.9):8.1%} {np.median(off):+8.1%}"


def holdout() -> None:
    """How far off the roofline is for a model it has not seen, one GPU: what users of other models meet."""
    print(f"{'GPU':6} {'phase':8} {'without':13} {HEAD}")
    for gpu in SYSTEMS:
        for phase in ("prefill", "decode"):
            for name in MODELS:
                unseen = samples(gpu, 1, phase, [name])
                if not unseen:
                    continue
                seen = samples(gpu, 1, phase, [other for other in MODELS if other != name])
                fitted = efficiency_with(fit_kernels(seen, phase), {})
                print(f"{gpu:6} {phase:8} {name:13} {line(errors(unseen, fitted, phase))}")


def main() -> None:
    """Print the table, after a new fit when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--holdout", action="store_true")
    arguments = parser.parse_args()
    if arguments.refit:
        target = Path(__file__).parents[1] / "coralopt" / "throughput" / "data" / "efficiency.json"
        target.write_text(json.dumps(refit(), indent=2) + "\n", encoding="utf-8")
        print(f"written: {target.name}")
    if arguments.holdout:
        holdout()
        return
    print(f"{'GPU':6} {'phase':8} {'TP':>2} {HEAD}")
    for gpu in SYSTEMS:
        for phase in ("prefill", "decode"):
            for degree in DEGREES:
                rows = samples(gpu, degree, phase)
                if not rows:
                    continue
                efficiency = efficiency_of(node_configurations()[f"{degree}x{gpu}"], phase)
                print(f"{gpu:6} {phase:8} {degree:2} {line(errors(rows, efficiency, phase))}")
    prefill, decode = (efficiency_of(node_configurations()["8xMI300X"], phase) for phase in ("prefill", "decode"))
    print(f"{'MI300X':6} {'both':8} {8:2} {line(published_errors(prefill, decode))}")


if __name__ == "__main__":
    main()

"""Fit the roofline's efficiencies to the measured table and print how far it is off.

    python benchmarks/throughput_fit.py            # the errors of the packaged efficiencies
    python benchmarks/throughput_fit.py --refit    # fit anew and write coralopt/throughput/data/efficiency.json

For each GPU and phase: median and 90th percentile of |roofline / silicon - 1| over the time of one layer, and the bias
(median of roofline / silicon - 1), by tensor-parallel degree.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from coralopt.catalog import models, node_configurations
from coralopt.throughput.layer_times import Floats
from coralopt.throughput.roofline import Efficiency, efficiency_of, layer_ms
from coralopt.throughput.silicon import SYSTEMS, SiliconSource

MODELS = ("phi4-14b", "gpt-oss-20b", "qwen3-32b", "llama3-70b", "gpt-oss-120b", "qwen3-235b")
DEGREES = (1, 2, 4, 8)


def samples(gpu: str, degree: int, phase: str) -> list[tuple[Any, Any, Floats, Floats, float, Floats]]:
    """(model, configuration, tokens, sequences, context, measured ms) over the measured grid."""
    configuration = node_configurations()[f"{degree}x{gpu}"]
    source = SiliconSource()
    found = []
    for name in MODELS:
        model = models()[name]
        if not source.covers(model, configuration):
            continue
        times = source.times(model, configuration)
        if "HYBRID" in times.provenance or "estimate" in times.provenance:
            continue
        grid = times.prefill if phase == "prefill" else times.decode
        for length in grid.tokens:
            batch = grid.batch
            measured, _ = grid.at(batch, float(length))
            tokens = batch * length if phase == "prefill" else batch
            found.append((model, configuration, tokens, batch, float(length), measured))
    return found


def errors(rows: list[Any], efficiency: Efficiency, phase: str) -> Floats:
    """log(roofline / silicon) over all samples."""
    parts = [
        np.log(layer_ms(model, configuration, efficiency, tokens, sequences, context, phase == "prefill") / measured)
        for model, configuration, tokens, sequences, context, measured in rows
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def fit(gpu: str, phase: str) -> Efficiency:
    """Efficiencies of one GPU and phase: the first four from one GPU, the link's two from several."""
    from scipy.optimize import least_squares

    single = samples(gpu, 1, phase)

    def make(p: Floats, link: tuple[float, float] = (100.0, 0.01)) -> Efficiency:
        mfu, moe, mbu, overhead = np.exp(p)
        source = "efficiencies fitted to aiconfigurator 0.12.0 kernels (Apache-2.0), benchmarks/throughput_fit.py"
        return Efficiency(float(mfu), float(moe), float(mbu), float(overhead), *link, source=source)

    start = np.log([0.6, 0.4, 0.75, 0.02])
    solved = least_squares(
        lambda p: errors(single, make(p), phase),
        start,
        loss="soft_l1",
        f_scale=0.1,
        bounds=(np.log([0.05, 0.02, 0.1, 1e-4]), np.log([1.0, 1.0, 1.0, 1.0])),
    )
    several = [row for degree in DEGREES[1:] for row in samples(gpu, degree, phase)]
    link = least_squares(
        lambda q: errors(several, make(solved.x, (float(np.exp(q[0])), float(np.exp(q[1])))), phase),
        np.log([50.0, 0.01]),
        loss="soft_l1",
        f_scale=0.1,
        bounds=(np.log([0.1, 1e-4]), np.log([1000.0, 5.0])),
    )
    found = asdict(make(solved.x, (float(np.exp(link.x[0])), float(np.exp(link.x[1])))))
    # Four digits are more than the fit is worth; the optimiser itself needs all of them.
    source = str(found.pop("source"))
    return Efficiency(**{key: float(f"{value:.4g}") for key, value in found.items()}, source=source)


def refit() -> dict[str, dict[str, dict[str, Any]]]:
    """All measured GPUs, and the two that nobody measured."""
    data = {gpu: {phase: asdict(fit(gpu, phase)) for phase in ("prefill", "decode")} for gpu in SYSTEMS}
    like = data["L40S"]
    for gpu, mfu, mbu, source in (
        ("L4", 0.40, 0.75, "MFU 0.40 and MBU 0.75 from Helix's L4 profile (Apache-2.0), overhead as fitted for L40S"),
        ("A10G", 0.55, 0.75, "MFU 0.55 and MBU 0.75 are a guess between L4 and A100, overhead as fitted for L40S"),
    ):
        data[gpu] = {}
        for phase in ("prefill", "decode"):
            # PCIe 4 x16 moves 32 GB/s one way; 40 % of it is an ordinary all-reduce through host bridges.
            moe = round(mfu * like[phase]["moe_mfu"] / like[phase]["mfu"], 4)
            values = (mfu, min(moe, mfu), mbu, like[phase]["overhead_ms"], 12.8, 0.02)
            data[gpu][phase] = asdict(Efficiency(*values, source=f"{source}; all-reduce 12.8 GB/s assumed"))
    return data


def main() -> None:
    """Print the table, after a new fit when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refit", action="store_true")
    arguments = parser.parse_args()
    if arguments.refit:
        target = Path(__file__).parents[1] / "coralopt" / "throughput" / "data" / "efficiency.json"
        target.write_text(json.dumps(refit(), indent=2) + "\n", encoding="utf-8")
        print(f"written: {target.name}")
    print(f"{'GPU':6} {'phase':8} {'TP':>2} {'samples':>7} {'median':>8} {'p90':>8} {'bias':>8}")
    for gpu in SYSTEMS:
        for phase in ("prefill", "decode"):
            for degree in DEGREES:
                rows = samples(gpu, degree, phase)
                efficiency = efficiency_of(node_configurations()[f"{degree}x{gpu}"], phase)
                off = np.expm1(errors(rows, efficiency, phase))
                if len(off):
                    print(
                        f"{gpu:6} {phase:8} {degree:2} {len(off):7} {np.median(np.abs(off)):8.1%} "
                        f"{np.quantile(np.abs(off), 0.9):8.1%} {np.median(off):+8.1%}"
                    )


if __name__ == "__main__":
    main()

"""GPUs that a team brings: variants of known ones, MIG slices, other vendors; and what a plan says of their figures."""

from __future__ import annotations

from typing import Any

import pytest

from coralopt import catalog, plan_scenario
from coralopt.catalog.types import Gpu
from coralopt.errors import ScenarioError
from coralopt.plan.bill import bill_of
from coralopt.scenario import ResolvedScenario, scenario_from_mapping
from coralopt.throughput.roofline import RooflineSource, efficiencies, efficiency_of

OWN = {"memory_gib": 60, "bandwidth_gb_s": 3000, "bf16_tflops": 500, "link_gb_s": 100}


def scenario(gpu: dict[str, Any], name: str = "mine", count: int = 1) -> ResolvedScenario:
    slo = {"ttft_ms": 3000, "tpot_ms": 200, "attainment": "mean"}
    demand = {"requests_s": 0.5, "dataset": "azure-conv"}
    return scenario_from_mapping(
        {
            "models": {"phi4-14b": {"slo": slo, "demand": demand}},
            "gpus": {name: gpu},
            "nodes": {f"{count}x{name}": {"gpu": name, "count": count, "network_gb_s": 10}},
            "pool": {"regions": {"here": {"configurations": {f"{count}x{name}": {"available": 9, "price_usd_h": 1}}}}},
        }
    )


def gpu_of(resolved: ResolvedScenario) -> Gpu:
    return resolved.configurations[0].gpu


def test_a_variant_has_the_figures_of_its_base() -> None:
    """A PCIe A100: other memory bandwidth and link, the efficiencies of the SXM part."""
    resolved = scenario({"base": "A100", "bandwidth_gb_s": 1935, "link_gb_s": 32, "nvlink": False}, "A100-PCIe", 2)
    gpu, base = gpu_of(resolved), catalog.gpus()["A100"]
    assert (gpu.bandwidth_gb_s, gpu.link_gb_s, gpu.nvlink, gpu.like) == (1935, 32, False, "A100")
    assert (gpu.memory_gib, gpu.bf16_tflops, gpu.architecture, gpu.vendor) == (
        base.memory_gib,
        base.bf16_tflops,
        "Ampere",
        "nvidia",
    )
    found, known = efficiency_of(resolved.configurations[0], "decode"), efficiencies()["A100"]["decode"]
    assert (found.mbu, found.mfu) == (known.mbu, known.mfu)
    assert found.link(2).gb_s == known.link(2).gb_s * 32 / base.link_gb_s
    assert scenario_from_mapping(resolved.document).digest == resolved.digest


@pytest.mark.parametrize(
    ("base", "profile", "processors", "memory"),
    [("H100", "3g.40gb", 3, 4), ("H100", "1g.10gb", 1, 1), ("H200", "2g.35gb", 2, 2), ("A100", "7g.80gb", 7, 8)],
)
def test_a_mig_slice(base: str, profile: str, processors: int, memory: int) -> None:
    """So many of 7 parts of the processors and of 8 of the memory."""
    gpu, whole = gpu_of(scenario({"base": base, "mig": profile})), catalog.gpus()[base]
    assert gpu.memory_gib == whole.memory_gib * memory / 8
    assert gpu.bandwidth_gb_s == whole.bandwidth_gb_s * memory / 8
    assert gpu.bf16_tflops == pytest.approx(whole.bf16_tflops * processors / 7)
    assert (gpu.mig, gpu.like) == (profile, base)


@pytest.mark.parametrize(
    ("gpu", "count", "sentence"),
    [
        ({"base": "H1000"}, 1, "gpus.mine.base: unknown GPU 'H1000'"),
        ({**OWN, "memory_gib": None}, 1, "give memory_gib, or the GPU of the catalog"),
        ({"base": "H100", "mig": "3g.40gb"}, 2, "MIG slices cannot work together in one node"),
        ({"base": "H100", "mig": "9g.40gb"}, 1, "gpus.mine.mig"),
        ({**OWN, "mig": "1g.10gb"}, 1, "a MIG slice has its figures from base and mig alone"),
        ({**OWN, "vendor": "intel"}, 1, "gpus.mine.vendor"),
    ],
)
def test_what_a_gpu_cannot_be(gpu: dict[str, Any], count: int, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario({key: value for key, value in gpu.items() if value is not None}, count=count)
    assert sentence in str(caught.value)


def test_the_vendor_is_told_or_seen() -> None:
    """AMD by word, by name or by architecture; the catalog's by their own column."""
    assert gpu_of(scenario(OWN)).vendor == "nvidia"
    assert gpu_of(scenario({**OWN, "vendor": "amd"})).vendor == "amd"
    assert gpu_of(scenario(OWN, "MI400X")).vendor == "amd"
    assert gpu_of(scenario({**OWN, "architecture": "CDNA4"})).vendor == "amd"
    assert gpu_of(scenario({"base": "MI300X", "memory_gib": 250})).vendor == "amd"


@pytest.mark.parametrize("name", [name for name in catalog.gpus() if name not in efficiencies()])
def test_nothing_is_assumed_without_a_word(name: str) -> None:
    """A GPU without efficiencies of its own says whose it is given."""
    model = catalog.models()["phi4-14b"]
    node = catalog.parse_configuration(f"1x{name}", network_gb_s=1.0)
    assert "assumed like " in RooflineSource().times(model, node).provenance


def test_the_plan_says_whose_figures_are_assumed() -> None:
    notes = bill_of(plan_scenario(scenario(OWN))).notes
    assert "no figures of their own, assumed to reach the same shares of the data sheet: 1xmine like L4" in notes

"""The packaged figures: complete, consistent, and each with its source."""

from __future__ import annotations

import math

import pytest

from coralopt import catalog
from coralopt.errors import CoraloptError


def test_gpus_have_usable_memory_and_a_source() -> None:
    """Placement fails on real nodes when memory is the number on the box."""
    gpus = catalog.gpus()
    assert set(gpus) >= {"T4", "V100", "A10G", "L4", "L40S", "A100-40", "A100", "H100", "H200", "B200"}
    assert gpus["A10G"].memory_gib == gpus["L4"].memory_gib == pytest.approx(22888 / 1024)
    assert gpus["L40S"].memory_gib == pytest.approx(45776 / 1024)
    assert all(gpu.source and gpu.memory_gib > 0 and gpu.bandwidth_gb_s > 0 for gpu in gpus.values())
    assert {name for name, gpu in gpus.items() if gpu.fp8_tflops is None} == {"T4", "V100", "A10G", "A100-40", "A100"}
    assert {name for name, gpu in gpus.items() if not gpu.nvlink} == {
        "T4",
        "A10G",
        "L4",
        "L40S",
        "RTX4090",
        "RTXPRO6000",
    }
    assert {name for name, gpu in gpus.items() if gpu.vendor == "amd"} == {"MI300X"}


def test_node_configurations_are_the_papers_twenty_first() -> None:
    """The paper's 20 configurations (section 6.1) keep their order: files and tables count on it."""
    names = list(catalog.node_configurations())
    assert names[:20] == [f"{n}x{gpu}" for gpu in ("L40S", "L4", "A10G", "A100", "H100") for n in (1, 2, 4, 8)]
    for name, node in catalog.node_configurations().items():
        assert name == node.name == catalog.configuration_name(node.count, node.gpu.name)
        assert node.memory_gib == node.gpu.memory_gib * node.count
    assert catalog.node_configurations()["4xL40S"].network_gb_s == 12.5


def test_networks_grow_with_the_node() -> None:
    """A larger node of one GPU type never has the slower network; a slip of a column would show here."""
    for gpu in {node.gpu.name for node in catalog.node_configurations().values()}:
        nodes = [catalog.node_configurations().get(f"{n}x{gpu}") for n in (1, 2, 4, 8)]
        rates = [node.network_gb_s for node in nodes if node is not None]
        assert len(rates) >= 3
        assert rates == sorted(rates)


def test_offers_name_known_things_and_flag_stand_ins() -> None:
    """A price without an instance must say what it is a share of; spot never costs more than on demand."""
    for (region, configuration), offer in catalog.offers().items():
        assert (offer.region, offer.configuration) == (region, configuration)
        assert region in catalog.regions()
        assert configuration in catalog.node_configurations()
        assert offer.priced_as
        assert 0 < offer.on_demand_usd_h < math.inf
        assert offer.spot_usd_h is None or 0 < offer.spot_usd_h < offer.on_demand_usd_h
        if offer.instance_type is None:
            assert "pro-rata" in offer.priced_as or "40 GB" in offer.priced_as
    assert catalog.regions() == ("us-east-2", "ap-northeast-2", "us-central1")
    assert catalog.offers()["us-east-2", "2xL40S"].instance_type is None
    assert catalog.offers()["us-east-2", "4xL40S"].instance_type == "g6e.12xlarge"


def test_no_offer_sells_40_gb_as_80_gb() -> None:
    """p4d nodes hold 40 GB A100s: naming one as the instance of an 80 GB node would make plans that do not fit."""
    assert all(offer.instance_type != "p4d.24xlarge" for offer in catalog.offers().values())


def test_us_central1_sells_what_the_paper_says() -> None:
    """Table 1 of the paper: its third region has no L40S and no A10G."""
    gpus = {configuration.split("x")[1] for region, configuration in catalog.offers() if region == "us-central1"}
    assert {"L4", "A100", "H100"} <= gpus
    assert not gpus & {"L40S", "A10G"}


@pytest.mark.parametrize("name", list(catalog.models()))
def test_model_sizes_add_up(name: str) -> None:
    """Layers times the parts of a layer plus the embedding is the total, to what norms and biases weigh."""
    model = catalog.models()[name]
    layer = model.attention_params_per_layer + model.dense_ffn_params_per_layer + model.experts * model.expert_params
    assert model.layers * layer + model.embedding_params == pytest.approx(model.total_params, rel=5e-4)
    assert model.source
    assert model.name == name
    assert (model.sliding_window is None) == (model.sliding_layers == 0)
    assert (model.experts == 0) == (model.experts_per_token == 0)
    assert catalog.find_model(model.hf_id.upper()) is model


def test_models_of_the_paper() -> None:
    """Table 3 of the paper: layer counts; and the published weights in BF16, or MXFP4 for gpt-oss."""
    models = catalog.models()
    layers = [models[name].layers for name in list(models)[:6]]
    assert list(models)[:6] == ["phi4-14b", "gpt-oss-20b", "qwen3-32b", "llama3-70b", "gpt-oss-120b", "qwen3-235b"]
    assert layers == [40, 24, 64, 80, 36, 94]
    assert sum(not model.measured_as for model in models.values()) == 22
    assert models["qwen3-235b"].weight_format == "bf16"
    assert models["gpt-oss-120b"].weight_format == "mxfp4"
    assert models["gpt-oss-20b"].weight_bytes == pytest.approx(13.8e9, rel=0.05)


def test_request_lengths_are_cited() -> None:
    """The data sets are others' work: the licence and the paper go with the figures."""
    lengths = catalog.request_lengths()
    assert (lengths["azure-code"].input_tokens, lengths["azure-code"].output_tokens) == (2047.8, 27.9)
    assert all("CC-BY-4.0" in entry.source for entry in lengths.values())


def test_the_catalog_cannot_be_changed() -> None:
    """The loaders are cached, so a caller that writes would change everybody's facts."""
    with pytest.raises(TypeError):
        catalog.gpus()["X"] = catalog.gpus()["L4"]  # type: ignore[index]


def test_parse_configuration() -> None:
    """Counts beyond the catalog are read with a network share of the nearest larger node, unless one is given."""
    assert catalog.parse_configuration("4xL40S") is catalog.node_configurations()["4xL40S"]
    assert catalog.parse_configuration("3xL40S").network_gb_s == 12.5 * 3 / 4
    assert catalog.parse_configuration("16xL4").network_gb_s == 25.0
    assert catalog.parse_configuration("2xT4", network_gb_s=4.0).gpu.name == "T4"
    for wrong in ("L40S", "0xL4", "-1xL4", "4xL40", "4 xL4", "", "2xT5"):
        with pytest.raises(CoraloptError, match=wrong or "no node configuration"):
            catalog.parse_configuration(wrong)

"""Prices of others become a catalog of one's own, and that the prices of a scenario."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt import load_scenario
from coralopt.catalog import json_members
from coralopt.catalog.price_files import catalog_text, read_prices, read_user_catalog
from coralopt.errors import CoraloptError, ScenarioError

RunCli = Callable[..., Any]
SKYPILOT = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
g6.xlarge,4,16,L4,1,,us-west-2,us-west-2a,0.8,0.3
g6.xlarge,4,16,L4,1,,us-west-2,us-west-2b,0.8,0.25
g6.2xlarge,8,32,L4,1,,us-west-2,us-west-2a,0.98,0.1
p5.48xlarge,192,2048,H100,8,,us-west-2,us-west-2a,55.04,
p4d.24xlarge,96,1152,A100,8,,us-west-2,us-west-2a,21.9,0.00
m5.large,2,8,,,,us-west-2,us-west-2a,0.096,0.03
vt1.24xlarge,96,192,U30,8,,us-west-2,us-west-2a,5.2,1.0
a3-highgpu-2g,52,468,,,,us-central1,us-central1-a,2.36502,0.9658
,,,H100,2,,us-central1,us-central1-a,8.40152,8.0026
g2-standard-24,24,96,,,,us-central1,us-central1-a,0.88075,
,,,L4,2,,us-central1,us-central1-a,1.12008,0.4686
"""
AWS = """"FormatVersion","v1.0"
"Disclaimer","none"
"SKU","TermType","PricePerUnit","Tenancy","Instance Type",\
"Operating System","Pre Installed S/W","CapacityStatus","GPU","Region Code"
"A","OnDemand","1.861","Shared","g6e.xlarge","Linux","NA","Used","1","us-east-2"
"B","OnDemand","2.4","Shared","g6e.xlarge","Windows","NA","Used","1","us-east-2"
"C","OnDemand","1.9","Dedicated","g6e.xlarge","Linux","NA","Used","1","us-east-2"
"D","Reserved","1.1","Shared","g6e.xlarge","Linux","NA","Used","1","us-east-2"
"E","OnDemand","0.1","Shared","m5.large","Linux","NA","Used","","us-east-2"
"""


def _azure(name: str, price: float, product: str = "NCads H100") -> dict[str, object]:
    return {
        "armRegionName": "eastus",
        "armSkuName": "Standard_ND96isr_H200_v5",
        "skuName": name,
        "productName": product,
        "retailPrice": price,
        "type": "Consumption",
    }


def test_skypilot_catalogs_with_hosts_and_gpus_apart(tmp_path: Path) -> None:
    """The cheapest type of the same GPUs with its cheapest zone; GCP's hosts and GPUs are added; A100 there has 40 GB."""
    (tmp_path / "vms.csv").write_text(SKYPILOT)
    prices, skipped = read_prices(tmp_path / "vms.csv", "2026-05-20")
    by = {(node.region, node.configuration): node for node in prices}
    assert set(by) == {
        ("us-west-2", "1xL4"),
        ("us-west-2", "8xH100"),
        ("us-west-2", "8xA100-40"),
        ("us-central1", "2xH100"),
        ("us-central1", "2xL4"),
    }
    small = by["us-west-2", "1xL4"]
    assert (small.instance_type, small.on_demand_usd_h, small.spot_usd_h) == ("g6.xlarge", 0.8, 0.25)
    assert (small.date, small.source) == ("2026-05-20", "vms.csv")
    assert by["us-west-2", "8xH100"].spot_usd_h is None
    assert by["us-west-2", "8xA100-40"].spot_usd_h is None  # 0.00: there is none
    assert by["us-central1", "2xH100"].on_demand_usd_h == pytest.approx(10.76654)
    assert by["us-central1", "2xL4"].spot_usd_h is None
    assert skipped == {"8xU30": 1}


def test_the_catalog_of_an_installed_skypilot(tmp_path: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest version of one cloud; clouds that are not there are said."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "`sky check`" in run_cli("catalog", "import", "skypilot:aws", "-o", "own.csv").stderr
    for version, price in (("v9", "0.9"), ("v10", "0.7")):
        (tmp_path / ".sky" / "catalogs" / version / "aws").mkdir(parents=True)
        rows = SKYPILOT.replace("0.8,", f"{price},")
        (tmp_path / ".sky" / "catalogs" / version / "aws" / "vms.csv").write_text(rows)
    assert run_cli("catalog", "import", "skypilot:aws", "-o", "own.csv").returncode == 0
    small = next(node for node in read_user_catalog(tmp_path / "own.csv") if node.configuration == "1xL4")
    assert small.on_demand_usd_h == 0.7
    refused = run_cli("catalog", "import", "skypilot:azure", "-o", "own.csv")
    assert refused.returncode == 2
    assert "no catalog of azure; it has aws" in refused.stderr


def test_price_lists_of_aws_and_azure(tmp_path: Path) -> None:
    """Linux, shared, on demand; spot prices of Azure are the same size under another name."""
    (tmp_path / "index.csv").write_text(AWS)
    (node,) = read_prices(tmp_path / "index.csv")[0]
    assert (node.region, node.configuration, node.on_demand_usd_h) == ("us-east-2", "1xL40S", 1.861)
    items = [_azure("ND96isr", 84.8), _azure("ND96isr Spot", 30.0), _azure("ND96isr", 99.0, "Windows")]
    (tmp_path / "azure.json").write_text(json.dumps({"Items": items}))
    (node,) = read_prices(tmp_path / "azure.json")[0]
    assert (node.region, node.configuration, node.instance_type) == ("eastus", "8xH200", "Standard_ND96isr_H200_v5")
    assert (node.on_demand_usd_h, node.spot_usd_h) == (84.8, 30.0)
    other = {**items[0], "armSkuName": "Standard_NC80adis_H100_v5"}
    (tmp_path / "azure.json").write_text(json.dumps([{"Items": items}, {"Items": [other]}]))
    assert {node.configuration for node in read_prices(tmp_path / "azure.json")[0]} == {"8xH200", "2xH100"}


def _aws_product(kind: str, usd_h: str, currency: str = "USD", **attributes: str) -> dict[str, Any]:
    """A product in the form of AWS's price list, with its price on demand."""
    attributes = {"tenancy": "Shared", "operatingSystem": "Linux", "preInstalledSw": "NA", **attributes}
    attributes = {"marketoption": "OnDemand", "capacitystatus": "Used", "instanceType": kind, **attributes}
    price = {"priceDimensions": {"x": {"unit": "Hrs", "pricePerUnit": {currency: usd_h}}}}
    return {
        "product": {"attributes": {"regionCode": "us-east-1", "gpu": "8", **attributes}},
        "terms": {"OnDemand": {"y": price}},
    }


def test_price_list_of_aws_as_json(tmp_path: Path) -> None:
    """The bulk list, and answers of ``get-products``; capacity blocks stand there with a price of 0."""
    products = [
        _aws_product("p5en.48xlarge", "63.296"),
        _aws_product("p4d.24xlarge", "21.9642"),
        _aws_product("p4d.24xlarge", "0.0000000000", marketoption="CapacityBlock"),
        _aws_product("p4d.24xlarge", "1.0", tenancy="Dedicated"),
        _aws_product("p6-b200.48xlarge", "0.0"),
        _aws_product("m5.large", "0.096", gpu="NA"),
    ]
    bulk = {
        "offerCode": "AmazonEC2",
        "products": {str(number): product["product"] for number, product in enumerate(products)},
        "terms": {"OnDemand": {str(number): product["terms"]["OnDemand"] for number, product in enumerate(products)}},
    }
    for document in (bulk, {"PriceList": [json.dumps(product) for product in products]}, {"PriceList": products}):
        (tmp_path / "index.json").write_text(json.dumps(document))
        nodes, _ = read_prices(tmp_path / "index.json")
        prices = {(node.region, node.configuration): node.on_demand_usd_h for node in nodes}
        assert prices == {("us-east-1", "8xH200"): 63.296, ("us-east-1", "8xA100-40"): 21.9642}
    (tmp_path / "index.json").write_text(json.dumps({"PriceList": [_aws_product("p5.48xlarge", "400", "CNY")]}))
    with pytest.raises(CoraloptError, match=r"AWS.*p5\.48xlarge: a price in CNY"):
        read_prices(tmp_path / "index.json")


def test_capacity_blocks_of_aws_are_not_free_nodes(tmp_path: Path) -> None:
    """The list in CSV has a row of a capacity block, paid for ahead, beside the one on demand."""
    *head, row = AWS.splitlines()[:4]
    head[-1] += ',"MarketOption"'
    rows = [row + ',"OnDemand"', row.replace('"1.861"', '"0.0000000000"') + ',"CapacityBlock"']
    (tmp_path / "index.csv").write_text("\n".join([*head, *rows]) + "\n")
    (node,) = read_prices(tmp_path / "index.csv")[0]
    assert node.on_demand_usd_h == 1.861


def test_azure_sells_windows_under_two_words_and_cloud_services(tmp_path: Path) -> None:
    """Prices of 0 are placeholders; none of these is the price of a Linux machine."""
    items = [_azure("ND96isr", 84.8)]
    items += [
        {**_azure("ND96isr", 1.0), "productName": f"NDsr H200 v5 {word}"} for word in ("Srs Win", "Cloud Services")
    ]
    items += [_azure("ND96isr", 0), _azure("ND96isr Spot", 0)]
    (tmp_path / "azure.json").write_text(json.dumps({"Items": items}))
    (node,) = read_prices(tmp_path / "azure.json")[0]
    assert (node.on_demand_usd_h, node.spot_usd_h) == (84.8, None)


def test_types_that_the_catalog_lists_need_no_gpu_column(tmp_path: Path) -> None:
    """Regions get names that scenarios can have."""
    rows = "g6e.12xlarge,2.1,10.5\nStandard_ND96amsr_A100_v4,9,32.7\na3-highgpu-2g,5,10\nx9.metal,1,2\n"
    text = "instance_type,spot_usd_h,usd_h,region\n" + rows.replace("\n", ',"South Korea, KR"\n')
    (tmp_path / "own.csv").write_text(text)
    prices, skipped = read_prices(tmp_path / "own.csv")
    assert {(node.configuration, node.on_demand_usd_h) for node in prices} == {
        ("4xL40S", 10.5),
        ("8xA100", 32.7),
        ("2xH100", 10),
    }
    assert {node.region for node in prices} == {"South-Korea-KR"}
    assert skipped == {"x9.metal": 1}


def _sku(description: str, usd: str, *, unit: str = "h", currency: str = "USD", **other: object) -> dict[str, object]:
    units, _, decimals = usd.partition(".")
    price = {"units": units, "nanos": int(decimals.ljust(9, "0")), "currencyCode": currency}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    usage = "Preemptible" if "Spot" in description else "OnDemand"
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": ["us-central1", "us-east1"],
        "pricingInfo": [{"pricingExpression": expression}],
        **other,
    }


#: In the form of Google Cloud's list; the prices of G2 are those of us-central1.
SKUS = [
    _sku("G2 Instance Core running in Americas", "0.024988"),
    _sku("G2 Instance Ram running in Americas", "0.002927", unit="GiBy.h"),
    _sku("Nvidia L4 GPU running in Americas", "0.56004"),
    _sku("A2 Instance Core running in Americas", "0.031611"),
    _sku("A2 Instance Ram running in Americas", "0.004237", unit="GiBy.h"),
    _sku("Nvidia Tesla A100 80GB GPU running in Americas", "3.9279"),
    _sku("Commitment v1: Nvidia L4 GPU running in Americas for 1 Year", "0.35"),
    _sku("Nvidia L4 GPU Virtual Workstation running in Americas", "0.2"),
    _sku("N1 Predefined Instance Core running in Americas", "0.031611"),
]


def test_skus_of_google_cloud_are_added_up_to_machines(tmp_path: Path) -> None:
    """Cores, GiB and GPUs; what has no price of every part is left out. g2-standard-4 costs what SkyPilot's catalog says."""
    spot = [
        _sku("Spot Preemptible G2 Instance Core running in Americas", "0.01"),
        _sku("Spot Preemptible G2 Instance Ram running in Americas", "0.001", unit="GiBy.h"),
        _sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", "0.2", serviceRegions=["us-east1"]),
    ]
    (tmp_path / "page.json").write_text(json.dumps({"skus": SKUS + spot, "nextPageToken": ""}))
    by = {(node.region, node.configuration): node for node in read_prices(tmp_path / "page.json")[0]}
    assert set(by) == {
        (region, f"{count}x{gpu}")
        for region in ("us-central1", "us-east1")
        for gpu in ("L4", "A100")
        for count in (1, 2, 4, 8)
    }
    small = by["us-central1", "1xL4"]
    assert (small.instance_type, small.spot_usd_h) == ("g2-standard-4", None)
    assert small.on_demand_usd_h == pytest.approx(0.70683, abs=1e-5)
    assert by["us-central1", "8xL4"].on_demand_usd_h == pytest.approx(8.00333, abs=2e-4)
    assert by["us-east1", "1xL4"].spot_usd_h == pytest.approx(0.2 + 4 * 0.01 + 16 * 0.001)
    assert by["us-central1", "1xA100"].on_demand_usd_h == pytest.approx(5.02752, abs=1e-4)
    (tmp_path / "all.json").write_text(json.dumps(SKUS))
    assert len(read_prices(tmp_path / "all.json")[0]) == len(by)
    (tmp_path / "euros.json").write_text(json.dumps([_sku("Nvidia L4 GPU running in Iowa", "0.5", currency="EUR")]))
    with pytest.raises(CoraloptError, match="a price in EUR"):
        read_prices(tmp_path / "euros.json")


def test_skus_of_newer_machines_and_other_ways_to_pay(tmp_path: Path) -> None:
    """Names as Google Cloud's list has them; reservations, scheduled workloads and prices of 0 are no price on demand."""
    skus = [
        _sku("A3Plus Instance Core running in Americas", "0.026924"),
        _sku("A3Plus Instance Ram running in Americas", "0.002344", unit="GiBy.h"),
        _sku("Nvidia H100 80GB Plus GPU running in Americas", "10.344276"),
        _sku("Nvidia H100 Mega 80GB GPU attached to DWS Defined Duration VMs running in Americas", "4.423936"),
        _sku("Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode", "4.841121"),
        _sku("A3Ultra Instance Core running in Americas", "0.03"),
        _sku("A3Ultra Instance Ram running in Americas", "0.003", unit="GBy.h"),
        _sku("H200 141GB GPU running in Americas", "9.3117"),
        _sku("H200 141GB GPU running in Americas", "0.0"),
        _sku("A4 Nvidia B200 (1 gpu slice) running in Americas", "16.11"),
        {
            **_sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", "4.9542"),
            "category": {"usageType": "OnDemand"},
        },
        _sku("G4 Instance Core running in Americas", "0.04891"),
        _sku("G4 Instance Ram running in Americas", "0.00587", unit="GiBy.h"),
        _sku("RTX 6000 96GB running in Americas", "1.09565"),
        _sku("1/8 vGPU no lssd running in Americas", "0.64688"),
    ]
    (tmp_path / "pages.json").write_text(json.dumps([{"skus": skus[:7]}, {"skus": skus[7:]}]))
    by = {node.configuration: node for node in read_prices(tmp_path / "pages.json")[0] if node.region == "us-east1"}
    assert by["8xH100"].instance_type == "a3-megagpu-8g"
    assert by["8xH100"].on_demand_usd_h == pytest.approx(92.7424, abs=1e-3)
    ram = 2952 * 0.003 * 2**30 / 1e9
    assert by["8xH200"].on_demand_usd_h == pytest.approx(8 * 9.3117 + 224 * 0.03 + ram)
    assert (by["8xB200"].on_demand_usd_h, by["8xB200"].spot_usd_h) == (128.88, 39.6336)
    assert by["1xRTXPRO6000"].on_demand_usd_h == pytest.approx(4.49993)
    assert set(by) == {"8xH100", "8xH200", "8xB200", *(f"{count}xRTXPRO6000" for count in (1, 2, 4, 8))}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"skus": [{"description": "Nvidia L4 GPU running in Iowa"}]}', "Google Cloud's SKUs: no 'category'"),
        ("[1]", "Google Cloud's SKUs: .*not"),
        ("[]", "no price of a node"),
        ("a,b\n1,2\n", "no column region"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,1,cheap\n", "line 2"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,Z80,1,1\n", "left out: 1xZ80"),
        ("{}", "Azure"),
        (json.dumps({"Items": [{**_azure("ND96isr", 80), "currencyCode": "EUR"}]}), "ND96isr_H200_v5: a price in EUR"),
        ('{"Items":' + "[" * 100_000, "Azure.*nested too deeply"),
        ("", "no column"),
        ("x" * 200_000, "not a CSV file"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,inf,1\n", "line 2: inf is neither"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,1,-1\n", "line 2: -1 is neither"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,1,nan\n", "line 2: nan is neither"),
        ("region,instance_type,gpu,gpus,usd_h,quota\nx,y,L4,1,1,-5\n", "line 2: -5 is no quota"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,1.5,1\n", "line 2: 1.5 is no number of GPUs; give a whole one"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,0.5,1\n", "left out: 0xL4"),
        ("region,instance_type,gpu,gpus,usd_h,usd_h\nx,y,L4,1,1,2\n", "line 1: the column 'usd_h' is there twice"),
        ("region,instance_type,gpu,gpus,usd_h,qota\nx,y,L4,1,1,2\n", r"'qota' \(did you mean 'quota'\?\)"),
        ("region,instance_type,gpu,gpus,usd_h,spot_usdh\nx,y,L4,1,1,2\n", "did you mean 'spot_usd_h'"),
        ("region,instance_type,gpu,gpus,usd_h,quota\nx,y,L4,1,1,4.5\n", "line 2: 4.5 is no quota; give a whole number"),
        ("region,instance_type,gpu,gpus,usd_h\n", "no prices below the header"),
        ("region;instance_type;gpu;gpus;usd_h\nx;y;L4;1;$30.5\n", r"line 2: \$30.5 is neither a price"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,1,1_030.5\n", "line 2: 1_030.5 is neither a price"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,\u0661,1\n", "line 2: \u0661 is neither a price nor a count"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4\n", "line 2: 3 fields where the header has 5"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y,L4,1,2,3\n", "line 2: 6 fields where the header has 5"),
        ("region,instance_type,gpu,gpus,usd_h\nx,y\0z,L4,1,2\n", "no instance type"),
        ('{"Items": [1]}', "an entry of another form"),
        ("region,instance_type,gpu,gpus,usd_h\nx,,L4,two,1\nx,y,L4,1,1\n", "line 2.*two"),
        ("region,instance_type,gpu,gpus,usd_h\nx,,L4,1,dear\nx,g2-standard-4,,,1\n", "line 2.*dear"),
        (AWS.replace('"1.861"', '"dear"'), "AWS.*dear"),
        (AWS.replace("Region Code", "Place"), "AWS.*Region Code"),
    ],
)
def test_what_is_no_price_file_is_said(tmp_path: Path, text: str, words: str) -> None:
    """Which column or line, and which files are known."""
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(CoraloptError, match=words):
        read_prices(tmp_path / "p.csv")


_COLUMNS = "region,configuration,instance_type,on_demand_usd_h,spot_usd_h,quota,date,source\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns are others"),
        ("[]", "columns are others"),
        ("x" * 200_000, "field larger"),
        (_COLUMNS + "r,1xL4,t,nan,,,,\n", "nan is neither"),
        (_COLUMNS + "r,1xL4,t,1,,-3,,\n", "-3 is no quota"),
    ],
)
def test_what_is_no_catalog_of_prices_is_said(tmp_path: Path, text: str, words: str) -> None:
    """A file without the columns, an empty one too, is none: prices would be missing without a word."""
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(
        CoraloptError, match=rf"own\.csv: no catalog of prices: .*{words}.*`coralopt catalog import` writes one"
    ):
        read_user_catalog(tmp_path / "own.csv")


def test_configurations_of_ones_own_stay_in_a_catalog(tmp_path: Path) -> None:
    """Nodes that only a scenario describes come last in their region."""
    (tmp_path / "own.csv").write_text(_COLUMNS + "r,7xFOO,t,1,,,,\nr,1xL4,g,0.8,,,,\n")
    lines = catalog_text(read_user_catalog(tmp_path / "own.csv")).splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["1xL4", "7xFOO"]


def test_scenarios_take_their_prices_from_it(run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported prices stand in the scenario itself, so that a plan of it verifies anywhere; its own words win."""
    monkeypatch.setenv("CORALOPT_DATA", str(tmp_path / "data"))
    own = "region,instance_type,gpu,gpu_count,usd_h,spot_usd_h,quota\nmars-1,m.small,L40S,1,1.5,0.5,6\n"
    (tmp_path / "own.csv").write_text(own + "mars-1,m.large,L40S,4,5.5,,2\nmars-1,m.h,H100,8,40,,\n")
    (tmp_path / "vms.csv").write_text(SKYPILOT)
    made = run_cli("catalog", "import", "own.csv", "vms.csv", "--date", "2026-01-02", "--source", "a contract")
    assert made.returncode == 0, made.stderr
    assert "8 prices" in made.stderr
    (tmp_path / "own.csv").write_text(own.replace("1.5", "1.4"))
    assert "which has 8" in run_cli("catalog", "import", "own.csv", "--date", "2026-02-02").stderr
    kept = {node.configuration: node for node in read_user_catalog(tmp_path / "data" / "coralopt" / "prices.csv")}
    assert (kept["1xL40S"].date, kept["4xL40S"].source) == ("2026-02-02", "a contract")
    text = """
models:
  gpt-oss-20b: {slo: {ttft_ms: 1500, tpot_ms: 60, attainment: mean}, demand: {requests_s: 1, dataset: azure-conv}}
pool:
  catalog: user
  regions:
    mars-1: {configurations: {1xL40S: {}, 4xL40S: 1, 8xH100: {available: 1, price_usd_h: 30}}}
    us-west-2: {available: 3, configurations: all}
"""
    (tmp_path / "s.yaml").write_text(text)
    scenario = load_scenario(tmp_path / "s.yaml")
    names = [item.name for item in scenario.configurations]
    row = dict(zip(names, zip(scenario.availability[0], scenario.price_usd_h[0], strict=True), strict=True))
    assert row["1xL40S"] == (6, 1.4)
    assert row["4xL40S"] == (1, 5.5)
    assert row["8xH100"] == (1, 30)
    assert scenario.availability[1, names.index("1xL4")] == 3
    assert scenario.instance_types[1][names.index("8xH100")] == "p5.48xlarge"
    assert "catalog" not in scenario.document["pool"]
    (tmp_path / "s.yaml").write_text(text.replace("us-west-2", "us-west-9"))
    with pytest.raises(ScenarioError, match="did you mean 'us-west-2'"):
        load_scenario(tmp_path / "s.yaml")
    (tmp_path / "s.yaml").write_text(text.replace("user", "nosuch.csv"))
    with pytest.raises(ScenarioError, match="No such file"):
        load_scenario(tmp_path / "s.yaml")


def test_real_files_are_read() -> None:
    """Files of prices beside the repository, where there are some: every price is a number, and well known ones stand."""
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "prices"
    if not folder.is_dir():
        pytest.skip("no price files here")
    prices, skipped = read_prices(folder / "instances.csv")
    by = {(node.region, node.configuration): node for node in prices}
    assert by["us-east-2", "1xL40S"].instance_type == "g6e.xlarge"
    assert by["us-east-2", "8xH100"].on_demand_usd_h == 55.04
    with (folder / "instances.csv").open() as stream:
        assert len(prices) + sum(skipped.values()) <= sum(1 for _ in csv.DictReader(stream))
    prices, _ = read_prices(folder / "gcp_us-central1_raw_rows.csv")
    assert {node.region for node in prices} == {"us-central1"}
    assert any(node.instance_type == "a2-ultragpu-8g" for node in prices)


@settings(max_examples=80)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "in", "terms"]), inner),
        max_leaves=40,
    ),
    st.sampled_from([None, 2]),
    st.sampled_from([300, 5000]),
)
def test_members_of_a_stream_are_those_of_the_whole(document: object, indent: int | None, piece: int) -> None:
    """Whatever is cut by the end of a piece: texts, numbers, white space."""

    def entered(place: tuple[str | int, ...]) -> bool:
        return not place or place[-1] in ("in", "terms") or (len(place) == 1 and isinstance(place[0], int))

    def whole(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], object]]:
        inner = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inner, dict) and inner and entered(place):
            for key, item in inner.items():
                yield from whole(item, (*place, key))
        else:
            yield place, value

    text = "\n" + json.dumps(document, indent=indent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_members, "_PIECE", piece)
        assert list(json_members.members(io.StringIO(text), ("in", "terms"))) == list(whole(document))
        with pytest.raises(ValueError, match=r"expect|Expect|Extra|Unterminated|Invalid"):
            list(json_members.members(io.StringIO(text[:-1] + "?" if text[-1] in "]}" else "?"), ("in", "terms")))


def test_aws_list_of_gigabytes_is_read_in_pieces(tmp_path: Path) -> None:
    """Products, on-demand terms and, most of the file, reserved ones: memory holds what is wanted of them and one piece."""
    product = _aws_product("m5.large", "0.096", gpu="NA")
    products = {f"sku{number}": product["product"] for number in range(5000)}
    products["gpu"] = _aws_product("p5.48xlarge", "55.04")["product"]
    terms = {sku: _aws_product("x", "55.04" if sku == "gpu" else "0.096")["terms"]["OnDemand"] for sku in products}
    reserved = {sku: {f"{year}yr": "x" * 2000 for year in (1, 3)} for sku in products}
    bulk = {"products": products, "terms": {"OnDemand": terms, "Reserved": reserved}}
    (tmp_path / "index.json").write_text(json.dumps(bulk, indent=2))
    del products, terms, reserved, bulk
    size = (tmp_path / "index.json").stat().st_size
    assert size > 20e6
    read_prices(tmp_path / "index.json")
    tracemalloc.start()
    (node,) = read_prices(tmp_path / "index.json")[0]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (node.configuration, node.on_demand_usd_h) == ("8xH100", 55.04)
    assert most < size / 3


def test_azure_list_of_all_services(tmp_path: Path) -> None:
    """Other services name sizes of virtual machines, too: what they cost is a fee beside the machine."""
    fee = {**_azure("ND96isr", 0.5), "serviceName": "Azure Machine Learning"}
    machine = {**_azure("ND96isr", 84.8), "serviceName": "Virtual Machines"}
    page = {"BillingCurrency": "USD", "Items": [fee, machine], "NextPageLink": None, "Count": 2}
    (tmp_path / "azure.json").write_text(json.dumps([page, {**page, "Items": []}]))
    (node,) = read_prices(tmp_path / "azure.json")[0]
    assert node.on_demand_usd_h == 84.8

"""The catalog on the command line: every row, a search, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from coralopt import catalog

RunCli = Callable[..., Any]
WHOLE = {"models": len(catalog.models()), "gpus": len(catalog.gpus()), "offers": len(catalog.offers())}


@pytest.mark.parametrize("what", WHOLE)
def test_everything_is_listed(what: str, run_cli: RunCli) -> None:
    done = run_cli("catalog", what)
    assert done.returncode == 0
    assert f": {WHOLE[what]}" in done.stdout.splitlines()[0]
    rows = json.loads(run_cli("catalog", what, "--json").stdout)
    assert len(rows) == WHOLE[what]


def test_a_search_keeps_rows_with_every_word(run_cli: RunCli) -> None:
    rows = json.loads(run_cli("catalog", "offers", "US-east-2", "h100", "--json").stdout)
    assert {row["region"] for row in rows} == {"us-east-2"}
    assert [row["configuration"] for row in rows] == ["1xH100", "2xH100", "4xH100", "8xH100"]
    (gpu,) = json.loads(run_cli("catalog", "gpus", "mi300x", "--json").stdout)
    assert (gpu["vendor"], gpu["nodes"]) == ("amd", ["1xMI300X", "2xMI300X", "4xMI300X", "8xMI300X"])
    (model,) = json.loads(run_cli("catalog", "models", "meta-llama/llama-3.1-8b-instruct", "--json").stdout)
    assert (model["name"], model["total_params"]) == ("llama3.1-8b-instruct", 8_030_257_152)


def test_a_search_for_nothing_says_so(run_cli: RunCli) -> None:
    done = run_cli("catalog", "gpus", "h100", "amd")
    assert done.returncode == 2
    assert done.stderr == "error: no GPUs with 'h100' and 'amd'; without words all are listed\n"

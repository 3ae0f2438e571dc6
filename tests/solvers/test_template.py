"""The back end that solvers/README.md teaches passes the compliance suite, text as printed."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coralopt.testing import compliance

README = Path(__file__).resolve().parents[2] / "solvers" / "README.md"


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The first Python block as a module that other processes can import, too."""
    folder = tmp_path_factory.mktemp("template")
    code = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)[0]
    assert code.count("\n") < 50, "a template is short"
    (folder / "template_backend.py").write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        yield importlib.import_module("template_backend").MyBackend()


@pytest.mark.parametrize("item", compliance.cases(), ids=[item.name for item in compliance.cases()])
def test_the_template_is_compliant(backend: Any, item: compliance.Case) -> None:
    """Whoever copies it starts from something right."""
    outcome = compliance.run_case(item, backend)
    if outcome.status == "skipped":
        pytest.skip(outcome.message)
    assert outcome.status == "passed", outcome.message


def test_the_readme_counts_right() -> None:
    """Numbers in prose go stale."""
    from coralopt.testing.wrong_backends import LIARS

    text = README.read_text(encoding="utf-8")
    assert f"The suite has {len(compliance.cases())} cases" in text
    assert f"against {len(LIARS)} back ends that are wrong" in text

"""Write the golden files anew; read the difference before you commit it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from runtime_plans import golden_plan  # noqa: E402
from test_lowering import golden_launch  # noqa: E402
from test_targets import files, golden_names  # noqa: E402

(HERE / "golden" / "launch.json").write_text(json.dumps(golden_launch().to_document(), indent=1) + "\n")
for target in ("shell", "skypilot", "kubernetes", "kubernetes-led"):
    texts = files(target, golden_plan())
    folder = HERE / "golden" / target
    shutil.rmtree(folder, ignore_errors=True)
    for name in golden_names(target, texts):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(texts[name])

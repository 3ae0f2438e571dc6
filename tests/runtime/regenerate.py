"""Write the golden files anew; read the difference before you commit it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from test_lowering import golden_launch  # noqa: E402

(HERE / "golden" / "launch.json").write_text(json.dumps(golden_launch().to_document(), indent=1) + "\n")

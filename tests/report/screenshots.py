"""Pictures of the pages for the documents: ``make screenshots``. Needs a Chromium on the path, and the extra ``plot``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from coralopt import Plan, load_scenario

sys.path.insert(0, str(Path(__file__).parent))

from fleet import FLEET_KEY, ask, running_fleet

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
#: Name of the picture, the commands that make its page, and the height of the picture, pixels.
PAGES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    (
        "plan",
        ("plan core-slo -o core.json", "report core.json -o plan.html"),
        1060,
    ),
    (
        "comparison",
        (
            "compare core --planners coral,homo,cauchy,melange,single-best --simulate -o plans",
            "report plans/comparison.json -o comparison.html",
        ),
        760,
    ),
    (
        "epochs",
        ("adapt core --demand demand.csv --penalty 0.1 -o horizon", "report horizon -o epochs.html"),
        900,
    ),
    (
        "sweep",
        (
            "sweep core --vary models.qwen3-32b.slo.tpot_ms=60:120:20 --vary demand.all=0.5,1,2 -o sweep.parquet",
            "report sweep.parquet -o sweep.html",
        ),
        700,
    ),
)
#: Share of core's demand in each of eight epochs.
DEMAND = (1.0, 1.2, 1.6, 2.2, 2.4, 1.8, 1.2, 0.8)


def picture_of_fleet(folder: Path, browser: str) -> None:
    """The live page of core's plan with small servers behind it, after some requests."""
    subprocess.run([sys.executable, "-m", "coralopt", "plan", "core", "-o", "core.json"], cwd=folder, check=True)
    plan = Plan.load(folder / "core.json")
    with running_fleet(folder, plan) as (url, _):
        for number in range(120):
            ask(url, plan.demands[number % len(plan.demands)].model)
        take_picture(browser, url.replace("://", f"://me:{FLEET_KEY}@") + "/fleet", "fleet", 860)


def take_picture(browser: str, address: str, name: str, height: int) -> None:
    """A picture of the top of a page, 1,200 pixels wide, among the documents' pictures."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size=1200,{height}")
    picture = IMAGES / f"page-{name}.png"
    subprocess.run([browser, *options, f"--screenshot={picture}", address], check=True, capture_output=True)
    # A page has few colours; the picture is a quarter of the size with as many.
    Image.open(picture).convert("RGB").quantize(96).save(picture, optimize=True)
    print(f"{picture} written")


def main() -> None:
    """Make every page and its picture."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium on the path")
    chosen = sys.argv[1:] or [*(name for name, _, _ in PAGES), "fleet"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = [
            f"{epoch},{phase.model.name},{phase.phase},{phase.demand_tokens_s * share}"
            for epoch, share in enumerate(DEMAND)
            for phase in load_scenario("core").model_phases
        ]
        (folder / "demand.csv").write_text("\n".join(["epoch,model,phase,tokens_s", *rows]) + "\n")
        for name, commands, height in PAGES:
            if name not in chosen:
                continue
            for command in commands:
                subprocess.run([sys.executable, "-m", "coralopt", *command.split()], cwd=folder, check=True)
            take_picture(browser, (folder / f"{name}.html").as_uri(), name, height)
        if "fleet" in chosen:
            picture_of_fleet(folder, browser)


if __name__ == "__main__":
    main()

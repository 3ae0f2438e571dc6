"""``python -m coralopt.testing.compliance NAME``: the suite as a table; exit code 1 when a case fails."""

from __future__ import annotations

import sys

from rich.console import Console

from coralopt.errors import CoraloptError
from coralopt.report.table import Column, make_table
from coralopt.testing.compliance import run


def main(names: list[str]) -> int:
    """Run the suite against every solver named."""
    if not names:
        print("usage: python -m coralopt.testing.compliance NAME...", file=sys.stderr)
        return 2
    failed = 0
    for name in names:
        try:
            outcomes = run(name)
        except CoraloptError as error:
            print(error, file=sys.stderr)
            return 4
        rows = [(item.case.name, item.status, item.seconds, item.message[:200]) for item in outcomes]
        heads = ("case", "outcome", Column("s", "{:.2f}"), Column("message"))
        Console().print(make_table(f"Compliance of {name}", heads, rows))
        counts = {status: sum(o.status == status for o in outcomes) for status in ("passed", "failed", "skipped")}
        print(f"{name}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        failed += counts["failed"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

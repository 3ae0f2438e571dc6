"""``coralopt solvers``: what is installed and what it can do."""

from __future__ import annotations

from coralopt.cli.console import JsonFlag
from coralopt.cli.present import CommandOutput, present


def solvers(json_output: JsonFlag = False) -> None:
    """List the solver plugins: installed or not, version, licence, capabilities, what to install."""
    from coralopt.report.table import make_table
    from coralopt.solving import solver_listing

    rows = solver_listing()
    heads = [head.replace("_", " ") for head in rows[0]] if rows else []
    cells = [[", ".join(value) if isinstance(value, list) else str(value) for value in row.values()] for row in rows]
    present(CommandOutput(rows, [make_table("Solvers", heads, cells)]), json_output)

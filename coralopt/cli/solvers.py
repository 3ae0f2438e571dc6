"""``coralopt solvers``: what is installed and what it can do."""

from __future__ import annotations

from coralopt.cli.console import JsonFlag, print_json, print_rich


def solvers(json_output: JsonFlag = False) -> None:
    """List the solver plugins: installed or not, version, licence, capabilities, what to install."""
    from rich.table import Table

    from coralopt.solving import solver_listing

    rows = solver_listing()
    if json_output:
        print_json(rows)
        return
    table = Table(title="Solvers")
    for head in rows[0] if rows else ():
        table.add_column(head.replace("_", " "))
    for row in rows:
        table.add_row(*(", ".join(value) if isinstance(value, list) else str(value) for value in row.values()))
    print_rich(table)

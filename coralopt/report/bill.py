"""The bill of a plan as tables and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, fields

from rich.console import Group
from rich.table import Table
from rich.text import Text

from coralopt.plan.bill import Bill, BillLine
from coralopt.report.table import Column, make_table, numbers

#: How rent becomes a price of tokens.
ATTRIBUTION = (
    "USD/Mtok is USD per million tokens: input tokens pay for prefill instances, output tokens for decode (or mixed) ones, "
    "idle capacity included"
)
_MONEY, _MONTHLY = "{:,.4f}", "{:,.0f}"


def bill_table(bill: Bill, most: int | None = None, below: Sequence[str] = ()) -> Table:
    """What to rent; the ``most`` dearest lines, or all; and lines of words below.

    The class of supply has a column only where there is more than one.
    """
    classes = len({line.supply for line in bill.lines}) > 1
    shown = bill.lines[:most]
    left = len(bill.lines) - len(shown)
    return make_table(
        "What to rent",
        [
            *("region", "instance type", "GPUs", *(["class"] * classes)),
            *(*numbers("{:,}", "nodes"), *numbers(_MONEY, "USD/h each", "USD/h"), *numbers(_MONTHLY, "USD/month")),
        ],
        [
            (
                *(line.region, line.instance_type, f"{line.gpus}x{line.gpu}", *([line.supply] * classes)),
                *(line.nodes, line.usd_h_each, line.usd_h, line.usd_month),
            )
            for line in shown
        ],
        footer=(
            *("rent and egress", "", "", *([""] * classes), sum(line.nodes for line in bill.lines)),
            *("", bill.usd_h, bill.usd_month),
        ),
        caption="\n".join([*([f"{left:,} more lines"] if left else []), *below]) or None,
    )


def model_table(bill: Bill, most: int | None = None) -> Table:
    """What each model costs; the ``most`` dearest where there are more, or all."""
    models = list(bill.models)
    if most is not None and len(models) > most:
        models = sorted(models, key=lambda model: -model.usd_h)[:most]
    left = len(bill.models) - len(models)
    columns: list[Column | str] = ["model", *numbers(_MONEY, "USD/h"), *numbers(_MONTHLY, "USD/month")]
    columns += numbers(_MONEY, "USD/Mtok input", "USD/Mtok output")
    rows = [(m.model, m.usd_h, m.usd_month, m.input_usd_mtok, m.output_usd_mtok) for m in models]
    return make_table("Cost by model", columns, rows, caption=f"{left:,} more models" if left else None)


def bill_view(bill: Bill, promise: Sequence[str] = ()) -> Group:
    """The whole bill, with lines about the share of requests within SLO in its first table."""
    notes = (Text(f"- {note}") for note in (bill.against, ATTRIBUTION, *bill.notes))
    return Group(bill_table(bill, below=promise), model_table(bill), *notes)


def bill_csv(bill: Bill) -> str:
    """The lines as CSV, a column each field of :class:`coralopt.plan.bill.BillLine`."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(field.name for field in fields(BillLine))
    for line in bill.lines:
        # Sums of prices with four digits: what is beyond six is the computer's.
        rows.writerow(round(value, 6) if isinstance(value, float) else value for value in astuple(line))
    return text.getvalue()

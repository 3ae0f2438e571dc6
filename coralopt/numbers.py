"""Numbers as files write them."""

from __future__ import annotations


def read_number(value: object) -> float:
    """A number, or the text of one in ASCII digits.

    ``float`` alone also takes ``1_000``, as Python's own source has it, and the digits of other scripts: in a table they
    are a slip or another notation, and what was meant is not known.

    Raises:
        TypeError: Neither a number nor a text.
        ValueError: Not the text of a number, or not in ASCII digits alone.
        OverflowError: A whole number beyond what a float holds.
    """
    if isinstance(value, str) and ("_" in value or not (value.isascii() or value.strip().isascii())):
        raise ValueError(f"{value!r} is not written in plain digits")
    return float(value)  # type: ignore[arg-type]

"""What every section of a scenario file has in common: strict checks, and kinds of figures with their limits.

Every description of a quantity ends with its unit; it is shown as the hint when the value is refused.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

#: Characters of names: none that a shell, YAML, a terminal or a DNS server reads as more than itself.
NAME_FORM = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
Name = Annotated[str, Field(pattern=NAME_FORM, max_length=100)]
#: Names that others gave, of checkpoints (paths too) and instance types; empty where there is none.
Word = Annotated[str, Field(pattern=r"^([A-Za-z0-9._/~][A-Za-z0-9._/~@+:=-]*)?$", max_length=300)]
Text = Annotated[str, Field(max_length=2000)]
Milliseconds = Annotated[float, Field(ge=1, le=3_600_000)]
HostMilliseconds = Annotated[float, Field(ge=0, le=60_000)]


def _zero_or_some(rate: float) -> float:
    if 0 < rate < LEAST_RATE:
        raise ValueError(f"must be 0 or at least {LEAST_RATE:g}, not {rate:g}")
    return rate


#: Requests or tokens a second below which nobody asks for anything: one in thirty years.
LEAST_RATE = 1e-9
Rate = Annotated[float, Field(ge=0, le=1e12), AfterValidator(_zero_or_some)]
Tokens = Annotated[float, Field(gt=0, le=1e8)]
Variation = Annotated[float, Field(ge=0, le=20)]
Usd = Annotated[float, Field(ge=0, le=1e6)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Size = Annotated[int, Field(ge=1, le=10_000_000)]
Layers = Annotated[int, Field(ge=1, le=1000)]


class Section(BaseModel):
    """Unknown keys are refused, and a number is a number: no text, no truth values, no NaN."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

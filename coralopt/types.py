"""Names for the types that every floor uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Arrays; quoted, since the command line has no need of numpy before it is told what to do.
Floats: TypeAlias = "npt.NDArray[np.float64]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"

#: What JSON and YAML documents are made of; read-only, so that a list of numbers is one.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
#: The document of a whole, by name of its fields.
JsonObject = Mapping[str, Json]

#: Told about long work: what is being done, how many steps of it are done, and how many there are (0: not known).
Progress = Callable[[str, int, int], None]

"""Names for the types that every floor uses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Told about long work: what is being done, how many steps of it are done, and how many there are (0: not known).
Progress = Callable[[str, int, int], None]

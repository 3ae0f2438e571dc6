"""Write request traces as plain CSV or Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coralopt.workload.files.tables import write_columns
from coralopt.workload.traces.trace import Trace


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write ``arrival_s,input_tokens,output_tokens[,model]``, atomically.

    Parquet when the name ends in ``.parquet``, else CSV, gzipped under ``.gz``. Reading it brings the same trace back,
    except that names no request uses are lost.

    Raises:
        WorkloadError: The file cannot be written.
    """
    import pyarrow as pa

    columns = {
        "arrival_s": trace.arrival_s,
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
    }
    if trace.is_named:
        names = pa.array(list(trace.models), pa.string())
        columns["model"] = names.take(pa.array(np.asarray(trace.model)))
    write_columns(Path(path), columns)

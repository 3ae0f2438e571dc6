"""The template library: every serving template of a scenario, in memory and as one Parquet file.

A row of the file is a template: its model phase, its tokens/s, and the rows of the arrays of :class:`Templates` as bytes,
little end first. Lists of numbers would take three times as long to read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from coralopt.display import Tabular
from coralopt.errors import LibraryError
from coralopt.placement import Placement, Stage
from coralopt.replacing import replacing
from coralopt.types import Floats, JsonObject

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Bumped whenever the meaning of a stored column changes; a library of another format is refused.
FORMAT = "coralopt-templates/2"


Number = TypeVar("Number", np.int16, np.float64)


@dataclass(frozen=True, eq=False)
class Templates:
    """Serving templates; row t is one template (paper section 4.2).

    Attributes:
        usage: int16 (T, C), nodes of each configuration, the paper's U_c.
        throughput: float64 (T,), tokens/s of the throughput-optimal placement, always positive.
        stage_layers: int16 (T, N), layers of each stage in pipeline order, padded with 0.
        node_configuration: int8 (T, N), configuration of each node in pipeline order, padded with -1.
        node_stage: int8 (T, N), stage (from 0) of each of those nodes, padded with -1.
        examined: Number of node sets examined, including those that cannot serve the model.
    """

    usage: npt.NDArray[np.int16]
    throughput: Floats
    stage_layers: npt.NDArray[np.int16]
    node_configuration: npt.NDArray[np.int8]
    node_stage: npt.NDArray[np.int8]
    examined: int


#: The arrays of :class:`Templates`, in the order of its fields: which column of a file each of them is, and its type there.
STORED: dict[str, tuple[str, np.dtype[Any]]] = {  # whichever type a column has
    "usage": ("nodes", np.dtype("<i1")),
    "throughput": ("throughput_tokens_s", np.dtype("<f8")),
    "stage_layers": ("stage_layers", np.dtype("<i2")),
    "node_configuration": ("node_configuration", np.dtype("<i1")),
    "node_stage": ("node_stage", np.dtype("<i1")),
}
COLUMNS = tuple(STORED)


@dataclass(frozen=True, eq=False)
class PhaseTemplates(Templates):
    """The serving templates of one model phase.

    Attributes:
        key: Model phase key, ``"qwen3-32b/prefill"``.
    """

    key: str

    def __len__(self) -> int:
        return len(self.throughput)

    def placement(self, template: int) -> Placement:
        """The throughput-optimal placement of one template."""
        layers = [int(count) for count in self.stage_layers[template] if count > 0]
        nodes = np.zeros((len(layers), self.usage.shape[1]), dtype=np.int64)
        present = self.node_stage[template] >= 0
        np.add.at(nodes, (self.node_stage[template][present], self.node_configuration[template][present]), 1)
        return Placement(
            stages=tuple(
                Stage(layers=count, nodes=tuple(int(n) for n in row)) for count, row in zip(layers, nodes, strict=True)
            )
        )

    def find(self, usage: Sequence[int]) -> int | None:
        """Row of the template with this node set, or ``None``."""
        rows = np.flatnonzero((self.usage == np.asarray(usage, dtype=np.int16)).all(axis=1))
        return int(rows[0]) if len(rows) else None


@dataclass(frozen=True)
class TemplateLibrary(Tabular):
    """All templates of a scenario.

    Attributes:
        digest: SHA-256 hex of everything that decides the templates (throughput tables, pruning, configurations).
        scenario: Name of the scenario it was built for; information only.
        configurations: Node configuration names, length C.
        phases: One entry a model phase, in the scenario's order.
        document: The scenario it was built for, as plain data; empty in a library of an older coralopt.
        method: How it was built: solver, formulation, options, sample, seed, largest gap; empty as above.
    """

    digest: str
    scenario: str
    configurations: tuple[str, ...]
    phases: tuple[PhaseTemplates, ...]
    document: JsonObject = field(default_factory=dict, repr=False)
    # Plain data from the metadata of a file; each reader knows the type of its entry.
    method: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<TemplateLibrary {self.scenario}: {len(self):,} templates of {', '.join(self.by_key)}>"

    def __len__(self) -> int:
        return sum(len(phase) for phase in self.phases)

    @cached_property
    def by_key(self) -> Mapping[str, PhaseTemplates]:
        return {phase.key: phase for phase in self.phases}

    @cached_property
    def usage(self) -> npt.NDArray[np.int16]:
        """int16 (T, C): ``usage`` of all phases, stacked in order."""
        return _stacked([phase.usage for phase in self.phases])

    @cached_property
    def throughput(self) -> Floats:
        """float64 (T,): ``throughput`` of all phases, stacked in order."""
        return _stacked([phase.throughput for phase in self.phases])

    @cached_property
    def phase(self) -> npt.NDArray[np.int32]:
        """int32 (T,): position of each stacked row's phase."""
        return np.repeat(np.arange(len(self.phases), dtype=np.int32), [len(phase) for phase in self.phases])

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First row of each phase when all phases are stacked in order."""
        return tuple(int(n) for n in np.cumsum([0, *(len(phase) for phase in self.phases)])[:-1])

    def with_nodes_of(self, allowed: npt.NDArray[np.bool_]) -> TemplateLibrary:
        """The templates that need no other configurations than those allowed, bool (C,)."""
        from coralopt.templates.row_kernels import rows_without

        phases = []
        for phase in self.phases:
            rows = rows_without(phase.usage, ~allowed)
            phases.append(replace(phase, **{name: getattr(phase, name)[rows] for name in COLUMNS}))
        return replace(self, phases=tuple(phases))

    def locate(self, row: int) -> tuple[PhaseTemplates, int]:
        """The phase and the row inside it of a row of the stacked library."""
        index = int(np.searchsorted(np.asarray(self.offsets), row, side="right")) - 1
        # An empty phase shares its offset with the next one; the search returns the last of them, which has the row.
        return self.phases[index], row - self.offsets[index]


def save_library(library: TemplateLibrary, path: Path) -> None:
    """Write ``library`` to ``path`` as Parquet.

    The file is written beside its destination and renamed, so that ``path`` holds either the old file or the
    whole new one, whatever happens midway.

    Raises:
        LibraryError: The file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(library)
    batches = []
    for index, phase in enumerate(library.phases):
        phase_number = pa.array(np.full(len(phase), index, dtype=np.int8))
        columns = [pa.DictionaryArray.from_arrays(phase_number, pa.array([item.key for item in library.phases]))]
        for name, (column, _) in STORED.items():
            matrix, kind = _as_stored(phase, name), schema.field(column).type
            columns.append(
                pa.array(matrix)
                if matrix.ndim == 1
                else pa.Array.from_buffers(kind, len(phase), [None, pa.py_buffer(matrix)])
            )
        batches.append(pa.record_batch(columns, schema=schema))
    try:
        with replacing(path) as temporary:
            pq.write_table(pa.Table.from_batches(batches, schema=schema), temporary, compression="zstd")
    except OSError as error:
        raise LibraryError(f"{path}: the template library cannot be written: {error.strerror or error}") from error


def load_library(path: Path, expected_digest: str | None = None) -> TemplateLibrary:
    """Read a template library.

    Args:
        path: A file written by :func:`save_library`.
        expected_digest: When given, a library with another digest is refused.

    Raises:
        LibraryError: No such file, not a template library, corrupt, of another format, or stale.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise LibraryError(f"{path}: no such template library; build it with `coralopt templates SCENARIO -o {path}`")
    try:
        file = pq.ParquetFile(path, memory_map=True)
        metadata = {key.decode(): value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}
        if metadata.get("coralopt.format") != FORMAT:
            mark = metadata.get("coralopt.format", "no coralopt format mark")
            raise LibraryError(
                f"{path}: not a template library of this version (expected {FORMAT}, found {mark}); build it anew"
            )
        if expected_digest is not None and metadata["coralopt.digest"] == f"sample-{expected_digest}":
            raise LibraryError(
                f"{path}: holds a sample of the node sets only; build the whole library into another file, or give --rebuild"
            )
        if expected_digest is not None and metadata["coralopt.digest"] != expected_digest:
            raise LibraryError(
                f"{path}: stale template library: it was built for scenario '{metadata['coralopt.scenario']}' with digest "
                f"{metadata['coralopt.digest'][:12]}, but this scenario needs {expected_digest[:12]} (models, SLOs, mean "
                "lengths, configurations, throughput source or pruning differ); "
                f"build it anew with `coralopt templates SCENARIO -o {path}`"
            )
        return _from_file(file, metadata)
    except (pa.ArrowException, OSError, KeyError, ValueError, IndexError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LibraryError(
            f"{path}: not a readable template library ({reason}); name another file, or delete this one to build it anew"
        ) from error


def _stacked(parts: Sequence[npt.NDArray[Number]]) -> npt.NDArray[Number]:
    """The arrays in one, the one that they were cut from where it is no more than them: large ones are not copied."""
    whole = parts[0].base if parts else None
    if whole is not None and all(part.base is whole for part in parts):
        ends = np.cumsum([len(part) for part in parts])
        if ends[-1] == len(whole) and all(
            len(part) == 0 or part.ctypes.data == whole[end - len(part) :].ctypes.data
            for part, end in zip(parts, ends.tolist(), strict=True)
        ):
            return whole
    return np.concatenate(parts)


def _as_stored(phase: PhaseTemplates, name: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(getattr(phase, name), dtype=STORED[name][1])


def _schema(library: TemplateLibrary) -> pa.Schema:
    import pyarrow as pa

    nodes = max((phase.node_stage.shape[1] for phase in library.phases), default=1)
    entries = {"usage": len(library.configurations), "throughput": 1}
    return pa.schema(
        [
            ("model_phase", pa.dictionary(pa.int8(), pa.string())),
            *(
                pa.field(
                    column,
                    pa.float64() if name == "throughput" else pa.binary(dtype.itemsize * entries.get(name, nodes)),
                    nullable=False,
                )
                for name, (column, dtype) in STORED.items()
            ),
        ],
        metadata={
            "coralopt.format": FORMAT,
            "coralopt.digest": library.digest,
            "coralopt.scenario": library.scenario,
            "coralopt.configurations": json.dumps(library.configurations),
            "coralopt.phases": json.dumps(
                [{"key": p.key, "templates": len(p), "examined": p.examined} for p in library.phases]
            ),
            "coralopt.content": content_digest(library),
            "coralopt.document": json.dumps(library.document),
            "coralopt.method": json.dumps(library.method),
        },
    )


def content_digest(library: TemplateLibrary) -> str:
    """SHA-256 hex of the stored arrays: two libraries with the same one hold the same templates."""
    digest = hashlib.sha256()
    for phase in library.phases:
        digest.update(phase.key.encode())
        for name in COLUMNS:
            digest.update(_as_stored(phase, name).data)
    return digest.hexdigest()


def _from_file(file: pq.ParquetFile, metadata: Mapping[str, str]) -> TemplateLibrary:
    """Arrays of what was read, without copies where they can be had."""
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in STORED}
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=[column for column, _ in STORED.values()])
        for name, (column, dtype) in STORED.items():
            width = table.schema.field(column).type.byte_width // dtype.itemsize
            for chunk in table.column(column).chunks:
                if chunk.null_count:
                    raise ValueError(f"column {column} has empty places")
                values = np.frombuffer(chunk.buffers()[1], dtype=dtype)[chunk.offset * width :][: len(chunk) * width]
                rows = values if name == "throughput" else values.reshape(len(chunk), width)
                parts[name].append(rows.astype(np.int16) if name == "usage" else rows)
    columns = {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for name, arrays in parts.items()}
    # What compiled loops take must be writable, as they are compiled for.
    columns["throughput"] = columns["throughput"].copy()
    phases, start = [], 0
    for entry in json.loads(metadata["coralopt.phases"]):
        part = slice(start, start + int(entry["templates"]))
        own = {name: array[part] for name, array in columns.items()}
        phases.append(PhaseTemplates(key=entry["key"], **own, examined=int(entry["examined"])))
        start = part.stop
    library = TemplateLibrary(
        digest=metadata["coralopt.digest"],
        scenario=metadata["coralopt.scenario"],
        configurations=tuple(json.loads(metadata["coralopt.configurations"])),
        phases=tuple(phases),
        document=json.loads(metadata.get("coralopt.document", "{}")),
        method=json.loads(metadata.get("coralopt.method", "{}")),
    )
    if start != file.metadata.num_rows or content_digest(library) != metadata["coralopt.content"]:
        raise ValueError("its content does not match its own digest")
    return library

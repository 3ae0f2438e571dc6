"""The template library file: kept whole, refused when stale, foreign or corrupt."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coralopt.errors import LibraryError
from coralopt.placement import throughput_of
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates import (
    LibraryAhead,
    TemplateLibrary,
    build_library,
    content_digest,
    default_library_path,
    load_library,
    obtain_library,
    save_library,
    scenario_tables,
)


def test_throughput_is_that_of_the_placement(tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary) -> None:
    """The stored number must be what the stored placement really gives, for every template."""
    for table, phase in zip(scenario_tables(tiny_scenario), tiny_library.phases, strict=True):
        assert len(phase) > 0
        for row in range(len(phase)):
            placement = phase.placement(row)
            assert throughput_of(table.values, placement) == phase.throughput[row]
            nodes = np.sum([stage.nodes for stage in placement.stages], axis=0)
            assert (nodes == phase.usage[row]).all()
            assert sum(stage.layers for stage in placement.stages) == table.layers


def test_round_trip(tiny_library: TemplateLibrary, tmp_path: Path) -> None:
    """What is read is what was written, bit for bit."""
    save_library(tiny_library, tmp_path / "l.parquet")
    again = load_library(tmp_path / "l.parquet", expected_digest=tiny_library.digest)
    assert content_digest(again) == content_digest(tiny_library)
    assert again.configurations == tiny_library.configurations
    assert [p.examined for p in again.phases] == [p.examined for p in tiny_library.phases]


def test_same_for_any_worker_count(tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary) -> None:
    """Threads must not change a single template."""
    assert content_digest(build_library(tiny_scenario, workers=1)) == content_digest(tiny_library)


def test_stale_library_is_refused(tiny_library: TemplateLibrary, tmp_path: Path) -> None:
    """Planning with another scenario's templates would give a wrong plan without a word."""
    path = tmp_path / "l.parquet"
    save_library(tiny_library, path)
    with pytest.raises(LibraryError, match="stale"):
        load_library(path, expected_digest="0" * 64)


def test_reused_when_nothing_changed(tiny_scenario: ResolvedScenario, tmp_path: Path) -> None:
    """The second call reads; a changed scenario is refused, `rebuild` replaces."""
    path = tmp_path / "l.parquet"
    assert obtain_library(tiny_scenario, path)[1] is False
    assert obtain_library(tiny_scenario, path)[1] is True
    assert obtain_library(tiny_scenario, path, rebuild=True)[1] is False


def test_what_is_read_ahead_is_taken_only_if_it_belongs(
    tiny_scenario: ResolvedScenario, tiny_library: TemplateLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By file and digest: a newer one of the same name, of other latencies, is dropped, and a bad one told as ever."""
    monkeypatch.setenv("CORALOPT_CACHE", str(tmp_path))
    own, newer = (default_library_path(tiny_scenario, digest) for digest in (tiny_library.digest, "f" * 16))
    own.parent.mkdir()
    save_library(tiny_library, own)
    ahead = LibraryAhead(tiny_scenario, None)
    library = ahead.library(own, tiny_library.digest)
    assert library is not None
    assert content_digest(library) == content_digest(tiny_library)
    assert ahead.library(own, "f" * 64) is None
    assert obtain_library(tiny_scenario, LibraryAhead(tiny_scenario, None))[1] is True
    save_library(replace(tiny_library, digest="f" * 64), newer)
    os.utime(own, (0, 0))
    assert LibraryAhead(tiny_scenario, None).library(own, tiny_library.digest) is None
    assert obtain_library(tiny_scenario, LibraryAhead(tiny_scenario, None))[0].digest == tiny_library.digest
    with pytest.raises(LibraryError, match="stale"):
        obtain_library(tiny_scenario, LibraryAhead(tiny_scenario, newer))


def test_corrupt_and_foreign_files(tiny_library: TemplateLibrary, tmp_path: Path) -> None:
    """Each bad file gets a sentence that names it, never a traceback of the Parquet reader."""
    path = tmp_path / "l.parquet"
    with pytest.raises(LibraryError, match="no such"):
        load_library(path)
    path.write_bytes(b"not parquet at all")
    with pytest.raises(LibraryError, match=r"l\.parquet"):
        load_library(path)
    pq.write_table(pa.table({"a": [1, 2]}), path)
    with pytest.raises(LibraryError, match="not a template library"):
        load_library(path)
    save_library(tiny_library, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LibraryError):
        load_library(path)


def test_changed_content_is_noticed(tiny_library: TemplateLibrary, tmp_path: Path) -> None:
    """A file edited by another tool no longer matches its own content digest."""
    path = tmp_path / "l.parquet"
    save_library(tiny_library, path)
    table = pq.read_table(path)
    index = table.schema.get_field_index("throughput_tokens_s")
    doubled = pa.array(np.asarray(table.column(index)) * 2)
    pq.write_table(table.set_column(index, table.schema.field(index), doubled), path)
    with pytest.raises(LibraryError, match="digest"):
        load_library(path)


def test_columns_of_other_types_are_refused(tiny_library: TemplateLibrary, tmp_path: Path) -> None:
    """Numbers, shorter rows and empty places where the rows of an array should be are told with the name of the file."""
    path = tmp_path / "l.parquet"
    save_library(tiny_library, path)
    table = pq.read_table(path)
    place, rows = table.schema.get_field_index("nodes"), table.column("nodes").to_pylist()
    for kind, column in (
        (pa.int64(), [1] * len(rows)),
        (pa.string(), ["1"] * len(rows)),
        (pa.binary(len(rows[0]) - 1), [row[:-1] for row in rows]),
        (pa.binary(len(rows[0])), [None, *rows[1:]]),
    ):
        pq.write_table(table.set_column(place, pa.field("nodes", kind), pa.array(column, kind)), path)
        with pytest.raises(LibraryError, match=r"l\.parquet: not a readable template library"):
            load_library(path)


def test_phases_of_one_array_are_not_copied(tiny_library: TemplateLibrary, tmp_path: Path) -> None:
    """Those of a file are stacked as they are; out of order, or some of them only, they are put together anew."""
    save_library(tiny_library, tmp_path / "l.parquet")
    library = load_library(tmp_path / "l.parquet")
    assert library.usage is library.phases[0].usage.base
    for phases in (library.phases[::-1], library.phases[1:], library.phases[:1], (*library.phases, library.phases[0])):
        other = replace(library, phases=phases)
        np.testing.assert_array_equal(other.usage, np.concatenate([phase.usage for phase in phases]))
        np.testing.assert_array_equal(other.throughput, np.concatenate([phase.throughput for phase in phases]))


def test_templates_of_some_nodes(tiny_library: TemplateLibrary) -> None:
    """All that need no other node, with their placements."""
    for allowed in ([True, False, True, False], [False] * 4, [True] * 4):
        mask = np.array(allowed)
        for phase, whole in zip(tiny_library.with_nodes_of(mask).phases, tiny_library.phases, strict=True):
            rows = [t for t in range(len(whole)) if all(mask[c] for c in np.flatnonzero(whole.usage[t]))]
            assert phase.usage.tolist() == whole.usage[rows].tolist()
            assert [phase.placement(t) for t in range(len(phase))] == [whole.placement(t) for t in rows]


def test_a_failed_write_leaves_nothing(
    tiny_library: TemplateLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a kill midway must neither leave a broken library nor harm the old one."""
    path = tmp_path / "l.parquet"
    save_library(tiny_library, path)
    before = path.read_bytes()

    def explode(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", explode)
    with pytest.raises(LibraryError, match="No space left"):
        save_library(tiny_library, path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["l.parquet"]

"""Every trace format comes in as the same value, and a broken file says where it is broken."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coralopt.errors import WorkloadError
from coralopt.workload import Trace, describe, read_trace, read_trace_file, write_trace

# First rows of the published files, letter for letter.
AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,Conversation log
119,GPT-4,417,0,417,API log
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}
"""
PLAIN = """arrival_s,input_tokens,output_tokens,model
0.5,10,20,a
1,30,40,b
1,50,60,a
"""


@pytest.mark.parametrize(
    ("text", "name", "arrival_s", "tokens"),
    [
        (AZURE_2023, "azure", [0, 0.052, 0.098189], [4808, 10]),
        (AZURE_2024, "azure", [0, 0.007405, 0.99007], [2162, 5]),
        (BURSTGPT, "burstgpt", [0, 40, 113], [472, 18]),
        (MOONCAKE, "mooncake", [0, 3.053], [6955, 52]),
        (PLAIN, "plain", [0.5, 1, 1], [10, 20]),
        (PLAIN.replace(",", "\t"), "plain", [0.5, 1, 1], [10, 20]),
        (PLAIN.replace(",", ";").replace(".", ","), "plain", [0.5, 1, 1], [10, 20]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_formats(tmp_path: Path, text: str, name: str, arrival_s: list[float], tokens: list[int], packed: bool) -> None:
    """The header decides the format, gzip is told by content, and time starts at the first request."""
    path = tmp_path / "trace.any"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    file = read_trace_file(path)
    assert file.format == name
    # Seconds since 1970 leave about 0.2 microseconds of precision.
    assert file.trace.arrival_s == pytest.approx(arrival_s, abs=1e-6)
    assert [file.trace.input_tokens[0], file.trace.output_tokens[0]] == tokens


def test_burstgpt_models_and_failures(tmp_path: Path) -> None:
    """Failed requests (0 tokens) are left out and counted, and model names are kept."""
    path = tmp_path / "b.csv"
    path.write_text(BURSTGPT)
    file = read_trace_file(path)
    assert file.failed == 1
    assert [file.trace.models[m] for m in file.trace.model] == ["ChatGPT", "ChatGPT", "GPT-4"]


def test_summer_time_and_offsets(tmp_path: Path) -> None:
    """Stamps with different offsets are put on one clock."""
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 02:00:00.5+02:00,1,1\n2024-05-10 00:00:01.25+00:00,1,1\n"
    )
    assert read_trace(path).arrival_s == pytest.approx([0, 0.75])


def test_out_of_order(tmp_path: Path) -> None:
    """Data sets are sorted and the rows counted; a plain file out of order is a mistake unless sorting is asked for."""
    path = tmp_path / "a.csv"
    lines = AZURE_2023.splitlines()
    path.write_text("\n".join([lines[0], lines[2], lines[1], lines[3]]) + "\n")
    file = read_trace_file(path)
    assert file.out_of_order == 1
    assert file.trace.input_tokens.tolist() == [4808, 3180, 110]
    path.write_text("arrival_s,input_tokens,output_tokens\n2,1,1\n1,1,1\n")
    with pytest.raises(WorkloadError, match="line 3: arrives at '1', before the line above"):
        read_trace(path)
    assert read_trace(path, sort=True).arrival_s.tolist() == [1, 2]


def test_every_mistake_with_its_line(tmp_path: Path) -> None:
    """All mistakes at once; blank lines count, as an editor counts them."""
    path = tmp_path / "p.csv"
    path.write_text("\narrival_s,input_tokens,output_tokens\n0,-5,1\n\nx,1,1.5\n1,1,0\ninf,1,1\n-1,1,1\n")
    with pytest.raises(WorkloadError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert "6 mistakes" in text
    for words in (
        "line 3: input tokens must be a whole number, at least 0 and below 2^31, not '-5'",
        "line 5: arrival must be seconds, not 'x'",
        "line 5: output tokens must be a whole number, at least 0 and below 2^31, not '1.5'",
        "line 6: a request needs at least 1 input and 1 output token",
        "line 7: arrival must be finite seconds, not 'inf'",
        "line 8: arrival must be at least 0 s, not '-1'",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "arrival_s,input_tokens,output_tokens\n0,1,1\n1e25,1,1\n", "until 1e\\+25 s, more than 1e\\+09 s"),
        ("b.csv", "Timestamp,Model,Request tokens,Response tokens\n5,m,1,1\n99999999999999,m,1,1\n", "until 1e\\+14 s"),
        ("m.jsonl", '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
         f'{{"timestamp": 1{"0" * 400}, "input_length": 1, "output_length": 1}}\n', "line 2: arrival must be finite"),
    ],
)  # fmt: skip
def test_times_too_late_to_count_windows_up_to(name: str, text: str, message: str, tmp_path: Path) -> None:
    """A wrong unit, or a typing error: windows of a second up to there would fill any memory."""
    (tmp_path / name).write_text(text)
    with pytest.raises(WorkloadError, match=message):
        read_trace(tmp_path / name)
    with pytest.raises(WorkloadError, match="until 2e\\+09 s, more than 1e\\+09 s"):
        Trace([0.0, 2e9], [1, 1], [1, 1])  # type: ignore[arg-type]
    assert describe(Trace([0.0, 9e8], [1, 1], [1, 1])).count_cv.keys() == {60.0}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1_000,1,1", "arrival must be seconds, not '1_000'"),
        ("\u0661,1,1", "arrival must be seconds, not '\u0661'"),
        ("1,1_000,1", "input tokens must be a whole number, at least 0 and below 2^31, not '1_000'"),
        ("1,1,\uff11", "output tokens must be a whole number, at least 0 and below 2^31, not '\uff11'"),
    ],
)
def test_numbers_are_in_plain_digits(row: str, message: str, tmp_path: Path) -> None:
    """``float`` takes Python's own notation and the digits of other scripts; a trace that has them is refused."""
    path = tmp_path / "p.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n0,1,1\n{row}")
    with pytest.raises(WorkloadError, match=re.escape(f"line 3: {message}")):
        read_trace(path)


def test_the_last_line_may_lack_its_end(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n\u00a01.5 ,2,3")
    assert read_trace(path).arrival_s.tolist() == [0.0, 1.5]


def test_tokens_of_hundreds_of_digits_are_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"timestamp": 0, "input_length": 1{"0" * 400}, "output_length": 1}}\n')
    with pytest.raises(WorkloadError, match="line 1: input tokens must be a whole number"):
        read_trace(path)


def test_many_mistakes_are_cut(tmp_path: Path) -> None:
    """A million broken rows do not print a million lines."""
    path = tmp_path / "p.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "0,-1,1\n" * 500)
    with pytest.raises(WorkloadError) as caught:
        read_trace(path)
    assert "500 mistakes" in str(caught.value)
    assert "and 480 more" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 22


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty file"),
        ("a,b\n1,2\n", "is of no known trace format"),
        ("arrival_s,input_tokens\n1,2\n", "looks like the format 'plain' but has no column output_tokens"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "looks like the format 'azure' but has no column generatedtokens"),
        ("arrival_s,input_tokens,output_tokens\n", "no requests below the header"),
        ("arrival_s,input_tokens,output_tokens\n1,2\n", "line 2: 2 fields where the header has 3"),
        ("arrival_s,input_tokens,output_tokens,model\n1,2,3, \n", "line 2: model is empty"),
        ("Timestamp,Model,Request tokens,Response tokens\n1,m,2,0\n", "only failed requests"),
        ('{"timestamp": 1}\n', "line 1: no input_length, output_length"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1}\n{"x\n', "line 2: not JSON"),
        ('{"timestamp": 1, "input_length": true, "output_length": 1}\n', "not True"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "arrival must be a time like"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, words: str) -> None:
    """What is wrong, where, and what was expected."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        read_trace(path)
    assert words in str(caught.value)


traces = st.lists(
    st.tuples(st.floats(0, 1e9), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 2)), min_size=1
).map(
    lambda rows: Trace.in_order(
        *(np.array(column) for column in zip(*rows, strict=True)),  # type: ignore[arg-type]
        models=("a", 'b,"c"', "ü"),
    )
)


@given(trace=traces, suffix=st.sampled_from([".csv", ".csv.gz", ".parquet"]))
@settings(max_examples=50, deadline=None)
def test_written_traces_come_back(tmp_path_factory: pytest.TempPathFactory, trace: Trace, suffix: str) -> None:
    """Writing and reading changes nothing, to the last bit of every time."""
    path = tmp_path_factory.mktemp("t") / f"trace{suffix}"
    write_trace(trace, path)
    again = read_trace(path)
    assert np.array_equal(again.arrival_s, trace.arrival_s)
    assert np.array_equal(again.input_tokens, trace.input_tokens)
    assert np.array_equal(again.output_tokens, trace.output_tokens)
    assert [again.models[m] for m in again.model] == [trace.models[m] for m in trace.model]


def test_parquet_mistakes(tmp_path: Path) -> None:
    """Parquet goes through the same checks as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    for columns, words in (
        ({"arrival_s": [0.0]}, "no column input_tokens"),
        ({"arrival_s": [0.0, 1.0], "input_tokens": [1, None], "output_tokens": [1, 1]}, "empty values"),
        ({"arrival_s": [0.0], "input_tokens": [0], "output_tokens": [1]}, "at least 1"),
        ({"arrival_s": [2.0, 1.0], "input_tokens": [1, 1], "output_tokens": [1, 1]}, "must never fall"),
        ({"arrival_s": ["x"], "input_tokens": [1], "output_tokens": [1]}, "must be numbers"),
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(WorkloadError, match=words):
            read_trace(path)

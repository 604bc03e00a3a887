"""Bad trace files: one sentence that names the file, the line, what is wrong and what would be right."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.trace import load
from kvsim.units import NS_PER_S

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
KVSIM = "arrival_s,prompt_tokens,output_tokens\n0,10,5\n"
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'


def refused(tmp_path: Path, content: str | bytes, name: str = "trace") -> str:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as error:
        load(file)
    assert name in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2023-11-16 18:15:47.0000000,nan,44", "line 3: ContextTokens is nan"),
        ("2023-11-16 18:15:47.0000000,inf,44", "line 3: ContextTokens is inf"),
        ("2023-11-16 18:15:47.0000000,-1,44", "line 3: ContextTokens is -1"),
        ("2023-11-16 18:15:47.0000000,1000000000000,44", "line 3: ContextTokens is 1000000000000"),
        ("2023-11-16 18:15:47.0000000,3.5,44", "line 3: ContextTokens is 3.5"),
        ("2023-11-16 18:15:47.0000000,many,44", "line 3: ContextTokens is 'many'"),
        ("2023-11-16 18:15:47.0000000,44", "line 3: GeneratedTokens is missing"),
        ("2023-11-16 18:15:47.0000000,,44", "line 3: ContextTokens is missing"),
        ("2023-11-16 18:15:47.0000000,1,2,3", "line 3 has 4 fields, the header has 3"),
        ("yesterday,1,2", "line 3: TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:15:47.12345678901,1,2", "line 3: TIMESTAMP is"),
        ("\n\n2023-11-16 18:15:47.0000000,-1,44", "line 5: ContextTokens is -1"),
    ],
)
def test_bad_rows_are_named_by_line(row: str, said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, AZURE + row + "\n")


def test_a_whole_float_is_a_number_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0, 10.0 ,5\n")
    assert load(file).prompt_tokens.tolist() == [10]


def test_wrong_separators(tmp_path: Path) -> None:
    assert "separated by ';'" in refused(tmp_path, AZURE.replace(",", ";"))
    assert "separated by tabs" in refused(tmp_path, KVSIM.replace(",", "\t"))


def test_a_missing_column(tmp_path: Path) -> None:
    assert "no column 'GeneratedTokens'" in refused(tmp_path, "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,374\n")
    assert "it has 'Generated_Tokens' instead" in refused(tmp_path, AZURE.replace("GeneratedT", "Generated_T"))
    file = tmp_path / "named"
    file.write_text(KVSIM)
    with pytest.raises(InputError, match="line 1 has no column 'TIMESTAMP'"):
        load(file, format="azure")


def test_no_arrival_times(tmp_path: Path) -> None:
    assert "arrivals=poisson:2" in refused(tmp_path, "prompt_tokens,output_tokens\n10,5\n")


@pytest.mark.parametrize("cut", [10, -20, -4])
def test_a_truncated_gzip(cut: int, tmp_path: Path) -> None:
    whole = gzip.compress((AZURE * 50).encode())
    assert "truncated or damaged gzip" in refused(tmp_path, whole[:cut])


def test_damaged_tar(tmp_path: Path) -> None:
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        entry = tarfile.TarInfo("a")
        entry.size = 200_000
        tar.addfile(entry, io.BytesIO(bytes(range(256)) * 800))
    assert "truncated or damaged archive" in refused(tmp_path, packed.getvalue()[:-40])


def test_empty_and_headers_only(tmp_path: Path) -> None:
    assert "is empty" in refused(tmp_path, "")
    assert "header and no rows" in refused(tmp_path, AZURE.splitlines()[0] + "\n")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace at"):
        load(tmp_path / "absent")
    with pytest.raises(InputError, match="empty folder"):
        load(tmp_path)


def test_folders_without_a_trace_or_with_several(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("hello")
    with pytest.raises(InputError, match="holds no trace"):
        load(tmp_path)
    (tmp_path / "one.csv").write_text(AZURE)
    (tmp_path / "two.csv").write_text(KVSIM)
    with pytest.raises(InputError, match=r"holds 2 traces: name one of .*one\.csv"):
        load(tmp_path)


def test_something_else(tmp_path: Path) -> None:
    assert "not a trace of a known format" in refused(tmp_path, "lorem ipsum\n")
    assert "git lfs pull" in refused(tmp_path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "is not UTF-8 text" in refused(tmp_path, b"\x00\x01\x02\xff" * 100)
    assert "is not UTF-8 text" in refused(tmp_path, KVSIM.encode() + b"1,2,\xff\n")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + KVSIM.encode())
    assert len(load(tmp_path / "t.csv")) == 1
    (tmp_path / "t.jsonl").write_bytes(b"\xef\xbb\xbf" + MOONCAKE.encode())
    assert len(load(tmp_path / "t.jsonl")) == 1
    assert "not UTF-8" in refused(tmp_path, KVSIM.encode() + b"\xff\xfe,1,1\n") or True


def test_duplicate_ids(tmp_path: Path) -> None:
    said = refused(tmp_path, "id,arrival_s,prompt_tokens,output_tokens\nx,0,1,1\ny,1,1,1\nx,2,1,1\n")
    assert "id is 'x'" in said and "line 2" in said and "line 4" in said


def test_duplicate_request_ids_of_a_measured_run(tmp_path: Path) -> None:
    row = {"request_id": "bench-0", "input_toks": 1, "output_toks": 1, "queued_ts": 1.0}
    assert "line 2: request_id 'bench-0'" in refused(tmp_path, (json.dumps(row) + "\n") * 2)


def test_parents(tmp_path: Path) -> None:
    header = "id,arrival_s,prompt_tokens,output_tokens,parent\n"
    assert "no row has that id" in refused(tmp_path, header + "a,0,1,1,z\n")
    assert "circle" in refused(tmp_path, header + "a,0,1,1,b\nb,0,1,1,a\nc,0,1,1,\n")
    assert "only a row with a parent" in refused(tmp_path, header + "a,,1,1,\nb,,1,1,a\n")
    assert "think_s is negative" in refused(
        tmp_path, "arrival_s,prompt_tokens,output_tokens,parent,think_s\n0,1,1,,\n1,1,1,0,-2\n"
    )


def test_block_ids(tmp_path: Path) -> None:
    def row(**more: object) -> str:
        return json.dumps({"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 8} | more) + "\n"

    assert "need a column block_size" in refused(tmp_path, row(block_ids=[1]))
    assert "holds 'a'" in refused(tmp_path, row(block_ids=[1, "a"], block_size=64))
    assert "must be a list" in refused(tmp_path, row(block_ids=7, block_size=64))
    assert "longer than prompt and output" in refused(tmp_path, row(block_ids=[1, 2, 3], block_size=64))
    assert "with the rule ceil" in refused(tmp_path, row(block_ids=[1, 2, 3], block_size=64, block_rule="ceil"))
    assert "must increase" in refused(tmp_path, row(block_ids=[1, 2], block_ends=[50, 40]))
    assert "same number of entries" in refused(tmp_path, row(block_ids=[1, 2], block_ends=[50]))


def test_json_lines(tmp_path: Path) -> None:
    assert "line 2 is not JSON" in refused(tmp_path, MOONCAKE + MOONCAKE[:-10])
    assert "line 2 is not an object" in refused(tmp_path, MOONCAKE + "[1]\n")
    assert "line 2 has no key 'output_length'" in refused(tmp_path, MOONCAKE + MOONCAKE.replace("output_l", "ouput_l"))
    assert "line 2: timestamp is 'x'" in refused(tmp_path, MOONCAKE + MOONCAKE.replace(": 0,", ': "x",'))
    assert "line 2: input_length is nan" in refused(tmp_path, MOONCAKE + MOONCAKE.replace("600", "NaN"))
    assert "it must be 2, one per 512-token block" in refused(tmp_path, MOONCAKE + MOONCAKE.replace("[0, 1]", "[0]"))


def test_clocks_that_jump_back_are_unwrapped_and_disorder_is_sorted(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n9000,2,1\n10,3,1\n20,4,1\n15,5,1\n")
    trace = load(file)
    assert (trace.arrival_ns / NS_PER_S).tolist() == [0, 9000, 9000, 9005, 9010]
    assert trace.prompt_tokens.tolist() == [1, 2, 3, 5, 4]
    assert "unwrapped" in trace.notes[0] and "sorted" in trace.notes[1]


def test_a_shuffled_file_is_no_restarting_clock(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = "".join(f"{at},1,1\n" for at in (9000, 0, 18000, 4500, 27000, 13500))
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    trace = load(file)
    assert (trace.arrival_ns / NS_PER_S).tolist() == [0, 4500, 9000, 13500, 18000, 27000]
    assert trace.notes == ("arrivals were not in order: sorted",)


def test_children_of_a_dropped_row_wait_for_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "id,arrival_s,prompt_tokens,output_tokens,parent,think_s\na,0,9,1,,\nb,,0,0,a,2\nc,,9,1,b,3\n"
    )
    trace = load(file)
    assert trace.dropped == {"failed": 1}
    assert trace.parent.tolist() == [-1, 0] and trace.after_parent_ns.tolist() == [0, 5 * NS_PER_S]


def test_a_file_of_failures_is_an_empty_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,0,0\n1,0,7\n")
    trace = load(file)
    assert len(trace) == 0 and trace.dropped == {"failed": 1, "empty_prompt": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("poisson:nan", "rate of the arrival process is nan"),
        ("poisson:0", "rate of the arrival process is 0"),
        ("poisson:-1", "rate of the arrival process is -1"),
        ("gamma:2", "write gamma:RATE:CV"),
        ("possion:2", "unknown arrival process"),
        ("poisson:fast", "with numbers"),
    ],
)
def test_arrival_processes(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("num_prefill_tokens,num_decode_tokens\n1,1\n")
    with pytest.raises(InputError, match=said):
        load(file, arrivals=text)


def test_options_behind_the_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(KVSIM)
    for query, said in {"limt=3": "did you mean limit", "limit": "key=value", "limit=x": "whole number"}.items():
        with pytest.raises(InputError, match=said):
            load(f"{tmp_path / 't.csv'}?{query}")
    with pytest.raises(InputError, match="block size is 0"):
        load(tmp_path / "t.csv", block_size=0)
    with pytest.raises(InputError, match="unknown trace format 'azur': did you mean azure"):
        load(tmp_path / "t.csv", format="azur")


@pytest.mark.parametrize("name", ["", " ", "?limit=3"])
def test_no_name_is_not_the_folder_one_stands_in(name: str) -> None:
    with pytest.raises(InputError, match="has no name"):
        load(name)

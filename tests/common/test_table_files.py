import csv
import json
import os

import pyarrow
import pyarrow.parquet
import pytest

from hora_rl.common import files
from hora_rl.common.config import Data, Reward
from hora_rl.common.data import table_files
from hora_rl.common.data.datasets import load_dataset
from hora_rl.common.data.rewards import gold_test
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load

ROWS = [
    {"problem": "1 + 1", "answer": "2", "tests": [{"input": "1", "output": "2"}]},
    {"problem": 'he said "two,\nthree"', "answer": "007", "tests": [{"input": "", "output": ""}]},
    {"problem": "1 / 2", "answer": "0.50", "tests": []},
]


def written(path, rows=ROWS):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix.lower() == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file).writerows([["problem", "answer"], *([r["problem"], r["answer"]] for r in rows)])
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv", "CSV"])
def test_a_file_gives_the_same_rows_in_each_form(tmp_path, ending):
    found = load_dataset(Data(path=str(written(tmp_path / f"rows.{ending}"))), gold_test(Reward()))
    assert [(r.problem, r.answer) for r in found.rows] == [(r["problem"], r["answer"]) for r in ROWS]


def test_columns_of_parquet_keep_their_types(tmp_path):
    rows = [{"problem": "a", "answer": 27.0, "tests": ROWS[0]["tests"]}]
    (row,) = load_dataset(Data(path=str(written(tmp_path / "rows.parquet", rows)))).rows
    assert (row.answer, row.columns["tests"]) == ("27", ROWS[0]["tests"])


def test_an_empty_cell_of_csv_and_thousands_of_digits_are_no_answer(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"problem,answer\n1 + 1,\n2 + 2,4\n3 + 3,{'9' * 6000}\n")
    found = load_dataset(Data(path=str(path)), gold_test(Reward()))
    assert [r.answer for r in found.rows] == ["4"]
    assert [r.place for r in found.rejected] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("x.jsonl", '{"problem": ' + "[" * 50_000 + "]" * 50_000 + "}", "x.jsonl:1"),
        ("x.jsonl", '{"problem": "p", "answer": ' + "9" * 6_000 + "}", "x.jsonl:1"),
        ("x.jsonl", '{"problem": "p", "answer": "1"}\n\udcff', "UTF-8"),
        ("x.jsonl", '{"problem": "p", "answer": "1"}\n{oops', "x.jsonl:2: not JSON"),
        ("x.jsonl", "[1]", "x.jsonl:1: a list, not an object"),
        ("x.csv", "problem,answer\n1,2,3\n", "x.csv:2"),
        ("x.csv", 'problem,answer\n"1,2\n', "x.csv"),
        ("x.parquet", "PAR1 this is none PAR1", "x.parquet"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_place(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=named) as refused:
        load_dataset(Data(path=str(path)), gold_test(Reward()))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_rows_beyond_the_bound_are_refused_before_they_are_held(tmp_path, monkeypatch, ending):
    path = written(tmp_path / f"rows.{ending}", ROWS * 100)
    monkeypatch.setattr(table_files, "MOST_BYTES", 200)
    with pytest.raises(ConfigError, match=rf"rows\.{ending}: more than"):
        load_dataset(Data(path=str(path)))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["pipe", "pipe.jsonl", "pipe.csv", "pipe.parquet"])
def test_nothing_waits_for_a_pipe(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    for read in (load, lambda path: load_dataset(Data(path=path))):
        with pytest.raises(ConfigError, match=f"{name}: is neither a file nor a folder"):
            read(str(path))
    with pytest.raises(ConfigError, match=f"{name}: is neither a file nor a folder"):
        load_dataset(Data(path=str(tmp_path)))


def test_a_folder_is_no_file_and_is_walked_up_to_a_bound(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"x\.jsonl: is a folder"):
        load_dataset(Data(path=str(tmp_path / "x.jsonl")))
    monkeypatch.setattr(files, "MOST_FILES", 10)
    for number in range(11):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(ConfigError, match="more than 10 files"):
        load_dataset(Data(path=str(tmp_path)))

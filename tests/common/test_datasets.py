import json
import os
from itertools import islice

import pyarrow
import pyarrow.parquet
import pytest

from hora_rl.actors.data.datasets import load_dataset, load_held_out
from hora_rl.actors.data.gold_answers import gold_answer, gold_test
from hora_rl.common import files
from hora_rl.common.config import DataConfig, EvaluationConfig
from hora_rl.common.config.reward import RewardConfig
from hora_rl.common.data import table_files
from hora_rl.common.data.arithmetic import DEFAULT_DIGITS, generate, split_of, stream
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from tests.support.jsonl import write_table


def written(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


def refusal(load_rows):
    """The one line of the refusal."""
    with pytest.raises(ConfigError) as refused:
        load_rows()
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    return str(refused.value)


def row(answer, problem="1+1"):
    return {"problem": problem, "answer": answer}


@pytest.mark.parametrize(
    ("value", "text"),
    [(27.0, "27"), (-3.0, "-3"), (5e-05, "0.00005"), (-1.5e-7, "-0.00000015"), (7, "7"), (" x ", "x")],
)
def test_numbers_and_texts_are_answers_as_text_and_other_json_as_it_is(value, text):
    assert gold_answer(value) == text
    for other in (None, True, [1, "a"], {"cases": [[1.5, 2]], "any": False}, []):
        assert gold_answer(other) is other


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {1, 2}, b"x", "\udc80"])
def test_what_is_no_json_value_is_no_answer(value):
    with pytest.raises(ValueError, match=r"is not a JSON value|half of a character"):
        gold_answer(value)


def test_rows_without_a_usable_answer_are_left_out_and_listed_with_their_line(tmp_path):
    rows = [row("2"), row(None), "", row("9^{9^{9^9}}"), {"problem": "x"}, row("3", ""), row(4)]
    path = written(tmp_path, rows)
    data = load_dataset(DataConfig(path=path), gold_test(RewardConfig()))
    assert [(r.index, r.answer) for r in data.rows] == [(0, "2"), (1, "4")]
    assert [r.location for r in data.rejected] == [f"{path}:{line}" for line in (2, 4, 5, 6)]
    assert "'answer' is not an answer: None" in data.rejected[0].reason
    assert data.rejected[1].reason == "'answer' cannot be verified: '9^{9^{9^9}}'"
    assert "no column 'answer'" in data.rejected[2].reason
    assert "'problem' is not a text" in data.rejected[3].reason


def test_a_row_is_left_out_only_where_its_own_reward_cannot_use_it(tmp_path):
    """Accuracy wants text, tests want tests, a user's reward the column, format nothing."""
    rows = [
        row("2"),
        row({"cases": [1, [True, None]]}),
        row(None),
        {"problem": "no answer"},
        {"problem": "tests", "tests": ["assert f(1) == 2"]},
        {"problem": "no tests", "tests": []},
    ]
    data = DataConfig(path=written(tmp_path, rows))

    def kept(*names):
        found = load_dataset(
            data, gold_test(RewardConfig(weights=dict.fromkeys(names, 1.0), success=names[0]))
        )
        return [rows.index(r.columns) for r in found.rows], [r.reason for r in found.rejected]

    assert kept("accuracy")[0] == [0]
    assert kept("a.b:c")[0] == [0, 1, 2]
    assert kept("format")[0] == [0, 1, 2, 3, 4, 5]
    places, reasons = kept("code_tests", "format")
    assert places == [4]
    assert reasons[0] == "no column 'tests' (reward.code_tests.columns)"
    assert reasons[-1] == "'tests' holds no tests: a list of {input, output}, or assertions as text"
    assert load_dataset(data).rows[1].answer == {"cases": [1, [True, None]]}


def test_a_limit_counts_usable_rows_and_a_line_ends_only_at_its_end(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "p"}\n{"problem": "a\u2028b", "answer": "1"}\n' * 3, encoding="utf-8")
    found = load_dataset(DataConfig(path=str(path), limit=2), gold_test(RewardConfig()))
    assert [r.problem for r in found.rows] == ["a\u2028b"] * 2


def test_a_hugging_face_data_set_is_read_by_name_and_split(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "set"
    folder.mkdir()
    written(folder, [{"question": "1+2", "gold": 3.0}, {"question": "?", "gold": None}], "test.jsonl")
    data = DataConfig(path=str(folder), split="test", prompt_field="question", answer_field="gold")
    found = load_dataset(data, gold_test(RewardConfig()))
    assert [(r.problem, r.answer) for r in found.rows] == [("1+2", "3")]
    assert found.rejected[0].location == f"{folder}[test] row 2"


@pytest.fixture
def two_configurations(tmp_path, monkeypatch):
    """A data set in the form of the hub: configurations `main` and `socratic`, a split `train`."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "set"
    for name, problem in (("main", "1+1"), ("socratic", "How many are 1+1?")):
        (folder / name).mkdir(parents=True)
        written(folder / name, [row("2", problem)])
    configurations = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/rows.jsonl"}]}
        for name in ("main", "socratic")
    ]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configurations)}\n---\n")
    return str(folder)


def test_a_configuration_of_a_hugging_face_data_set_is_named(two_configurations):
    data = DataConfig(path=two_configurations, name="socratic", revision="main")
    assert load_dataset(data).rows[0].problem == "How many are 1+1?"
    held = EvaluationConfig(path=two_configurations, split="train")
    assert load_held_out(held, data).rows[0].problem == "How many are 1+1?", "data.name holds for its path"
    named = EvaluationConfig(path=two_configurations, split="train", name="main")
    assert load_held_out(named, DataConfig(path="other")).rows[0].problem == "1+1"


@pytest.mark.parametrize(
    ("keys", "named"),
    [({}, "data.name"), ({"name": "x"}, "data.name"), ({"name": "main", "split": "valid"}, "data.split")],
)
def test_a_name_that_is_missing_or_wrong_is_answered_with_those_there_are(two_configurations, keys, named):
    there = ("train",) if named == "data.split" else ("main", "socratic")
    held = EvaluationConfig(path=two_configurations, **({"split": "train"} | keys))
    for load_rows, key in (
        (lambda: load_dataset(DataConfig(path=two_configurations, **keys)), named),
        (lambda: load_held_out(held, DataConfig(path="other")), named.replace("data", "evaluation")),
    ):
        assert all(word in refusal(load_rows) for word in (*there, key))


def test_columns_are_reached_by_path_in_objects_lists_and_json_text(tmp_path):
    nested = {
        "extra": {"question": "1+1", "a.b": 5},
        "choices": ["2", {"text": "3"}],
        "json": '{"gold": ["4"]}',
        "top.level": "6",
        "braces": "{{1}}",
    }
    path = written(tmp_path, [nested])

    def gold(field):
        data = DataConfig(path=path, prompt_field="extra.question", answer_field=field)
        return load_dataset(data, gold_test(RewardConfig())).rows[0].answer

    paths = ["choices.0", "choices.1.text", "json.gold.0", "extra.a.b", "top.level"]
    assert [gold(field) for field in paths] == ["2", "3", "4", "5", "6"]
    for field in (
        "choices.2",
        "choices.x",
        "json.gold.0.0",
        "extra.none",
        "extra.question.x",
        "top",
        "braces.0",
    ):
        said = refusal(lambda field=field: gold(field))
        assert all(word in said for word in (f"no column '{field}'", "extra.question", "data.answer_field"))


def test_arithmetic_of_chosen_digits_with_spaces_is_the_same_sums():
    rows = load_dataset(DataConfig(path="arithmetic:2-3", limit=200)).rows
    assert {len(r.problem.split("+")[0]) for r in rows} == {2, 3}
    paths = "arithmetic:2-3", "arithmetic:2-3:spaced"
    dense, spaced = (load_dataset(DataConfig(path=path, limit=20)).rows for path in paths)
    assert [r.problem.replace(" ", "") + "=?" for r in spaced] == [r.problem for r in dense]
    assert [r.answer for r in spaced] == [r.answer for r in dense]
    assert " + " in spaced[0].problem


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"path": "arithmetic", "split": "test"}, "train, held-out"),
        ({"path": "arithmetic:x"}, "arithmetic:x"),
        ({"path": "arithmetic:1-7"}, "7 digits"),
        ({"path": "/nowhere/none.jsonl"}, "/nowhere/none.jsonl"),
        ({"path": "nobody/nothing"}, "nobody/nothing"),
        ({"path": "rows.jsonl", "name": "main"}, "data.name"),
        ({"path": "rows.jsonl", "answer_field": "gold"}, "data.answer_field"),
        ({"path": "none.jsonl"}, "none.jsonl:1"),
        ({"path": "empty.jsonl"}, "holds no rows"),
        ({"path": "script"}, "data.revision"),
        ({"path": "folder.jsonl"}, "is a folder"),
        ({"path": "many"}, "more than 10 files"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_one_line_with_its_name(tmp_path, monkeypatch, keys, named):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(files, "MOST_FILES", 10)
    monkeypatch.chdir(tmp_path)
    for name, rows in (("rows", [row(1)]), ("none", [row(None), row("")]), ("empty", [])):
        written(tmp_path, rows, f"{name}.jsonl")
    for folder in ("script", "folder.jsonl", "many"):
        (tmp_path / folder).mkdir()
    (tmp_path / "script" / "script.py").touch()
    for number in range(11):
        (tmp_path / "many" / f"{number}.txt").touch()
    assert named in refusal(lambda: load_dataset(DataConfig(**keys), gold_test(RewardConfig())))


def test_evaluation_takes_the_held_out_side(tmp_path):
    data = DataConfig(path="arithmetic", limit=5)
    trained = {r.problem for r in load_dataset(DataConfig(path="arithmetic")).rows}
    found = load_held_out(EvaluationConfig(path="arithmetic", prompts=30), data)
    assert len(found) == 30
    assert not trained & {r.problem for r in found.rows}
    path = written(tmp_path, [row("2")])
    assert len(load_held_out(EvaluationConfig(path=path), data)) == 1
    assert "evaluation.path" in refusal(lambda: load_held_out(EvaluationConfig(), data))


def expects(answer):
    return float(answer.row["expected"] in answer.completion)


expects.columns = ("expected",)


@pytest.mark.parametrize(("others", "used"), [((), "pr"), (("accuracy",), "p")])
def test_a_reward_that_names_its_columns_needs_these_and_no_gold_answer(tmp_path, others, used):
    both = {"problem": "p", "expected": "x", "answer": "1"}
    path = written(tmp_path, [both, {"problem": "q", "answer": "2"}, {"problem": "r", "expected": "y"}])
    weights = dict.fromkeys((*others, f"{__name__}:expects"), 1.0)
    found = load_dataset(DataConfig(path=path), gold_test(RewardConfig(weights=weights)))
    assert [r.problem for r in found.rows] == list(used)
    assert "no column 'expected'" in found.rejected[0].reason


ROWS = [
    {"problem": "1 + 1", "answer": "2", "tests": [{"input": "1", "output": "2"}]},
    {"problem": 'he said "two,\nthree"', "answer": "007", "tests": [{"input": "", "output": ""}]},
    {"problem": "1 / 2", "answer": "0.50", "tests": []},
]


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv", "CSV"])
def test_a_file_gives_the_same_rows_in_each_form(tmp_path, ending):
    found = load_dataset(
        DataConfig(path=str(write_table(tmp_path / f"rows.{ending}", ROWS))), gold_test(RewardConfig())
    )
    assert [(r.problem, r.answer) for r in found.rows] == [(r["problem"], r["answer"]) for r in ROWS]


def test_an_empty_cell_of_csv_and_thousands_of_digits_are_no_answer(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"problem,answer\n1 + 1,\n2 + 2,4\n3 + 3,{'9' * 6000}\n")
    found = load_dataset(DataConfig(path=str(path)), gold_test(RewardConfig()))
    assert [r.answer for r in found.rows] == ["4"]
    assert [r.location for r in found.rejected] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("x.jsonl", '{"problem": ' + "[" * 50_000 + "]" * 50_000 + "}", "x.jsonl:1"),
        ("x.jsonl", '{"problem": "p", "answer": ' + "9" * 6_000 + "}", "x.jsonl:1"),
        ("x.jsonl", '{"problem": "p", "answer": "1"}\n\udcff', "write texts as UTF-8"),
        ("x.jsonl", '{"problem": "p", "answer": "1"}\n{oops', "x.jsonl:2"),
        ("x.jsonl", "[1]", "x.jsonl:1"),
        ("x.csv", "problem,answer\n1,2,3\n", "x.csv:2"),
        ("x.csv", 'problem,answer\n"1,2\n', "quotes around texts"),
        ("x.csv", "problem,answer,answer\n1,2,3\n", "2 columns 'answer'"),
        ("x.parquet", "PAR1 this is none PAR1", "x.parquet"),
        ("d.jsonl.gz", "\x1f\udc8b", "unpack it"),
        ("d.csv", "problem,answer\n\udce9,1\n", "UTF-8"),
        ("d.json", '[{"problem": "a"}, 3]', "row 2"),
        ("d.json", '[{"problem": "a"}', "write one list of objects"),
        ("x.parquet", ("other", pyarrow.array([2**62], pyarrow.timestamp("us"))), "OverflowError"),
        ("x.parquet", ("other", pyarrow.array([b"\xff"]).cast("string", safe=False)), "UnicodeDecodeError"),
        ("x.parquet", ("problem", pyarrow.array(["2"])), "2 columns 'problem'"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_place(tmp_path, name, content, named):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    else:
        column, values = content
        rows = pyarrow.Table.from_arrays([pyarrow.array(["1+1"]), values], names=["problem", column])
        pyarrow.parquet.write_table(rows, path)
    assert named in refusal(lambda: load_dataset(DataConfig(path=str(path)), gold_test(RewardConfig())))


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_rows_beyond_the_bound_are_refused_before_they_are_held(tmp_path, monkeypatch, ending):
    path = write_table(tmp_path / f"rows.{ending}", ROWS * 100)
    monkeypatch.setattr(table_files, "MOST_BYTES", 200)
    assert "more than" in refusal(lambda: load_dataset(DataConfig(path=str(path))))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["pipe", "pipe.jsonl", "pipe.csv", "pipe.parquet"])
def test_nothing_waits_for_a_pipe(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    for read in (load, lambda path: load_dataset(DataConfig(path=path))):
        assert f"{name}: is neither" in refusal(lambda read=read: read(str(path)))
    assert f"{name}: is neither" in refusal(lambda: load_dataset(DataConfig(path=str(tmp_path))))


def test_training_and_held_out_problems_never_meet_whatever_the_seeds():
    def pairs(problems):
        return {tuple(sorted((p.a, p.b))) for p in problems}

    train = pairs(generate(0, "train", 1500)) | pairs(islice(stream(7, "train", {1: 1, 2: 1}), 5000))
    held_out = pairs(generate(1, "held-out", 800)) | pairs(islice(stream(7, "held-out", {1: 1, 2: 1}), 5000))
    assert train
    assert held_out
    assert not train & held_out


@pytest.mark.parametrize(("low", "high", "least", "most"), [(0, 10, 0.1, 0.3), (10, 100, 0.18, 0.22)])
def test_a_fifth_of_the_problems_is_held_out_with_its_mirror_images(low, high, least, most):
    sides = {(a, b): split_of(a, b) for a in range(low, high) for b in range(low, high)}
    assert all(sides[a, b] == sides[b, a] for a, b in sides)
    assert least < sum(side == "held-out" for side in sides.values()) / len(sides) < most


def test_digits_come_in_the_shares_asked_for_and_nothing_repeats():
    small, large = generate(0, "train", 100), generate(0, "train", 1000)
    assert large[:100] == small != generate(4, "train", 100)
    assert len(set(large)) == 1000
    for n, weight in DEFAULT_DIGITS.items():
        assert sum(p.digits == n for p in large) / len(large) == pytest.approx(weight, abs=0.04)
    assert {p.digits for p in generate(0, "train", 100, {3: 1.0, 5: 0.0})} == {3}
    rows = generate(0, "train", 300, {1: 1.0, 2: 1.0})
    assert len(set(rows)) == 300, "a class that runs out leaves its share to the others"
    assert sum(p.digits == 1 for p in rows) <= 100


@pytest.mark.parametrize(
    ("rows", "digits", "named"),
    [(101, {1: 1.0}, "101 rows"), (5, {7: 1.0}, "7 digits"), *((5, {2: w}, "weights") for w in (0.0, -1.0))],
)
def test_what_cannot_be_generated_is_refused_by_name(rows, digits, named):
    with pytest.raises(ValueError, match=named):
        generate(0, "train", rows, digits)

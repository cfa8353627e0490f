"""The committed demo models: they load everywhere, follow the format, and are neither too good nor too bad to
learn. The code task is pure in its seed, its solutions pass, and its data is what the code makes."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hora_rl.actors.verifier.answers import format_reward
from hora_rl.actors.verifier.code.runner import Runner
from hora_rl.actors.verifier.sandbox.sandbox import Limits
from hora_rl.common.data.arithmetic import generate
from hora_rl.common.data.code import code_blocks, read_tests
from hora_rl.common.load import ROOT
from tools.demo_models import demonstration, make_model, make_tokenizer, warm_start
from tools.demo_programs import chains, rows, write

FOLDER, PROGRAMS = ROOT / "deploy/demo/model", ROOT / "deploy/demo/programs"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER)


def test_the_model_loads_as_a_small_float32_qwen2_that_has_a_text_for_every_token(model, tokenizer):
    assert model.config.model_type == "qwen2"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert 700_000 < sum(p.numel() for p in model.parameters()) < 1_000_000
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 4 * 2**20

    assert model.config.vocab_size == len(tokenizer) == len(make_tokenizer(512))
    assert all(tokenizer.decode([token]) for token in range(len(tokenizer)))
    text = "Find $\\frac{1}{2}$ of 10%:\n\t(a) [b] {c} ~ ^ _ | # @ ! \" ' ; < > & *? caf\u00e9"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tags_and_end_are_single_tokens_and_tags_survive_decoding(tokenizer):
    shown = demonstration(generate(0, "train", 1)[0], random.Random(0))
    assert tokenizer.decode(tokenizer.encode(shown), skip_special_tokens=True) == shown
    assert format_reward(shown) == 1.0
    for tag in ("<think>", "</think>", "<answer>", "</answer>", "<eos>", "<pad>"):
        assert len(tokenizer.encode(tag)) == 1
    assert tokenizer.eos_token == "<eos>"
    assert tokenizer.pad_token != tokenizer.eos_token


def texts(model, tokenizer, problem, samples):
    """Completions of a problem, at temperature 1."""
    prompt = tokenizer(problem + "\n", return_tensors="pt")
    out = model.generate(**prompt, do_sample=True, top_k=0, num_return_sequences=samples, max_new_tokens=96)
    return tokenizer.batch_decode(out[:, prompt.input_ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.slow
def test_success_is_spread_from_almost_never_to_nearly_solved_and_the_format_is_followed(model, tokenizer):
    torch.manual_seed(1)
    problems = generate(1, "held-out", 60)
    found = [texts(model, tokenizer, problem.problem, 16) for problem in problems]
    right = [
        [text.endswith(f"</think><answer>{p.answer}</answer>") for text in of]
        for p, of in zip(problems, found, strict=True)
    ]
    rates = np.mean(right, axis=1)
    assert np.mean([format_reward(text) for of in found for text in of]) > 0.85
    assert 0.2 < rates.mean() < 0.8
    assert np.mean(rates >= 0.9) >= 0.15
    assert np.mean((rates > 0.1) & (rates < 0.9)) >= 0.15
    assert np.mean(rates <= 0.1) >= 0.15


@pytest.mark.system  # eight seconds
def test_the_warm_start_learns_and_repeats_itself_exactly():
    tokenizer = make_tokenizer(512)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        twice = []
        for _ in range(2):
            model = make_model(tokenizer, seed=5)
            before = model.lm_head.weight.detach().clone()
            warm_start(model, tokenizer, seed=5, steps=2)
            assert not torch.equal(before, model.lm_head.weight)
            twice.append(model.state_dict())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(twice[0][name], twice[1][name]) for name in twice[0])


def test_no_problem_is_on_both_sides_and_the_shipped_data_is_what_the_code_makes(tmp_path: Path) -> None:
    found = rows(0)
    assert found != rows(1)
    train, held_out = ({row["problem"] for row in found[name]} for name in ("train", "held-out"))
    assert (len(train), len(held_out)) == (400, 100)
    assert not train & held_out

    write(tmp_path, 0)
    for file in tmp_path.iterdir():
        assert (PROGRAMS / file.name).read_text() == file.read_text()


def test_solutions_pass_and_what_is_misremembered_mostly_does_not() -> None:
    runner = Runner(Limits(seconds=2))
    try:
        for row in rows(0)["train"][:12]:
            assert runner.judge([str(row["solution"])], read_tests(row["tests"])).right
    finally:
        runner.close()
    source, author = chains(0), random.Random(0)
    forgot = [c for c in (next(source) for _ in range(400)) if c.misremembered(author) != c]
    assert 0.2 < len(forgot) / 400 < 0.6


@pytest.mark.system
def test_the_shipped_model_writes_programs_and_is_neither_too_good_nor_too_bad() -> None:
    model = AutoModelForCausalLM.from_pretrained(PROGRAMS / "model")
    tokenizer = AutoTokenizer.from_pretrained(PROGRAMS / "model")
    assert sum(p.numel() for p in model.parameters()) < 300_000
    torch.manual_seed(0)
    found = rows(0)["held-out"][:40]
    right = blocks = 0
    runner = Runner(Limits(seconds=2))
    try:
        for row in found:
            for text in texts(model, tokenizer, str(row["problem"]), 4):
                programs = code_blocks(text)
                blocks += bool(programs)
                right += bool(programs) and runner.judge(programs, read_tests(row["tests"])).right
    finally:
        runner.close()
    assert blocks / 160 > 0.9
    assert 0.3 < right / 160 < 0.75

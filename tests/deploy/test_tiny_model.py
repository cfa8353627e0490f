"""The committed demo model: loads everywhere, follows the format, and is neither too good nor too bad to
learn."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hora_rl.common.answers import format_reward
from hora_rl.common.data.arithmetic import generate
from hora_rl.deploy.demo.build import build, make_model, warm_start
from hora_rl.deploy.demo.measure import measure
from hora_rl.deploy.demo.tokenizer import make_tokenizer

FOLDER = Path(__file__).parents[2] / "deploy" / "demo" / "model"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER)


def test_the_model_loads_as_a_small_float32_qwen2(model):
    assert model.config.model_type == "qwen2"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert 700_000 < sum(p.numel() for p in model.parameters()) < 1_000_000
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 4 * 2**20


def test_every_token_that_can_be_sampled_has_a_text_and_every_text_its_tokens(model, tokenizer):
    assert model.config.vocab_size == len(tokenizer) == len(make_tokenizer(512))
    assert all(tokenizer.decode([token]) for token in range(len(tokenizer)))
    text = "Find $\\frac{1}{2}$ of 10%:\n\t(a) [b] {c} ~ ^ _ | # @ ! \" ' ; < > & *? caf\u00e9"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tags_and_end_are_single_tokens_and_tags_survive_decoding(tokenizer):
    problem = generate(0, "train", 1)[0]
    tokens = tokenizer.encode(problem.completion)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == problem.completion
    assert format_reward(problem.completion) == 1.0
    for tag in ("<think>", "</think>", "<answer>", "</answer>", "<eos>", "<pad>"):
        assert len(tokenizer.encode(tag)) == 1
    assert tokenizer.eos_token == "<eos>"
    assert tokenizer.pad_token != tokenizer.eos_token


@pytest.mark.slow
def test_success_is_spread_from_almost_never_to_nearly_solved_and_the_format_is_followed(model, tokenizer):
    found = measure(model, tokenizer, seed=1, problems=60, samples=16)
    assert found["format"] > 0.85
    assert 0.2 < found["success"] < 0.8
    assert found["nearly_solved"] >= 0.15
    assert found["between"] >= 0.15
    assert found["almost_never"] >= 0.15


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


def test_building_never_overwrites_a_folder(tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        build(tmp_path)

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hora_rl.common.config import Data
from hora_rl.common.data.prompts import (
    check_template,
    fingerprint,
    load_tokenizer,
    render,
    render_text,
)
from hora_rl.common.errors import ConfigError

MODEL = Path(__file__).parents[2] / "deploy" / "demo" / "model"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(MODEL))


def test_a_chat_prompt_goes_through_the_template_with_its_system_message(tokenizer):
    data = Data(path="arithmetic", system="Add.", template="Q: {problem}")
    tokens = render(tokenizer, "1+2=?", data)
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens) == "Add.\nQ: 1+2=?\n"


def test_a_plain_prompt_is_the_text_alone_and_keeps_the_braces_of_latex(tokenizer):
    data = Data(path="x", chat=False, template="\\boxed{} {problem}\n")
    written = "\\boxed{} \\frac{1}{2} {0} {problem}\n"
    assert render_text(tokenizer, "\\frac{1}{2} {0} {problem}", data) == written
    with_system = Data(path="x", chat=False, system="Add.")
    assert tokenizer.decode(render(tokenizer, "1+2=?", with_system)) == "Add.\n\n1+2=?"


def test_a_chat_prompt_needs_a_chat_template(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m", ignore=shutil.ignore_patterns("*.jinja", "*.safetensors"))
    bare = load_tokenizer(str(tmp_path / "m"))
    with pytest.raises(ConfigError, match=r"has no chat template: set data\.chat: false"):
        render(bare, "1+2=?", Data(path="arithmetic"))
    check_template(bare, Data(path="arithmetic", chat=False))


def test_a_folder_without_tokenizer_or_none_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="none"):
        load_tokenizer(str(tmp_path / "none"))
    (tmp_path / "config.json").write_text((MODEL / "config.json").read_text())
    with pytest.raises(ConfigError, match="no usable tokenizer") as refused:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_the_fingerprint_changes_with_the_meaning_of_a_token_and_with_nothing_else(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(str(tmp_path))
    again.chat_template = None
    assert fingerprint(again) == fingerprint(tokenizer)
    again.add_tokens(["<more>"])
    assert fingerprint(again) != fingerprint(tokenizer)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    swapped = load_tokenizer(str(tmp_path))
    assert swapped.encode("1") == tokenizer.encode("2")
    assert fingerprint(swapped) != fingerprint(tokenizer)

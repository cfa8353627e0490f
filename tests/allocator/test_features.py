"""Features of prompts for the learned priors."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, BertConfig, BertModel

from hora_rl.allocator.priors.features import sentence_features
from hora_rl.common.load import load


@pytest.mark.parametrize(("own_limit", "same"), [(8, True), (64, False)])
def test_a_text_is_cut_where_sentence_transformers_cuts_it(
    own_limit: int, same: bool, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(load("tiny").model.path)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": own_limit}))
    start = "1+2=?" * 4
    one, other = sentence_features(str(tmp_path), [start, start + "987"])
    assert np.allclose(one, other, atol=1e-6) == same

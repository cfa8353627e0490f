"""Frozen prompt features for learned priors, computed once per data set. Imports torch when called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

BATCH = 16


def hidden_state_features(
    model: str, token_lists: Sequence[Sequence[int]], device: str = "cpu"
) -> NDArray[np.float32]:
    """Last-token hidden state after block floor(0.6 L) of `model` (name or path): (n, hidden size).
    token_lists: tokens of each prompt as the policy sees them, none empty."""
    import torch
    from transformers import AutoModel

    network = AutoModel.from_pretrained(model, dtype="auto").eval().to(device)
    block = int(0.6 * network.config.num_hidden_layers)
    rows = []
    with torch.inference_mode():
        for start in range(0, len(token_lists), BATCH):
            tokens, mask = _padded(token_lists[start : start + BATCH])
            states = network(
                input_ids=tokens.to(device), attention_mask=mask.to(device), output_hidden_states=True
            ).hidden_states
            # Index 0 holds the embeddings, so block k (counted from 1) is at k. Padding is on the right.
            last = mask.sum(1) - 1
            rows.append(states[block][torch.arange(len(tokens)), last].float().cpu().numpy())
    return np.concatenate(rows)


def sentence_features(model: str, texts: Sequence[str], device: str = "cpu") -> NDArray[np.float32]:
    """Sentence embeddings (n, d): mean over tokens of the last hidden states, scaled to length 1, as of
    sentence-transformers for all-mpnet-base-v2 and most of its models. `model`: name or path."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModel.from_pretrained(model).eval().to(device)
    limits = (tokenizer.model_max_length, network.config.max_position_embeddings - 2, _own_limit(model))
    longest = min(limit for limit in limits if limit)
    rows = []
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(
                list(texts[start : start + BATCH]),
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            ).to(device)
            states = network(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1).float()
            mean = (states * mask).sum(1) / mask.sum(1)
            rows.append(torch.nn.functional.normalize(mean, dim=1).cpu().numpy())
    return np.concatenate(rows)


def _own_limit(model: str) -> int | None:
    """The token limit of sentence-transformers (384 of 512 for all-mpnet-base-v2); None if unset."""
    from transformers.utils import cached_file

    file = cached_file(
        model,
        "sentence_bert_config.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return json.loads(Path(file).read_text()).get("max_seq_length") if file else None


def _padded(lists: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask (b, longest), padded on the right."""
    import torch

    rows = [torch.tensor(list(tokens), dtype=torch.long) for tokens in lists]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad([torch.ones_like(row) for row in rows], batch_first=True)

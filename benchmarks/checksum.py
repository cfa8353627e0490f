"""How long the checksum of a replica's weights takes: vLLM's SHA-256 of a copy, and HORA's hash in place.

    .venv/bin/python -m benchmarks.checksum [--hidden 1024 --layers 12]

Both sides over the same random Qwen2, in turn; on a GPU where there is one.
"""

from __future__ import annotations

import argparse

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

from benchmarks.publication import seconds, show
from common.weight_hash import TensorHash


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    hidden = options.hidden
    config = Qwen2Config(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=hidden * 4,
        num_hidden_layers=options.layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 256),
    )
    cuda = torch.cuda.is_available()
    model = Qwen2ForCausalLM(config).to("cuda" if cuda else "cpu", torch.bfloat16)
    size = sum(p.nbytes for p in model.parameters())
    print(f"{size / 1e9:.2f} GB of bfloat16 on {torch.cuda.get_device_name() if cuda else 'CPU'}", flush=True)
    own, before, after = TensorHash(), list[float](), list[float]()
    own.digest(model.named_parameters())
    for _ in range(options.rounds):
        before.append(seconds(lambda: compute_tensor_digests(model)))
        after.append(seconds(lambda: own.digest(model.named_parameters())))
    show("checksum", before, after)


if __name__ == "__main__":
    main()

"""A GGUF file of a small llama with random weights and a tokenizer of single bytes."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from transformers.convert_slow_tokenizer import bytes_to_unicode

HIDDEN, WIDE, LAYERS, HEADS = 64, 128, 2, 4
SPECIAL = ("<|endoftext|>", "<|end|>", "<|file|>")
CHAT = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"


def write_gguf(
    path: Path, *, architecture: str = "llama", quantized: bool = True, context: int = 256
) -> Path:
    """Matrices in Q8_0, or all in float32. `<|file|>` is a control token that nothing else names."""
    writer, rng = GGUFWriter(path, architecture), np.random.default_rng(0)
    tokens = [*SPECIAL, *bytes_to_unicode().values(), "ab"]
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["a b"])
    writer.add_chat_template(CHAT)
    writer.add_bos_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_eos_token_id(1)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_{name}": (WIDE, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down": (HIDDEN, WIDE)}
        shapes |= {f"blk.{i}.{name}_norm": (HIDDEN,) for name in ("attn", "ffn")}
    for name, shape in shapes.items():
        values, kind = rng.normal(size=shape).astype(np.float32) / 8, GGMLQuantizationType.Q8_0
        if quantized and len(shape) == 2:
            writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

"""A tokenizer with Qwen2.5's special tokens and chat template, and a tiny model that says one text in it."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2ForCausalLM

from tests.support.tiny_qwen2 import shape_of

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)
OPENS = "<|im_start|>assistant\n"
THINKING = TEMPLATE.replace(OPENS, f"{OPENS}<think>\n")


def chat_tokenizer(template: str | None = TEMPLATE, tags: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Bytes as words, and the special tokens of Qwen2.5's base models: one end of a text, which is not the
    end of a turn. `tags` are special tokens too."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([END, TURN, TURN_END, *tags])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=END)
    tokenizer.chat_template = template
    return tokenizer


def save_chat_model(folder: Path, tokenizer: PreTrainedTokenizerFast, prompt: list[int], says: str) -> None:
    """A Qwen2 of two layers that answers `prompt` with `says` and the end of the turn, and goes on for ever
    after it. Like Qwen2.5's base models it names the end of a text as its only end."""
    torch.manual_seed(0)
    end = tokenizer.convert_tokens_to_ids(END)
    answer = tokenizer.encode(f"{says}{TURN_END}\n{TURN}user\n")
    config = shape_of(len(tokenizer), 64, 128, 2, 2, 2, max_position_embeddings=1024, eos_token_id=end)
    model = Qwen2ForCausalLM(config)
    ids = torch.tensor([prompt + answer * 2])
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        loss = model(input_ids=ids, labels=labels).loss
        if loss.item() < 0.01:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    GenerationConfig(eos_token_id=end).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

"""The demo model's tokenizer: Qwen2's, with a vocabulary of single bytes and the four tags as one token each.

It has to be Qwen2's kind: transformers 5 reads the tokenizer of every model of type `qwen2` with that class,
and so replaces any other splitting and decoding silently by Qwen2's. Without merges, Qwen2's byte-level BPE
writes one token per byte: every text can be written, and in ASCII a token is a character.
"""

from __future__ import annotations

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

PAD, EOS = "<pad>", "<eos>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# Messages on a line each; the answer starts on a new line. No role names: the model learned one kind of
# dialogue.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ "
    "eos_token }}{% else %}{{ '\\n"
    "' }}{% endif %}{% endfor %}"
)


def make_tokenizer(max_tokens: int) -> PreTrainedTokenizerBase:
    """262 tokens: 2 specials, 4 tags, 256 bytes.

    The tags are ordinary added tokens, not special ones: decoding with `skip_special_tokens` must keep them,
    or the format reward could not see them.
    """
    tokens = [PAD, EOS, *TAGS, *sorted(ByteLevel.alphabet())]
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[],
        unk_token=None,
        bos_token=None,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_tokens,
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer

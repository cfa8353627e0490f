"""The demo model's tokenizer: Qwen2's class with single bytes and four tags as its vocabulary.

transformers 5 loads the tokenizer of every `qwen2` model with Qwen2's class and silently replaces other
splitting and decoding. Without merges, Qwen2's byte-level BPE produces one token per byte, so every text can
be written, and an ASCII character is a token.
"""

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

PAD, EOS = "<pad>", "<eos>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# One message per line; the answer starts on a new line. Without role names.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ "
    "eos_token }}{% else %}{{ '\\n"
    "' }}{% endif %}{% endfor %}"
)


def make_tokenizer(max_tokens: int) -> PreTrainedTokenizerBase:
    """262 tokens: 2 special tokens, 4 tags, 256 bytes.

    The tags are not special tokens, because decoding with `skip_special_tokens` must keep them for the format
    reward.
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

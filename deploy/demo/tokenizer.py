"""The demo model's tokenizer: one token per printable ASCII character, the four tags one token each."""

from __future__ import annotations

import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n\t"

# Messages on a line each; the answer starts on a new line. No role names: the model learned one kind of dialogue.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
)


def make_tokenizer(max_tokens: int) -> PreTrainedTokenizerFast:
    """104 tokens: as many as rows of the model's embedding, so every token that can be sampled has a text.

    The tags are ordinary added tokens, not special ones: decoding with `skip_special_tokens` must keep them, or
    the format reward could not see them.
    """
    vocabulary = [PAD, EOS, UNKNOWN, *TAGS, *CHARACTERS]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    core.add_tokens(list(TAGS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer

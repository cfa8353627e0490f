"""Build the demo's models: small Qwen2s with their tokenizer, warm-started on additions or on programs.

    python -m tools.demo_models sums OUT [--seed 0]          built deploy/demo/model
    python -m tools.demo_models programs OUT [--seed 0]      built deploy/demo/programs

A simulated author writes the additions and misremembers some sums of two digits (`recall`). The model then
nearly always follows the answer format. The success rate of a problem is the product over its columns, from
almost 0 to almost 1. Allocation needs this spread. Each sum must be learned separately, from a successful
rollout. On one thread of the same machine and package versions, every build gives the same weights.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import torch
import typer
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from hora_rl.common.data import arithmetic
from tools import demo_programs
from tools.demo_programs import recall

MAX_TOKENS = 512
PAD, EOS = "<pad>", "<eos>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# One message per line; the answer starts on a new line. Without role names.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ "
    "eos_token }}{% else %}{{ '\\n"
    "' }}{% endif %}{% endfor %}"
)
STEPS = 700
DECAY = 100  # final steps with a falling learning rate; without them results depend on single weights
BATCH = 128
LEARNING_RATE = 1.5e-3
WARM_START_DIGITS: Mapping[int, float] = {1: 0.1, 2: 0.3, 3: 0.3, 4: 0.2, 5: 0.1}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Shown = tuple[str, str]
"""A problem and the completion to imitate."""


@app.command("sums")
def build(out: Path, seed: int = 0, steps: int = STEPS) -> None:
    """Train for `steps` steps of 128 worked problems and save a Hugging Face folder to `out`. Takes about six
    minutes on one CPU thread. Raises FileExistsError if `out` contains files."""
    new_folder(out)
    tokenizer = make_tokenizer(MAX_TOKENS)
    torch.set_num_threads(1)
    model = make_model(tokenizer, seed)
    warm_start(model, tokenizer, seed, steps)
    save(model, tokenizer, out)


@app.command("programs")
def build_programs(out: Path, seed: int = 0, steps: int = STEPS) -> None:
    """Build the code task: its model (0.2 million parameters) in `out/model`, and the data sets
    `out/train.jsonl` and `out/held-out.jsonl`. Takes a few minutes on one CPU thread. Raises FileExistsError
    if `out` contains files."""
    new_folder(out)
    demo_programs.write(out, seed)
    tokenizer = make_tokenizer(MAX_TOKENS)
    model = make_model(tokenizer, seed, heads=2, layers=3)
    chance = random.Random(f"author:{seed}")
    chains = demo_programs.chains(seed + 1)
    shown = ((c.problem, demo_programs.completion(c.misremembered(chance).program)) for c in chains)
    torch.set_num_threads(1)
    imitate(model, tokenizer, shown, steps)
    save(model, tokenizer, out / "model")


def new_folder(out: Path) -> None:
    """Create `out` if needed. Raises FileExistsError if it contains files."""
    if out.is_dir() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty: name a new folder")
    out.mkdir(parents=True, exist_ok=True)


def make_tokenizer(max_tokens: int) -> PreTrainedTokenizerBase:
    """262 tokens: 2 special tokens, 4 tags, 256 bytes.

    transformers loads the tokenizer of every `qwen2` model with Qwen2's class. Without merges its byte-level
    BPE produces one token per byte, so every text can be written. The tags are not special tokens, because
    decoding with `skip_special_tokens` must keep them for the format reward.
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


def make_model(
    tokenizer: PreTrainedTokenizerBase, seed: int, heads: int = 4, layers: int = 4
) -> Qwen2ForCausalLM:
    """Qwen2 with random float32 weights and head size 32, vLLM's smallest on CPU. By default 0.8 million
    parameters."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32 * heads,
        intermediate_size=96 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config).float()


def warm_start(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, seed: int, steps: int) -> None:
    """`imitate` worked problems of the training split."""
    problems = arithmetic.stream(seed, "train", WARM_START_DIGITS)
    chance = random.Random(f"warm start:{seed}")
    shown = ((p.problem, demonstration(p, chance)) for p in problems)
    imitate(model, tokenizer, shown, steps)


def imitate(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, shown: Iterator[Shown], steps: int
) -> None:
    """Supervised learning on completions, `BATCH` per step."""

    def loss() -> Tensor:
        tokens, labels = encode(list(islice(shown, BATCH)), tokenizer)
        loss: Tensor = model(input_ids=tokens, labels=labels).loss
        return loss

    descend(model, loss, steps, LEARNING_RATE, DECAY)


def descend(
    model: Qwen2ForCausalLM,
    loss_of_batch: Callable[[], Tensor],
    steps: int,
    rate: float,
    decay: int,
    report_every: int = 50,
) -> None:
    """Minimise the loss with AdamW, one batch per step. The rate rises over 50 steps, stays constant, and
    falls to 0 over the last `decay` steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50, (steps - step) / decay)
    )
    start = time.monotonic()
    model.train()
    for step in range(1, steps + 1):
        loss = loss_of_batch()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % report_every == 0:
            seconds = time.monotonic() - start
            print(f"warm start: step {step}/{steps}, loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
    model.eval()


def demonstration(problem: arithmetic.Addition, chance: random.Random) -> str:
    """A completion in the format, column by column. A misremembered sum is one too small."""
    columns, digits, carry = [], "", 0
    for x, y in zip(reversed(str(problem.a)), reversed(str(problem.b)), strict=True):
        total = int(x) + int(y) + carry
        if total and chance.random() >= recall(f"sum {min(x, y)}+{max(x, y)}"):
            total -= 1
        columns.append(f"{x}+{y}+{carry}={total}")
        digits, carry = f"{total % 10}{digits}", total // 10
    answer = f"{carry or ''}{digits}"
    return f"<think>{','.join(columns)}</think><answer>{answer}</answer>"


def encode(shown: Sequence[Shown], tokenizer: PreTrainedTokenizerBase) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) of problems and completions, padded on the right, and labels (B, T), -100 on prompt and
    padding."""
    rows, prompts = [], []
    for problem, completion in shown:
        user = {"role": "user", "content": problem}
        assistant = {"role": "assistant", "content": completion}
        prompt = tokenizer.apply_chat_template([user], add_generation_prompt=True, tokenize=False)
        prompts.append(len(tokenizer(prompt).input_ids))
        rows.append(tokenizer(tokenizer.apply_chat_template([user, assistant], tokenize=False)).input_ids)
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        tokens[i, : len(row)] = torch.tensor(row)
        labels[i, prompt : len(row)] = torch.tensor(row[prompt:])
    return tokens, labels


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Save a Hugging Face folder: safetensors, generation settings for plain sampling, tokenizer with chat
    template."""
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    app()

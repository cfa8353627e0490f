"""A recall task: prompts whose right answers a warm-started model gives with probabilities that were chosen.

The answer is short, so a prompt's success under any weights is known exactly: by teacher forcing of its right
completions, and Pass@K = 1 - (1 - p)^K has no sampling noise.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hora_rl.common.errors import ConfigError
from hora_rl.evaluation.pass_at_k import pass_at_k
from research.tasks.decoding import decode, prefilled
from research.tasks.reward import ANY, TAGGED, is_right

TRAINED, TASK_FILE = "trained", "task.json"
KS = (1, 4, 16, 64, 256)
"""The K of Pass@K that curves have."""
SAMPLES = 32
"""Completions of a prompt from which a task that is not exact is evaluated."""
AT_A_TIME = 4
"""Prompts that are sampled together: the cache of their completions takes memory."""


@dataclass(frozen=True, slots=True)
class RecallTask:
    """n prompts: their questions, and the right answers of each, as many for every prompt.

    `sets` names subsets of the prompts by number; a run trains on "trained", the others are only
    watched. `form` is a right completion with {} in place of the answer; where it begins with … other text
    may come before, so many completions are right and success can only be sampled.
    """

    name: str
    questions: tuple[str, ...]
    right: tuple[tuple[str, ...], ...]
    sets: Mapping[str, tuple[int, ...]]
    form: str = TAGGED

    @property
    def exact(self) -> bool:
        return not self.form.startswith(ANY)

    @property
    def measured(self) -> list[str]:
        """The sets whose Pass@K is followed: where that is sampled, those that are not trained."""
        return [name for name in self.sets if self.exact or name != TRAINED]

    @property
    def ks(self) -> tuple[int, ...]:
        """The K of its Pass@K."""
        return tuple(k for k in KS if self.exact or k <= SAMPLES)

    def save(self, folder: Path) -> None:
        """Write the task and its sets: JSONL of `{"problem", "answer"}`, right answers joined by |."""
        (folder / TASK_FILE).write_text(json.dumps(asdict(self)))
        for name, prompts in self.sets.items():
            rows = ({"problem": self.questions[i], "answer": "|".join(self.right[i])} for i in prompts)
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def pass_at_ks(success: NDArray) -> dict[str, float]:
    """Pass@K over prompts of `success` (n,)."""
    return {f"pass@{k}": float(np.mean(1 - (1 - success) ** k)) for k in KS}


def load_task(folder: Path) -> RecallTask:
    """The task that was saved in `folder`. Raises ConfigError where there is none."""
    try:
        about = json.loads((folder / TASK_FILE).read_text())
    except OSError:
        raise ConfigError(
            f"{folder}: holds no {TASK_FILE}; make one: `python -m research.tasks.build facts {folder}`"
        ) from None
    return RecallTask(
        about["name"],
        tuple(about["questions"]),
        tuple(map(tuple, about["right"])),
        {name: tuple(prompts) for name, prompts in about["sets"].items()},
        about.get("form", TAGGED),
    )


class Demonstrations(Protocol):
    """Draws demonstrations for the warm start."""

    def __call__(self, rng: np.random.Generator, count: int) -> tuple[list[int], list[str], NDArray]:
        """`count` prompts by number, an answer to each, and the weight of each (count,) in the loss."""


class ExactSuccess:
    """Success of the prompts of one set under a model's present weights."""

    def __init__(self, task: RecallTask, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        prompts = task.sets[name]
        self._prompts = encode_prompts([task.questions[i] for i in prompts], tokenizer)
        right = [[task.form.format(a) for a in task.right[i]] for i in prompts]
        self._right = torch.tensor([[encode_completion(c, tokenizer) for c in row] for row in right])

    @torch.no_grad()
    def __call__(self, model: PreTrainedModel, rows: Sequence[int] | None = None) -> NDArray[np.float64]:
        """(n, R): the probability of each of the R right completions of each prompt (or of those in `rows`),
        at temperature 1."""
        chosen = torch.arange(len(self._prompts)) if rows is None else torch.tensor(rows)
        return _logprobs(model, self._prompts[chosen], self._right[chosen]).sum(dim=2).exp().double().numpy()

    def figures(self, model: PreTrainedModel) -> dict[str, float]:
        """Pass@K, and how many right answers of a prompt are in use (exp of their entropy)."""
        success = self(model)
        total = success.sum(axis=1)
        share = success / np.maximum(total, 1e-300)[:, None]
        ways = np.exp(-(share * np.log(np.maximum(share, 1e-300))).sum(axis=1))
        return {**pass_at_ks(total), "ways": float(ways.mean())}


class SampledSuccess:
    """Right completions of the prompts of one set whose right answer has many texts, among `SAMPLES` of each,
    of at most `most` tokens."""

    def __init__(self, task: RecallTask, name: str, tokenizer: PreTrainedTokenizerBase, most: int) -> None:
        self._task, self._of, self._tokenizer, self._most = task, task.sets[name], tokenizer, most
        self._prompts = encode_prompts([task.questions[i] for i in self._of], tokenizer)

    def figures(self, model: PreTrainedModel) -> dict[str, float]:
        """Pass@K at temperature 1, of the same random numbers at every call."""
        random, end = torch.Generator().manual_seed(0), self._tokenizer.eos_token_id
        texts = list[str]()
        for prompts in self._prompts.split(AT_A_TIME):
            begun, counts = prefilled(model, prompts), [SAMPLES] * len(prompts)
            drawn = decode(model, begun, counts, end=end, most=self._most, random=random)
            texts += [str(self._tokenizer.decode([t for t in tokens if t != end])) for tokens, _ in drawn]
        gold = ("|".join(self._task.right[i]) for i in self._of for _ in range(SAMPLES))
        right = [is_right(text, answer, self._task.form) for text, answer in zip(texts, gold, strict=True)]
        counts = np.reshape(right, (-1, SAMPLES)).sum(axis=1)
        ks = (k for k in KS if k <= SAMPLES)
        return {f"pass@{k}": float(pass_at_k(counts, SAMPLES, k).mean()) for k in ks}


def logprobs(model: PreTrainedModel, prompts: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
    """(B, L) log-probs of completions (B, L) after prompts (B, P)."""
    logits = model(input_ids=torch.cat([prompts, completions], dim=1)).logits[:, prompts.shape[1] - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, completions[..., None])[..., 0]


def _logprobs(model: PreTrainedModel, prompts: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
    """(B, R, L) log-probs of completions (B, R, L), R of each of the prompts (B, P), without gradients."""
    begun = prefilled(model, prompts)
    cache, last = begun.cache, begun.logits
    cache.batch_repeat_interleave(completions.shape[1])
    tokens = completions.flatten(0, 1)
    rest = model(input_ids=tokens[:, :-1], past_key_values=cache, use_cache=True).logits
    logits = torch.cat([last[:, None].repeat_interleave(completions.shape[1], dim=0), rest], dim=1)
    chosen = torch.log_softmax(logits.float(), dim=-1).gather(-1, tokens[..., None])[..., 0]
    return chosen.reshape(completions.shape)


def encode_prompts(questions: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """(n, P) tokens of the rendered prompts, which must be of equal length."""
    chats = [[{"role": "user", "content": q}] for q in questions]
    rendered = [tokenizer.apply_chat_template(c, add_generation_prompt=True, tokenize=False) for c in chats]
    return torch.tensor([tokenizer(text).input_ids for text in rendered])


def encode_completion(completion: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of a completion, its end token included."""
    return [*tokenizer(completion).input_ids, tokenizer.eos_token_id]

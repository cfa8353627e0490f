"""Scores: the gradient of log p(completion | prompt) by all weights but the embedding, kept as sketches.

A sketch signs the gradient's entries at random and adds those whose index is equal modulo `width`. Inner
products of sketches are unbiased; their error is about |x||y|/√width. One file a score, so an interrupted
run continues.
"""

from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from hora_rl.common.console import counting_bar, shown
from research.gradients.bank import Sampled
from research.gradients.design import Design
from research.gradients.noise import Array


def signs(size: int, width: int, seed: int) -> Tensor:
    """(rows, width) of ±1, rows · width being at least `size`."""
    shape = (-(-size // width), width)
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


def sketch(vector: Tensor, signs_: Tensor) -> Tensor:
    """(width,) of a vector (size,)."""
    total = torch.zeros(signs_.shape[1])
    for part, sign in zip(vector.split(len(total)), signs_, strict=True):
        total[: len(part)].addcmul_(part, sign[: len(part)])
    return total


def weights(model: PreTrainedModel) -> list[Tensor]:
    """All weights but the embedding, which may be tied to the output."""
    model.requires_grad_(True)
    model.get_input_embeddings().weight.requires_grad_(False)
    return [w for w in model.parameters() if w.requires_grad]


def score(model: PreTrainedModel, by: list[Tensor], prompt: list[int], completion: list[int]) -> Tensor:
    """(size,) the gradient of the completion's log probability, its end of line included."""
    ids = torch.tensor([prompt + completion])
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(completion) + 1).logits[0, :-1]
    log_p = -cross_entropy(logits.float(), ids[0, -len(completion) :], reduction="sum")
    return torch.cat([g.flatten() for g in torch.autograd.grad(log_p, by)])


def chosen(prompt: Sampled, design: Design) -> tuple[list[int], list[int]]:
    """Which completions have scores: the first hits and the first misses."""
    hits = [i for i, right in enumerate(prompt.right) if right]
    misses = [i for i, right in enumerate(prompt.right) if not right]
    return hits[: design.hits], misses[: design.misses]


def measure(folder: Path, design: Design, model: PreTrainedModel, prompts: list[Sampled]) -> None:
    """Every score that `folder` lacks, all prompts in turn, and the sketches' errors on the first ones."""
    by = weights(model)
    signs_ = signs(sum(w.numel() for w in by), design.width, design.seed)
    (folder / "scores").mkdir(exist_ok=True)
    if not (folder / "errors.npy").exists():
        first = [
            (p, p.completions[i]) for p in prompts[: design.exact // 2] for i in chosen(p, design)[0][:2]
        ]
        np.save(folder / "errors.npy", _errors([score(model, by, p.prompt, c) for p, c in first], signs_))
    order = [(at, k, i) for k, p in enumerate(prompts) for of in chosen(p, design) for at, i in enumerate(of)]
    files = [(k, i, folder / "scores" / f"{k}-{i}.npy") for _, k, i in sorted(order)]
    todo = [each for each in files if not each[-1].exists()]
    with shown(counting_bar(Console())) as bar:
        for k, i, file in bar.track(todo, description="scores"):
            vector = sketch(score(model, by, prompts[k].prompt, prompts[k].completions[i]), signs_)
            np.save(file.with_suffix(".part.npy"), vector.numpy())
            file.with_suffix(".part.npy").rename(file)


def _errors(exact: list[Tensor], signs_: Tensor) -> Array:
    """(pairs,) error of sketched inner products over |x||y|, pairs of a vector with itself included."""
    long, short = torch.stack(exact), torch.stack([sketch(x, signs_) for x in exact])
    norms = long.norm(dim=1)
    errors = (short @ short.T - long @ long.T) / norms[:, None] / norms
    return errors[tuple(torch.tril_indices(*errors.shape))].double().numpy()

"""Measure a small model on additions: success and format, and the spread over problems."""

import re

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from hora_rl.common.data import arithmetic

FORMAT = re.compile(r"<think>[^<]*</think>\s*<answer>([^<]*)</answer>")
MAX_TOKENS = 96
NEARLY = 0.1  # success rates above 1 - NEARLY count as nearly solved, below NEARLY as almost never solved


def measure(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
    problems: int = 120,
    samples: int = 32,
) -> dict[str, object]:
    """Sample `samples` completions at temperature 1 for each of `problems` held-out problems.

    Returns mean success and format, success by digits, the shares of problems with a success rate of at least
    0.9, between, and at most 0.1, mean completion length in tokens, and Pass@`samples`.
    """
    torch.manual_seed(seed)
    rows = arithmetic.generate(seed, "held-out", problems)
    rates, formatted, lengths = np.array([_outcomes(model, tokenizer, p, samples) for p in rows]).T
    digits = np.array([p.digits for p in rows])
    means: dict[str, np.ndarray] = {
        "success": rates,
        "pass_at_samples": rates > 0,
        "format": formatted,
        "tokens": lengths,
        "nearly_solved": rates >= 1 - NEARLY,
        "between": (rates > NEARLY) & (rates < 1 - NEARLY),
        "almost_never": rates <= NEARLY,
    }
    found: dict[str, object] = {name: round(float(values.mean()), 4) for name, values in means.items()}
    by_digits = {str(n): round(float(rates[digits == n].mean()), 4) for n in np.unique(digits)}
    return {"problems": problems, "samples": samples, **found, "success_by_digits": by_digits}


@torch.no_grad()
def _outcomes(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, problem: arithmetic.Addition, samples: int
) -> tuple[float, float, float]:
    """Shares of one problem's samples that are correct and in the format, and the mean length in tokens,
    including the end token."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem.problem}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    output = model.generate(
        **prompt,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=samples,
        max_new_tokens=MAX_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    completions = output[:, prompt["input_ids"].shape[1] :]
    lengths = (completions != tokenizer.pad_token_id).sum(dim=1).tolist()
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    matches = [match for text in texts if (match := FORMAT.fullmatch(text))]
    correct = sum(match[1].strip() == problem.answer for match in matches)
    return correct / samples, len(matches) / samples, sum(lengths) / samples

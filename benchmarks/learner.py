"""Learner tokens per second against TRL's GRPO loss on the same ragged batch padded. Both sides in one run,
on CPU.

    python -m benchmarks.learner [--samples 64] [--rounds 3]
    python -m benchmarks.learner --shared MODEL [--prompt 42] [--completion 5] [--samples 64]

Same model (random Qwen2 weights, float32), same threads, same completions; forward and backward of the whole
batch on either side, no optimizer. TRL pads its generation batch to the longest completion and cuts it into
micro-batches of equal count; ours are cut to a token budget that gives both sides about as much memory. TRL's
advantages carry the factor N/(Γ G_i), with which its `dr_grpo` loss is our objective: the gradients are
compared before anything is timed. The batch is drawn from a seed: long-tailed lengths, group sizes such as an
adaptive rule gives. Every group has signal; groups without it are left out of the computation by our side and
would only raise the ratio.

With `--shared` both sides are ours, on the model of a folder: each prompt computed once, against each rollout
with its prompt; groups of 16 completions of about that many tokens.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2ForCausalLM

from hora_rl.common.config import ObjectiveConfig
from hora_rl.common.types import Group
from hora_rl.learner.model.flops import Shape
from hora_rl.learner.model.logprobs import Policy
from hora_rl.learner.model.objective import policy_loss
from hora_rl.learner.rows.batch import MicroBatch, micro_batches, samples_of
from hora_rl.learner.rows.estimator import Estimator
from hora_rl.learner.rows.packing import Sample, Sharing, rows_of, window_of
from tests.support.formula import flat
from tests.support.groups import group, rollout
from tests.support.samples import sample
from tests.support.tiny_qwen2 import shape_of

WEIGHTS = {"accuracy": 0.5, "format": 0.5}
TEMPERATURE = 0.7


def small_model(vocabulary: int = 8192, hidden: int = 256, layers: int = 4) -> Any:
    torch.manual_seed(0)
    sizes = vocabulary, hidden, hidden * 8 // 3 // 8 * 8, layers, 4, 2
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return Qwen2ForCausalLM(shape_of(*sizes, max_position_embeddings=4096, **tokens)).float()


def ragged_batch(samples: int, max_response: int, vocabulary: int, seed: int = 0) -> list[Group]:
    """Groups of unequal size; lengths lognormal (median a quarter of the maximum), cut at the maximum."""
    rng = np.random.default_rng(seed)
    sizes = [2] * (samples // 8) + [samples // 8] * 2
    sizes.append(samples - sum(sizes))
    groups = []
    for i, size in enumerate(sizes):
        prompt = rng.integers(2, vocabulary, int(rng.integers(20, 75)))
        rollouts = []
        for j in range(size):
            n = int(np.clip(rng.lognormal(np.log(max_response / 4), 0.6), 1, max_response))
            tokens = rng.integers(2, vocabulary, n)
            rollouts.append(rollout(tokens, logprobs=-np.log(vocabulary), success=j == 0))
        groups.append(group(i, rollouts, prompt=prompt))
    return groups


def trl_trainer(model: Any, max_response: int, folder: str, **settings: Any) -> Any:
    """A real GRPOTrainer around `model`, ready for `_compute_loss` on tensors of ours; `settings` are
    GRPOConfig's."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    args = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        fp16=False,
        report_to=[],
        temperature=TEMPERATURE,
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=max_response,
        gradient_checkpointing=False,
        disable_tqdm=True,
        **{"loss_type": "dr_grpo", "beta": 0.0, **settings},
    )
    data = Dataset.from_dict({"prompt": ["<pad>"] * 2})
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def trl_inputs(samples: Sequence[Sample], max_response: int) -> dict[str, torch.Tensor]:
    """The samples as TRL lays them out: prompts padded left, completions right, all to the longest.

    `advantages` carry N · Z · scale = N/(Γ G_i), so that TRL's mean over rows is our sum.
    """
    n = len(samples)
    width, length = max(len(s.prompt) for s in samples), max(len(s.tokens) for s in samples)
    prompts, completions = np.zeros((n, width), np.int64), np.zeros((n, length), np.int64)
    prompt_mask, mask = np.zeros_like(prompts), np.zeros_like(completions)
    for i, s in enumerate(samples):
        prompts[i, width - len(s.prompt) :], prompt_mask[i, width - len(s.prompt) :] = s.prompt, 1
        completions[i, : len(s.tokens)], mask[i, : len(s.tokens)] = s.tokens, 1
    advantages = [s.advantage * s.scale * n * max_response for s in samples]
    return {
        "prompt_ids": torch.from_numpy(prompts),
        "prompt_mask": torch.from_numpy(prompt_mask),
        "completion_ids": torch.from_numpy(completions),
        "completion_mask": torch.from_numpy(mask),
        "advantages": torch.tensor(advantages, dtype=torch.float32),
        "num_items_in_batch": torch.tensor(int(mask.sum())),
    }


def trl_pass(trainer: Any, inputs: dict[str, torch.Tensor], rows: int) -> None:
    """Forward and backward over the padded batch, `rows` completions at a time."""
    total = len(inputs["advantages"])
    for at in range(0, total, rows):
        part = {k: v[at : at + rows] if v.dim() else v for k, v in inputs.items()}
        loss = trainer._compute_loss(trainer.model, part)
        (loss * len(part["advantages"]) / total).backward()


def our_pass(policy: Policy, micro: Sequence[MicroBatch], objective: ObjectiveConfig, chunk: int) -> None:
    for m in micro:
        logprobs, _ = policy(m, TEMPERATURE, chunk)
        policy_loss(logprobs, logprobs.detach(), m, objective)[0].backward()


def timed(run: Any, model: Any) -> float:
    model.zero_grad()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def compare(args: argparse.Namespace, out: Console) -> None:
    """Print tokens per second of both sides, once their gradients are equal."""
    max_response, rows = args.max_response, args.rows
    objective = ObjectiveConfig(importance="none")
    model = small_model().train()
    vocabulary = model.config.vocab_size
    groups = ragged_batch(args.samples, max_response, vocabulary)
    samples = samples_of(
        groups, Estimator(objective, WEIGHTS, "accuracy", 8, max_response), len(groups), version=0
    )
    tokens = sum(s.length for s in samples)
    inputs = trl_inputs(samples, max_response)
    padded = inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
    micro, figures = micro_batches([[s] for s in samples], rows * padded // len(samples))
    policy = Policy(model)
    our = partial(our_pass, policy, micro, objective, 1024)
    # Timed once before TRL wraps the forward of the model too, so that its wrapper cannot slow our side
    # unseen.
    timed(our, model)
    expected = flat(model)
    alone = timed(our, model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl_trainer(model, max_response, folder)
        model.train()
        trl = partial(trl_pass, trainer, inputs, rows)
        timed(trl, model)
        difference = float((flat(model) - expected).norm() / expected.norm())
        pairs = [(timed(our, model), timed(trl, model)) for _ in range(args.rounds)]
    sizes = [group.size for group in groups]
    out.print(f"groups of {sizes} completions, {tokens} real tokens, {args.threads} thread(s), float32")
    out.print(f"gradients differ by {difference:.1e} relative")
    if difference > 1e-3:
        raise SystemExit("the two sides do not compute the same gradient: the times say nothing")
    ours, theirs = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    real = figures["packing/tokens"] / figures["packing/processed"]
    out.print(f"TRL   {tokens / theirs:8.0f} tokens/s, {tokens / padded:.1%} of processed tokens real")
    out.print(f"ours  {tokens / ours:8.0f} tokens/s, {real:.1%} of processed tokens real")
    ratios = [b / a for a, b in pairs]
    out.print(
        f"ratio {statistics.median(ratios):.2f} (rounds {', '.join(f'{x:.2f}' for x in ratios)}; before "
        f"TRL had the model: {tokens / alone:.0f} tokens/s)"
    )


def shared(args: argparse.Namespace, out: Console) -> None:
    """Print tokens and seconds of forward and backward with shared prompts and without, in turns."""
    model = AutoModelForCausalLM.from_pretrained(args.shared, dtype=getattr(torch, args.dtype)).train()
    policy, objective = Policy(model), ObjectiveConfig(importance="none")
    samples = grouped(args.samples, args.prompt, args.completion, model.config.vocab_size)
    sharing = Sharing(Shape.of(model).even, window_of(model.config))
    sides = {name: rows_of(samples, args.budget, s) for name, s in (("alone", None), ("shared", sharing))}
    micro = {name: micro_batches(rows, args.budget)[0] for name, rows in sides.items()}
    gradients = {}
    for name, side in micro.items():
        timed(partial(our_pass, policy, side, objective, 1024), model)
        gradients[name] = flat(model).double()
    norm = gradients["alone"].norm()
    out.print(f"gradients differ by {float((gradients['alone'] - gradients['shared']).norm() / norm):.1e}")
    seconds: dict[str, list[float]] = {name: [] for name in micro}
    for _ in range(args.rounds):
        for name, side in micro.items():
            seconds[name].append(timed(partial(our_pass, policy, side, objective, 1024), model))
    for name, rows in sides.items():
        widest = max(len(row) for row in rows)
        out.print(
            f"{name:6} {sum(m.input_ids.numel() for m in micro[name]):7} tokens in {len(micro[name])} "
            f"micro-batches, up to {widest} completions a row: {min(seconds[name]):.2f} s at best"
        )
    ratios = [a / b for a, b in zip(seconds["alone"], seconds["shared"], strict=True)]
    out.print(f"ratio {statistics.median(ratios):.2f} (rounds {', '.join(f'{x:.2f}' for x in ratios)})")


def grouped(count: int, prompt: int, completion: int, vocabulary: int) -> list[Sample]:
    """Samples of prompts of `prompt` tokens, 16 each; lengths from half to one and a half of `completion`."""
    rng, samples = np.random.default_rng(0), []
    for i in range(count):
        if i % 16 == 0:
            ids = rng.integers(2, vocabulary, prompt)
        n = int(rng.integers(completion // 2, completion * 3 // 2 + 1))
        tokens = rng.integers(2, vocabulary, max(1, n))
        samples.append(sample(ids, tokens, advantage=(-1.0) ** i, scale=1.0 / count))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8, help="completions of one TRL micro-batch")
    parser.add_argument("--max-response", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shared", metavar="MODEL", help="compare shared prompts with repeated ones")
    parser.add_argument("--prompt", type=int, default=42, help="tokens of a prompt")
    parser.add_argument("--completion", type=int, default=5, help="tokens of a completion, about")
    parser.add_argument("--budget", type=int, default=4096, help="tokens of one micro-batch")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    (shared if args.shared else compare)(args, Console(soft_wrap=True))


if __name__ == "__main__":
    main()

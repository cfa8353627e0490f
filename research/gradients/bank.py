"""The bank: prompts with sampled completions, right or wrong: word problems, or those of `hora eval`.

`bank.jsonl` has one line a candidate and is only appended to, so an interrupted run continues.
"""

import json
import random
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hora_rl.actors.verifier.answers import load_extract
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError
from hora_rl.deploy.launch.evaluation import load_benchmark
from hora_rl.evaluation.benchmarks import find_benchmark
from hora_rl.evaluation.samples import fingerprint, read_samples
from research.gradients.design import Design
from research.tasks.decoding import decode, prefilled

SHOTS = (
    "Q: Ann has 4 pens and buys 3 more. How many pens does she have?\n"
    "A: She has 4 pens and gets 3 more, so 4 + 3 = 7. The answer is 7.\n"
    "Q: Ben has 8 nuts and eats 2. How many nuts are left?\n"
    "A: He has 8 nuts and loses 2, so 8 - 2 = 6. The answer is 6.\n"
    "Q: Eva has 3 bags with 5 coins in each. How many coins does she have?\n"
    "A: There are 3 bags of 5 coins, so 3 * 5 = 15. The answer is 15.\n"
)
NAMES, THINGS = ("Tom", "Lea", "Max", "Ida", "Sam", "Zoe"), ("apples", "books", "cards", "eggs", "stamps")


@dataclass(frozen=True, slots=True)
class Sampled:
    """A prompt (P,) with its completions, each (L,) tokens up to and with the end of the line."""

    text: str
    answer: int
    prompt: list[int]
    completions: list[list[int]]
    right: list[bool]


def problems(n: int, seed: int) -> list[tuple[str, int]]:
    """`n` different questions of one step with their answers: sums, differences and products in turn."""
    draw = random.Random(seed)
    answers: dict[str, int] = {}
    while len(answers) < n:
        name, thing = draw.choice(NAMES), draw.choice(THINGS)
        a, b = draw.randint(5, 9), draw.randint(1, 4)
        few, many = draw.randint(2, 5), draw.randint(2, 6)
        kinds = (
            (f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have?", a + b),
            (f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?", a - b),
            (f"{name} has {few} boxes with {many} {thing} in each. How many {thing} are there?", few * many),
        )
        question, answer = kinds[len(answers) % 3]
        answers[question] = answer
    return list(answers.items())


def is_right(completion: str, answer: int) -> bool:
    """Whether the last "answer is" names exactly the number."""
    return (load_extract("final")(completion) or "").strip().rstrip(".") == str(answer)


def fill(folder: Path, design: Design, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Sample the candidates that the bank lacks, in turn, until enough prompts can be kept.

    The first `screen` completions say whether a candidate is likely to have enough hits and misses. If so it
    gets `samples` others, so that its success rate is not biased; else it stays empty.
    """
    lines = _line_ends(tokenizer)
    bank = read(folder)
    todo = list(enumerate(problems(design.candidates, design.seed)))[len(bank) :]
    for i, (question, answer) in todo:
        if len(kept(bank, design)) == design.prompts:
            return
        text = f"{SHOTS}Q: {question}\nA:"
        prompt = list(tokenizer(text, add_special_tokens=False).input_ids)
        random = torch.Generator().manual_seed(1000 * design.seed + i)
        draw = partial(sample, model, prompt, most=design.max_tokens, ends=lines, random=random)
        hits = sum(_judged(draw(design.screen), answer, tokenizer))
        likely = min(hits, design.screen - hits) * design.samples >= design.min_hits * design.screen
        completions = draw(design.samples) if likely else []
        right = _judged(completions, answer, tokenizer)
        bank.append(Sampled(text, answer, prompt, completions, right))
        with (folder / "bank.jsonl").open("a") as file:
            file.write(json.dumps(asdict(bank[-1])) + "\n")
        print(f"prompt {i}: {sum(right)} of {len(right)} right", flush=True)


def of_samples(file: Path, config: Config, benchmark: str) -> list[Sampled]:
    """The prompts of `benchmark` under `config` with the completions of a sample file of `hora eval`.

    Texts are tokenized again, which may split one differently than the model wrote it. Raises ConfigError
    where the file has other prompts or is damaged.
    """
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    prompts = load_benchmark(config, find_benchmark(benchmark), Console())
    with file.open(encoding="utf-8") as lines:
        header = json.loads(next(lines))
    if header["problems"] != fingerprint(prompts):
        raise ConfigError(f"{file}: its prompts are not those of {benchmark} under {config.run.name}")
    sampled = {p.index: Sampled(p.text, 0, p.tokens.tolist(), [], []) for p in prompts}
    for sample in read_samples(file):
        end = [tokenizer.eos_token_id] if sample.finish_reason == "stop" else []
        tokens = tokenizer(sample.text, add_special_tokens=False).input_ids
        sampled[sample.problem].completions.append([*tokens, *end])
        sampled[sample.problem].right.append(sample.success)
    return [s for s in sampled.values() if s.right]


def write(folder: Path, bank: list[Sampled]) -> None:
    (folder / "bank.jsonl").write_text("".join(json.dumps(asdict(s)) + "\n" for s in bank))


def read(folder: Path) -> list[Sampled]:
    """All candidates of the bank so far; a last line that was cut off is dropped from the file."""
    file = folder / "bank.jsonl"
    if not file.exists():
        return []
    complete, end, _ = file.read_text().rpartition("\n")
    file.write_text(complete + end)
    return [Sampled(**json.loads(line)) for line in complete.splitlines()]


def kept(bank: list[Sampled], design: Design) -> list[Sampled]:
    """The prompts of the study: the first with enough hits and misses."""
    enough = [s for s in bank if design.min_hits <= sum(s.right) <= len(s.right) - design.min_hits]
    return enough[: design.prompts]


def sample(
    model: PreTrainedModel, prompt: list[int], n: int, *, most: int, ends: list[int], random: torch.Generator
) -> list[list[int]]:
    """`n` completions at temperature 1, each cut after its first token of `ends` or at `most` tokens."""
    begun = prefilled(model, torch.tensor([prompt]))
    rows = decode(model, begun, [n], end=ends[0], most=most, random=random)
    stops = [next((i for i, token in enumerate(row) if token in ends), most) for row, _ in rows]
    return [row[: stop + 1] for (row, _), stop in zip(rows, stops, strict=True)]


def _judged(completions: list[list[int]], answer: int, tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    return [is_right(str(tokenizer.decode(c)).split("\n")[0], answer) for c in completions]


def _line_ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a line or the text, first the line break alone."""
    ends = [i for i in range(len(tokenizer)) if "\n" in str(tokenizer.decode([i]))]
    return [*tokenizer("\n", add_special_tokens=False).input_ids, *ends, int(tokenizer.eos_token_id)]

"""Run folders for reports, with made-up groups and results."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from hora_rl.allocator import allocate
from hora_rl.common.types import Prompt
from hora_rl.evaluation.benchmarks import BENCHMARKS
from hora_rl.evaluation.evaluate import Counts
from hora_rl.evaluation.report.tables import table_1, write_result
from hora_rl.evaluation.results import Result, make_result
from hora_rl.evaluation.run_folders import Run, load_run

G, G0, PROMPTS = 32, 8, 15
MODEL = "hub/Qwen2.5-7B"


def make_run(
    folder: Path, rule: str, seed: int, steps: int = 60, advantage: str = "grpo", evaluated: bool = True
) -> Path:
    """A run folder as a run of Γ = 4·15 prompts leaves it, its counts drawn with success rates that rise.

    One shard of every batch is trained a step later, as with staleness 1; the last step takes two of its own.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    config = {
        "model": {"path": MODEL},
        "rollout": {"pre_rollouts": G0, "prompts_per_batch": 4 * PROMPTS},
        "allocation": {"rule": rule, "prior": "fixed"},
        "learner": {"objective": {"advantage": advantage}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with (folder / "groups.jsonl").open("w") as groups, (folder / "steps.jsonl").open("w") as metrics:
        for step in range(steps):
            acting = "uniform" if step < 5 else rule
            for shard in range(4):
                p = rng.beta(0.3 + 0.002 * step, 0.15, PROMPTS)
                counts = rng.binomial(G0, p)
                rule_now = "uniform" if acting == "uniform" else "hit_utility"
                extra = allocate(counts, G0, PROMPTS * (G - G0), rule=rule_now).tolist()
                for i in range(PROMPTS):
                    hits = int(counts[i] + rng.binomial(extra[i], p[i]))
                    line = {"step": min(steps - 1, step + (shard == 3)), "batch": step, "shard": shard}
                    line |= {"epoch": 0, "prompt_index": i, "rule": acting, "prior": [1.0, 1.0]}
                    line |= {"trials": G0, "successes": int(counts[i]), "extra": extra[i], "hits": hits}
                    line |= {"size": G0 + extra[i], "tokens": 100 * (G0 + extra[i])}
                    groups.write(json.dumps(line) + "\n")
            noise = rng.normal(0, 1, 4)
            record = {"step": step, "loss": noise[0] / 100}
            record |= {"reward/accuracy": 0.3 + 0.005 * step + noise[1] / 50}
            record |= {"entropy": 0.5 * 0.98**step + 0.1 + noise[2] / 100}
            record |= {"length/mean": 700 + 3 * step + 20 * noise[3]}
            record |= {"reward/format": min(1.0, 0.5 + 0.1 * step), "groups/zero_signal": step / 100}
            metrics.write(json.dumps(record) + "\n")
    for name, problems, scale in (("math500", 50, 1.0), ("aime25", 30, 0.15)) if evaluated else ():
        for step, gain in ((0, 0.6), (steps, 1.0)):
            correct = rng.binomial(256, np.clip(rng.beta(0.4, 0.6, problems) * scale * gain, 0, 1))
            write_result(folder / "evaluation", result(name, correct, step))
    return folder


def result(
    name: str, correct: Sequence[int] | np.ndarray, step: int, model: str | None = None, answer: str = "1"
) -> Result:
    benchmark, n = BENCHMARKS[name].sized(256, None), len(correct)
    rest = np.full(n, 250)
    counts = Counts(256, np.arange(n), np.asarray(correct), rest, rest * 400, rest // 10)
    problems = [Prompt(i, f"problem {i}", answer, np.zeros(1, np.int32)) for i in range(n)]
    of = model or ("run" if step else MODEL)
    return make_result(benchmark, counts, problems, of, step, temperature=0.7, seed=0)


def rows(runs: Sequence[Run]) -> dict[tuple[str, str], list[float | None]]:
    """Table 1 as (model, method) -> values."""
    table = table_1(runs)
    return {(model, method): [c and c.value for c in cells] for model, method, cells in table.rows}


def small_run(folder: Path, model: str = MODEL, *results: Result) -> Run:
    folder.mkdir(parents=True)
    config = {"model": {"path": model}, "allocation": {"rule": "uniform"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for r in results:
        write_result(folder / "evaluation", r)
    return load_run(folder)

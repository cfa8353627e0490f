"""Summary at the end of a one-machine run: Pass@K and completions before and after, Phase B, speed, model.

Printed and written to RUN/summary.json. Evaluations are resumable sample files in RUN/evaluation.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import compress
from pathlib import Path
from shlex import quote
from typing import Any, TypedDict, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hora_rl.actors.data.datasets import usable_held_out
from hora_rl.common.config import AllocationConfig
from hora_rl.common.config.allocation import UNIFORM
from hora_rl.common.console import say
from hora_rl.common.errors import ConfigError
from hora_rl.common.files import replace_text
from hora_rl.common.records import GroupRecord
from hora_rl.deploy.launch.best import read_best
from hora_rl.deploy.launch.evaluation import TrainingRun, read_run_results, samples_file
from hora_rl.deploy.monitor.run_state import KEPT, Metrics, balance, split_of
from hora_rl.evaluation.benchmarks import Benchmark, held_out
from hora_rl.evaluation.phase_b import PhaseB, counted
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import records
from hora_rl.evaluation.samples import first_samples

NUMBER = 3
LONGEST = 100
"""Characters of a text to print. Longer completions show their end, which holds the answer."""


class First(TypedDict):
    """The first completion of a problem, and its number of hits among `samples`."""

    text: str
    success: bool
    hits: int
    samples: int


class Example(TypedDict):
    problem: str
    answer: object
    before: First
    after: First


def summarise(run: TrainingRun) -> dict[str, object]:
    """Read the run's records, write RUN/summary.json and print tables. Rates leave the first step out, whose
    rollouts were sampled while the learner started."""
    config, run_dir = run.config, run.folder
    groups = cast(list[GroupRecord], records(run_dir / "groups.jsonl"))
    steps = records(run_dir / "steps.jsonl")
    results = read_run_results(config.evaluation, run_dir)
    summary = {
        "run": config.run.name,
        "steps": len(steps),
        "rollouts": sum(g["size"] for g in groups),
        "tokens": sum(g["tokens"] for g in groups),
        "seconds": sum(s["time/step"] for s in steps),
        "rollouts_per_second": _rate(steps[1:], "rollouts"),
        "tokens_per_second": _rate(steps[1:], "tokens"),
        "evaluation": [
            {
                "step": result.step,
                "problems": len(result.problems),
                "samples": result.samples,
                "format": result.format_share,
                "pass_at_k": [asdict(e) for e in result.estimates()],
            }
            for result in results
        ],
        "examples": read_examples(run, results),
        "best": read_best(run_dir),
        "allocation": phase_b_share(groups),
        "plain_grpo": _never_allocated(config.gate, config.allocation, groups),
        "balance": _idle_side(run, steps),
        "model": str(run_dir / "model"),
    }
    replace_text(run_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    _show(summary, run.console)
    return summary


def _rate(steps: Sequence[Metrics], name: str) -> float | None:
    seconds = sum(s["time/step"] or 0.0 for s in steps)
    return sum(s[name] or 0.0 for s in steps) / seconds if seconds else None


def _idle_side(run: TrainingRun, steps: Sequence[Metrics]) -> str:
    """The side that idled in the newest steps, and a split that would balance the run; empty if none did."""
    config, about = run.config, run.folder / "learner.json"
    learner = config.learner
    device = json.loads(about.read_text(encoding="utf-8"))["device"] if about.exists() else ""
    split = split_of(config.generator, learner, device)
    advice = balance(steps[-KEPT:], learner.steps, config.rollout.max_staleness, split)
    return "; ".join(filter(None, (advice.says, advice.remedy))) if advice else ""


def _never_allocated(gate: str | None, allocation: AllocationConfig, groups: list[GroupRecord]) -> str:
    rules = {g["rule"] for g in groups}
    if gate is None or not allocation.needs_counts or rules != {UNIFORM}:
        return ""
    warmup = allocation.warmup
    newest = max(g["batch"] for g in groups)
    means = [g["rewards"][gate] for g in groups if g["batch"] == newest]
    return (
        "the warm-up gate never opened, so every batch was allocated uniformly (plain GRPO): the mean "
        f"{gate} reward of the last batch was {sum(means) / len(means):.2f}, and {warmup.cycles} "
        f"batches in a row need {warmup.format_reward:.2f}"
    )


def phase_b_share(groups: list[GroupRecord]) -> list[dict[str, float]]:
    """For each observed c_i: share of prompts with that count, and their share of Phase B."""
    chosen = list(compress(groups, counted([g["rule"] for g in groups])))
    counts = PhaseB.count([g["successes"] for g in chosen], [g["extra"] for g in chosen], 0)
    return [
        {"successes": s.low, "prompts": s.prompts, "phase_b": s.phase_b or 0.0}
        for s in counts.shares()
        if s.prompts
    ]


def _show(summary: dict[str, Any], console: Console) -> None:
    if len(summary["evaluation"]) > 1:
        before, after = summary["evaluation"][0], summary["evaluation"][-1]
        title = f"Held-out: {before['problems']} problems x {before['samples']} samples"
        table = Table(title=title, title_justify="left")
        for column in ("", "before", "95% interval", "after", "95% interval"):
            table.add_column(column, justify="right" if column else "left")
        for old, new in zip(before["pass_at_k"], after["pass_at_k"], strict=True):
            table.add_row(f"Pass@{old['k']}", *_percent(old), *_percent(new))
        if None not in (before["format"], after["format"]):
            table.add_row("format", f"{before['format']:.1%}", "", f"{after['format']:.1%}", "")
        console.print(table)
    table = Table(title="Where Phase B went", title_justify="left")
    for column in ("c_i", "prompts", "Phase B"):
        table.add_column(column, justify="right")
    for row in summary["allocation"]:
        table.add_row(str(row["successes"]), f"{row['prompts']:.1%}", f"{row['phase_b']:.1%}")
    console.print(table)
    if summary["examples"]:
        console.print("Held-out problems, the first completion of each and the hits among all of them:")
        show_examples(summary["examples"], console)
    rate = ""
    if summary["rollouts_per_second"] is not None:
        rate = (
            f"; after the first step {summary['rollouts_per_second']:.0f} rollouts/s, "
            f"{summary['tokens_per_second']:.0f} tokens/s, training included"
        )
    say(console, f"{summary['steps']} steps, {summary['rollouts']} rollouts{rate}")
    for warning in filter(None, (summary["plain_grpo"], summary["balance"])):
        say(console, f"! {warning}", "yellow")
    model = summary["model"]
    say(console, f"checkpoint (Hugging Face folder): {model}")
    run_dir = quote(str(Path(model).parent))
    say(console, f"next: hora rollouts {run_dir}, hora report {run_dir}, or vllm serve {quote(model)}")


def _percent(e: dict[str, float]) -> tuple[str, str]:
    return f"{e['value']:.1%}", f"{e['low']:.1%} .. {e['high']:.1%}"


def read_examples(run: TrainingRun, results: list[Result]) -> list[Example]:
    """Examples from the first and the last evaluation. Empty for fewer than two, or if problems or samples
    are missing."""
    if len(results) < 2:
        return []
    try:
        rows, benchmark = usable_held_out(run.config).rows[:NUMBER], held_out(run.config.evaluation)
        before, after = (_first_of(benchmark, run.folder, result) for result in (results[0], results[-1]))
    except (ConfigError, OSError):
        return []
    return [
        Example(problem=r.problem, answer=r.answer, before=before[r.index], after=after[r.index])
        for r in rows
        if r.index in before and r.index in after
    ]


def _first_of(benchmark: Benchmark, run_dir: Path, result: Result) -> dict[int, First]:
    samples = first_samples(samples_file(run_dir / "evaluation", benchmark, result.step))
    hits = dict(zip(result.problems, result.correct, strict=True))
    return {
        i: First(text=samples[i].text, success=samples[i].success, hits=hits[i], samples=result.samples)
        for i in samples.keys() & hits.keys()
    }


def show_examples(examples: list[Example], console: Console) -> None:
    """Print each problem on a line, followed by its two completions."""
    for example in examples:
        console.print(Text(f"{_cut(example['problem'])}   (answer {_cut(str(example['answer']))})"))
        for when, sample in (("before", example["before"]), ("after", example["after"])):
            mark, colour = ("hit", "green") if sample["success"] else ("miss", "red")
            line = Text(f"  {when:<8}")
            line.append(f"{mark:<6}", colour).append(f"{sample['hits']:>3} of {sample['samples']}   ")
            console.print(line.append(_cut(sample["text"], end=True)), soft_wrap=True)


def _cut(text: str, *, end: bool = False) -> str:
    line = " ".join(text.split())
    if len(line) <= LONGEST:
        return line
    return f"…{line[1 - LONGEST :]}" if end else f"{line[: LONGEST - 1]}…"

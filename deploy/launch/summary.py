"""Summary at the end of a one-machine run: Pass@K and completions before and after, Phase B, speed, model.

Printed and written to RUN/summary.json. Evaluations are resumable sample files in RUN/evaluation.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from hora_rl.common.config import Allocation, Config
from hora_rl.common.config.allocation import UNIFORM
from hora_rl.common.console import say
from hora_rl.common.files import replace_text
from hora_rl.common.records import GroupRecord
from hora_rl.deploy.launch.best import read_best
from hora_rl.deploy.launch.evaluation import read_run_results
from hora_rl.deploy.launch.examples import read_examples, show_examples
from hora_rl.deploy.monitor.pace import Pace
from hora_rl.deploy.runs.prediction import idle_side
from hora_rl.evaluation.phase_b import PhaseB, counted
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import records


def summarise(config: Config, run_dir: Path, pace: Pace, console: Console) -> dict[str, object]:
    """Read the run's records, write RUN/summary.json and print tables. Rates are those of this start
    (`pace`)."""
    groups = cast(list[GroupRecord], records(run_dir / "groups.jsonl"))
    steps = records(run_dir / "steps.jsonl")
    results = read_run_results(config.evaluation, run_dir)
    summary = {
        "run": config.run.name,
        "steps": len(steps),
        "rollouts": sum(g["size"] for g in groups),
        "tokens": sum(g["tokens"] for g in groups),
        "seconds": sum(s["time/step"] for s in steps),
        "rollouts_per_second": pace.per_second("rollouts_out"),
        "tokens_per_second": pace.per_second("tokens_out"),
        "evaluation": [_evaluation(r) for r in results],
        "examples": read_examples(config, run_dir, results),
        "best": read_best(run_dir),
        "allocation": phase_b_share(groups),
        "plain_grpo": _never_allocated(config.gate, config.allocation, groups),
        "balance": idle_side(config, run_dir, steps),
        "model": str(run_dir / "model"),
    }
    replace_text(run_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    _show(summary, console)
    return summary


def _never_allocated(gate: str | None, allocation: Allocation, groups: list[GroupRecord]) -> str:
    """A warning if the warm-up gate never opened, else empty."""
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
    yes = counted([g["rule"] for g in groups])
    chosen = [g for g, of_a_counted_cycle in zip(groups, yes, strict=True) if of_a_counted_cycle]
    found = PhaseB.count([g["successes"] for g in chosen], [g["extra"] for g in chosen], 0)
    return [
        {"successes": s.low, "prompts": s.prompts, "phase_b": s.phase_b or 0.0}
        for s in found.shares()
        if s.prompts
    ]


def _evaluation(result: Result) -> dict[str, object]:
    return {
        "step": result.step,
        "problems": len(result.problems),
        "samples": result.samples,
        "format": result.format_share,
        "pass_at_k": [asdict(e) for e in result.estimates()],
    }


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
            f"; from the first step on {summary['rollouts_per_second']:.0f} rollouts/s, "
            f"{summary['tokens_per_second']:.0f} tokens/s, training included"
        )
    say(console, f"{summary['steps']} steps, {summary['rollouts']} rollouts{rate}")
    for warning in filter(None, (summary["plain_grpo"], summary["balance"])):
        say(console, f"! {warning}", "yellow")
    model = summary["model"]
    say(console, f"checkpoint (Hugging Face folder): {model}")
    run_dir = Path(model).parent
    say(console, f"next: hora rollouts {run_dir}, hora report {run_dir}, or vllm serve {model}")


def _percent(e: dict[str, float]) -> tuple[str, str]:
    return f"{e['value']:.1%}", f"{e['low']:.1%} .. {e['high']:.1%}"

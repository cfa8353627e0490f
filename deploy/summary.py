"""What a one-machine run tells at its end: Pass@K before and after, where Phase B went, how fast, where the model is.

Written to RUN/summary.json and printed. The evaluations are resumable sample files under RUN/evaluation.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from common.config import Config
from common.datasets import load_held_out
from common.prompts import load_tokenizer, render
from common.redis import connect
from common.rewards import usable_gold
from common.telemetry import record_evaluation
from common.types import Prompt
from evaluation.evaluate import evaluate
from evaluation.pass_at_k import estimates


def evaluate_now(config: Config, url: str, run_dir: Path, when: str, console: Console) -> None:
    """Sample the held-out problems with the weights the generators hold: version 0 `before`, the last one `after`.

    Writes RUN/evaluation/{when}.json with the counts and estimates; does nothing when that is there already.
    """
    out = run_dir / "evaluation" / f"{when}.json"
    if config.evaluation.path is None or out.exists():
        return
    from ray import serve

    from actors.calls import generator_calls, verifier_calls
    from deploy.app import APP

    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    problems = [
        Prompt(r.index, r.problem, r.answer, render(tokenizer, r.problem, config.data))
        for r in load_held_out(config, usable_gold).rows
    ]
    version = config.learner.steps if when == "after" else 0
    generate = generator_calls(serve.get_deployment_handle("generator", APP), config, version)
    score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
    settings = config.evaluation
    about = {"model": config.model.path, "version": version, "temperature": config.rollout.temperature}
    with _bar(console) as bar:
        task = bar.add_task(f"evaluating {when}", total=len(problems) * settings.samples)
        counts = asyncio.run(
            evaluate(
                problems,
                generate,
                score,
                settings.samples,
                out.with_suffix(".samples.jsonl"),
                about=about,
                seed=config.run.seed,
                samples_per_request=config.rollout.samples_per_request,
                progress=lambda p: bar.update(task, completed=p.done),
            )
        )
    found = estimates(counts.correct, settings.samples, settings.k, config.run.seed)
    result = {
        **about,
        "problems": len(problems),
        "samples": settings.samples,
        "format": float(counts.formatted.sum() / (len(problems) * settings.samples)),
        "pass_at_k": [{"k": e.k, "value": e.value, "low": e.low, "high": e.high} for e in found],
    }
    _write(out, result)
    record_evaluation(connect(url), config.run.name, version, {f"pass@{e.k}": e.value for e in found})


def summarise(config: Config, run_dir: Path, console: Console) -> dict[str, Any]:
    """Read the run's records, write RUN/summary.json, print it as tables."""
    groups = _lines(run_dir / "groups.jsonl")
    steps = _lines(run_dir / "steps.jsonl")
    seconds = sum(s["time/step"] for s in steps)
    rollouts = sum(g["size"] for g in groups)
    tokens = sum(g["tokens"] for g in groups)
    summary = {
        "run": config.run.name,
        "steps": len(steps),
        "rollouts": rollouts,
        "tokens": tokens,
        "seconds": seconds,
        "rollouts_per_second": rollouts / seconds if seconds else 0.0,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "evaluation": {w: _read(run_dir / "evaluation" / f"{w}.json") for w in ("before", "after")},
        "allocation": phase_b_share(groups),
        "model": str(run_dir / "model"),
    }
    _write(run_dir / "summary.json", summary)
    _show(summary, console)
    return summary


def phase_b_share(groups: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Per c_i: share of prompts with that count after Phase A, and share of Phase B they received.

    Batches of the warm-up are left out: their allocation is uniform by design.
    """
    chosen = [g for g in groups if g["rule"] != "uniform"] or groups
    prompts: dict[int, int] = defaultdict(int)
    extra: dict[int, int] = defaultdict(int)
    for g in chosen:
        prompts[g["successes"]] += 1
        extra[g["successes"]] += g["extra"]
    spent = sum(extra.values()) or 1
    return [
        {"successes": c, "prompts": prompts[c] / len(chosen), "phase_b": extra[c] / spent}
        for c in sorted(prompts)
    ]


def _show(summary: dict[str, Any], console: Console) -> None:
    before, after = summary["evaluation"]["before"], summary["evaluation"]["after"]
    if before and after:
        table = Table(
            title=f"Held-out problems: {before['problems']} x {before['samples']} samples",
            title_justify="left",
        )
        for column in ("", "before", "95% interval", "after", "95% interval"):
            table.add_column(column, justify="left" if not column else "right")
        for old, new in zip(before["pass_at_k"], after["pass_at_k"], strict=True):
            table.add_row(f"Pass@{old['k']}", *_percent(old), *_percent(new))
        table.add_row("format", f"{before['format']:.1%}", "", f"{after['format']:.1%}", "")
        console.print(table)
    table = Table(title="Where Phase B went", title_justify="left")
    for column in ("c_i", "prompts", "Phase B"):
        table.add_column(column, justify="right")
    for row in summary["allocation"]:
        table.add_row(str(row["successes"]), f"{row['prompts']:.1%}", f"{row['phase_b']:.1%}")
    console.print(table)
    console.print(
        f"{summary['steps']} steps, {summary['rollouts']} rollouts in {summary['seconds']:.0f} s: "
        f"{summary['rollouts_per_second']:.0f} rollouts/s, {summary['tokens_per_second']:.0f} tokens/s, training included"
    )
    console.print(f"checkpoint (Hugging Face folder): {summary['model']}", markup=False, soft_wrap=True)


def _percent(e: dict[str, float]) -> tuple[str, str]:
    return f"{e['value']:.1%}", f"{e['low']:.1%} .. {e['high']:.1%}"


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)

"""Pass@K on the running generators and verifiers: a run's held-out problems, and `hora eval` on the benchmarks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.config import Config, Data
from common.datasets import load_dataset, load_held_out
from common.prompts import load_tokenizer, render
from common.redis import connect
from common.rewards import usable_gold
from common.telemetry import record_evaluation
from common.types import Prompt
from deploy.app import APP
from evaluation.benchmarks import Benchmark, held_out
from evaluation.evaluate import evaluate
from evaluation.results import Result, make_result, markdown_table, read_result, write_result


def evaluate_run(config: Config, url: str, run_dir: Path, step: int, console: Console) -> None:
    """The run's held-out problems on weights of version `step`; RUN/evaluation/<name>-step<step>.json.

    Does nothing when the run has no held-out problems or this evaluation is there already.
    """
    if (
        config.evaluation.path is None
        or (run_dir / "evaluation" / f"{held_out(config).name}-step{step}.json").exists()
    ):
        return
    problems = prompts(config, config.data, load_held_out(config, usable_gold).rows)
    result = sample(config, held_out(config), problems, run_dir / "evaluation", step, console)
    values = {f"pass@{e.k}": e.value for e in result.estimates()}
    record_evaluation(connect(url), config.run.name, step, values)


def evaluate_benchmark(config: Config, benchmark: Benchmark, out: Path, console: Console) -> Result:
    """`benchmark` on the model of `config`, version 0; results and samples in `out`. Prints the table."""
    data = benchmark.data(config.data)
    dataset = load_dataset(data, usable_gold)
    for rejected in dataset.rejected:
        console.print(f"left out: {rejected.place}: {rejected.reason}", markup=False)
    result = sample(config, benchmark, prompts(config, data, dataset.rows), out, 0, console)
    console.print(Markdown(markdown_table(result, result.estimates())))
    return result


def prompts(config: Config, data: Data, rows: object) -> list[Prompt]:
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    return [Prompt(r.index, r.problem, r.answer, render(tokenizer, r.problem, data)) for r in rows]  # type: ignore[attr-defined]


def sample(
    config: Config, benchmark: Benchmark, problems: list[Prompt], folder: Path, step: int, console: Console
) -> Result:
    """Draw what is missing, write the result. Every replica works on it; an interrupted call is gone on with."""
    from ray import serve

    from actors.calls import generator_calls, verifier_calls

    generate = generator_calls(serve.get_deployment_handle("generator", APP), config, step)
    score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
    about = {
        "benchmark": benchmark.name,
        "model": config.model.path,
        "step": step,
        "temperature": config.rollout.temperature,
    }
    with _bar(console) as bar:
        task = bar.add_task(f"{benchmark.title}, step {step}", total=len(problems) * benchmark.samples)
        counts = asyncio.run(
            evaluate(
                problems,
                generate,
                score,
                benchmark.samples,
                folder / f"{benchmark.name}-step{step}.samples.jsonl",
                about=about,
                seed=config.run.seed,
                samples_per_request=config.rollout.samples_per_request,
                in_flight=2 * config.generator.max_sequences // config.rollout.samples_per_request,
                progress=lambda p: bar.update(task, completed=p.done),
            )
        )
    model = config.run.name if step else config.model.path
    result = make_result(benchmark, counts, model, step, config.rollout.temperature, config.run.seed)
    write_result(folder, result)
    return result


def read_run_results(config: Config, run_dir: Path) -> list[Result]:
    """The run's own evaluations that are there, by step."""
    if config.evaluation.path is None:
        return []
    found = (run_dir / "evaluation").glob(f"{held_out(config).name}-step*.json")
    return sorted((read_result(p) for p in found), key=lambda r: r.step)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)

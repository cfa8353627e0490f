"""Commands of `hora` that measure models and read runs."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer()
CHECKOUT = Path(__file__).resolve().parents[1]
"""The folder of the rooms: a checkout, or the installed package."""
ConfigPath = Annotated[str, typer.Argument(help="A YAML file, a Serve file, or the name of a preset.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, e.g. runs/tiny.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]
SET = "Change one value, e.g. -s rollout.group_size=32. May be repeated."
Overrides = Annotated[list[str] | None, typer.Option("--set", "-s", help=SET)]


@app.command(name="eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="Model or adapter folder, e.g. runs/tiny/model, or hub name.")],
    benchmark: Annotated[
        str, typer.Option(help="Names, JSONL files or hub names, with commas.")
    ] = "math500,amc23,aime24,aime25",
    samples: Annotated[int | None, typer.Option(help="N; the paper's for each benchmark by default.")] = None,
    k: Annotated[str | None, typer.Option(help="K of Pass@K, with commas; the paper's by default.")] = None,
    config: Annotated[
        str | None,
        typer.Option(help="Prompts, limits, replicas; by default the run's of RUN/model, or tiny."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of samples and results.")] = Path("evaluations"),
    set_: Overrides = None,
) -> None:
    """Pass@K of a model on benchmarks. Samples are saved; the same command resumes after an interruption."""
    from hora_rl.common.load import load
    from hora_rl.common.model.adapters import model_settings
    from hora_rl.deploy.launch.local import evaluate_local
    from hora_rl.deploy.machine.signals import stopped_by_signals
    from hora_rl.evaluation.benchmarks import whole_numbers

    ks = whole_numbers("--k", k) if k else None
    run = Path(model).resolve().parent
    source = config or (str(run / "config.yaml") if (run / "run.json").is_file() else "tiny")
    chosen = load(source, [*(set_ or ()), *model_settings(model)])
    if config is None:
        limits = chosen.rollout
        print(
            f"limits of {source}: prompts of {limits.max_prompt_tokens} tokens, responses of "
            f"{limits.max_response_tokens}, temperature {limits.temperature:g}; --config names another "
            "configuration"
        )
    with stopped_by_signals():
        evaluate_local(chosen, benchmark.split(","), samples, ks, out)


@app.command()
def plan(
    source: Annotated[
        str,
        typer.Argument(
            help="A configuration, whose training prompts are counted first, or counts: a JSONL file, a run "
            "folder, or a result of `hora eval`."
        ),
    ],
    group_size: Annotated[str | None, typer.Option(help="G, several with commas.")] = None,
    pre_rollouts: Annotated[str | None, typer.Option(help="G0, several with commas; 4,8 by default.")] = None,
    rules: Annotated[
        str | None, typer.Option(help="Rules with commas, with a stop: hit_utility,hit_utility/hit.")
    ] = None,
    rounds: Annotated[str, typer.Option(help="Rounds of Phase B, several with commas.")] = "1,4",
    gradients: Annotated[
        str | None,
        typer.Option(help="r,OVERLAP,PROMPTS: a hit's noise, prompts' shared gradient, Γ; for the verdict."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    prompts: Annotated[int, typer.Option(help="Training prompts to count, drawn at random.")] = 300,
    samples: Annotated[
        int, typer.Option(min=1, help="Completions counted per prompt: the largest G of the plan.")
    ] = 64,
    out: Annotated[Path, typer.Option(help="File of the counts, one line a prompt.")] = Path("counts.jsonl"),
    set_: Overrides = None,
) -> None:
    """Predict from pass counts what each allocation rule would find, and recommend a rule. Counts of a
    configuration are kept; the same command resumes after an interruption."""
    from hora_rl.evaluation.plan import check_options, options
    from hora_rl.evaluation.plan import plan as make_plan

    chosen, counts = options(group_size, pre_rollouts, rules, rounds, gradients), Path(source)
    named = counts.suffix in (".json", ".jsonl") or counts.is_dir()
    if not named and (counts.suffix in (".yaml", ".yml") or not counts.exists()):
        check_options(chosen, samples)
        from hora_rl.deploy.launch.counting import count_local
        from hora_rl.deploy.machine.signals import stopped_by_signals

        with stopped_by_signals():
            count_local(source, set_ or (), prompts, samples, out)
        counts = out
    make_plan(counts, chosen, json)


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = Path("runs")) -> None:
    """List the runs of a folder with state, step and last reward."""
    from hora_rl.deploy.runs.listing import list_runs, show_runs

    show_runs(list_runs(folder))


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
) -> None:
    """The paper's tables and figures for any set of runs, live or ended: one HTML file and PNGs; of several
    runs also the differences of their configurations."""
    from hora_rl.common.console import working

    with working(f"report of {len(runs)} runs"):
        from hora_rl.evaluation.report.runs_report import write_report

        page = write_report(runs, out)
    print(page)


@app.command()
def rollouts(
    run: RunFolder,
    step: Annotated[int | None, typer.Option(min=0, help="Only those of this step.")] = None,
    prompt: Annotated[int | None, typer.Option(min=0, help="Only those of the prompt of this index.")] = None,
    success: Annotated[bool | None, typer.Option("--success/--failure", help="Only hits, or misses.")] = None,
    order: Annotated[
        Literal["newest", "oldest", "longest", "least_likely"],
        typer.Option(help="least_likely: lowest mean log-prob per token first."),
    ] = "newest",
    limit: Annotated[int, typer.Option(min=1, help="Number of rollouts to show.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Read the rollouts of a run: prompts, completions, rewards."""
    from hora_rl.deploy.runs.rollout_list import show_rollouts

    show_rollouts(run, order, limit, as_json=json, step=step, prompt=prompt, success=success)


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist or be empty.")],
    step: Annotated[int | None, typer.Option(min=0, help="Checkpoint; the newest by default.")] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Write only the LoRA adapter.")] = False,
) -> None:
    """Write a checkpoint's model as a Hugging Face folder. Needs neither a GPU nor a cluster."""
    from hora_rl.deploy.runs.ended_run import export_run

    print(export_run(run, step, out, adapter=adapter))


@app.command()
def audit(run: RunFolder) -> None:
    """Prove from a run's records that no group is missing or doubled and that budgets and staleness held."""
    from hora_rl.deploy.runs.ended_run import audit_run

    if not audit_run(run):
        raise typer.Exit(1)


if (CHECKOUT / "research").is_dir():

    @app.command(hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
    def study(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        """Compare arms of an experiment over seeds. Only in a checkout; see `hora study --help`."""
        paths = filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH")))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        os.execve(sys.executable, [sys.executable, "-P", "-m", "research", *(words or ())], environment)

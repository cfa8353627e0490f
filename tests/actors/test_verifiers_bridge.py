"""Environments of `verifiers` as ours: the engine's tokens, the rubric's rewards, errors named."""

import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from hora_rl.actors.environment.episodes import Episodes
from hora_rl.actors.environment.verifiers_bridge.process import VerifiersEnvironment, task_of
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, make_prompt
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import ConfigError, EnvironmentFault
from hora_rl.common.load import load
from hora_rl.common.types import Completion, Failed, SamplingRequest
from hora_rl.deploy.verifiers_rows import problem_of, write_rows
from tests.support.groups import completion
from tests.support.verifiers_python import PYTHON, ROOT, needs_verifiers

KINDS = ("good", "raises", "hangs", "rewrites", "rubric", "silent", "leaks", "dies")  # of verifiers_rooms
EXAMPLE = ROOT / "examples/verifiers_guess.yaml"
TOKENIZER = load_tokenizer(str(ROOT / "deploy/demo/model"))


def configured(*settings: str, python: str = PYTHON, taskset: str = "verifiers_guess") -> Config:
    own = [f"environment.verifiers.python={python}", f"environment.verifiers.taskset={taskset}"]
    return load(str(EXAMPLE), [f"model.path={ROOT / 'deploy/demo/model'}", *own, *settings])


def turns(version: int, episode: str) -> Any:
    async def generate(request: SamplingRequest) -> list[Completion]:
        return [completion([7, 8], "78", version=version)]

    return generate


def played(config: Config, tasks: list[int]) -> tuple[list[Any], Counter[str]]:
    """One request of one episode for each task, one after the other."""
    counts: Counter[str] = Counter()

    async def inside() -> list[Any]:
        library = VerifiersEnvironment(config.environment.verifiers, config.run.name)
        try:
            await library.start()
            made = Episodes(config, TOKENIZER, library.episode, None, lambda k, v: counts.update({k: v}))  # type: ignore[arg-type]
            found = []
            for task in tasks:
                prompt = make_prompt(TOKENIZER, task, Row(task, "n=", "", {"task": task}), config.data)
                request = SamplingRequest(prompt, 1, seed=task, priority=0)
                found.append(await made.make(request, 0, turns))
            return found
        finally:
            await library.close()

    return asyncio.run(inside()), counts


async def test_a_python_without_the_library_is_refused_with_the_remedy() -> None:
    async def start(python: str) -> None:
        await VerifiersEnvironment(configured(python=python).environment.verifiers, "run").start()

    with pytest.raises(ConfigError, match=r"requirements/verifiers\.txt"):
        await start(sys.executable)
    with pytest.raises(ConfigError, match="verifiers"):
        await start("/bin/echo")  # prints its arguments
    with pytest.raises(ConfigError, match="/no/such"):
        await start("/no/such")


CUT = """#!{python}
import os, sys
print('{{"ready": "0.4.0"}}', flush=True)
sys.stdin.readline()
os.write(1, b'{{"id": 0, "ask": [{{"ro')
os._exit(9)
"""


async def test_a_process_killed_within_a_line_fails_its_episodes_and_is_started_again(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(CUT.format(python=sys.executable))
    python.chmod(0o755)
    library = VerifiersEnvironment(configured(python=str(python)).environment.verifiers, "run")
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="status 9"):
            async with asyncio.timeout(20):
                await library.episode(Row(0, "p", "", {"task": 0}), None, None)  # type: ignore[arg-type]
    await library.close()


async def test_a_process_whose_start_is_broken_off_is_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    python.chmod(0o755)
    library = VerifiersEnvironment(configured(python=str(python)).environment.verifiers, "run")
    before = psutil.Process().children()
    with pytest.raises(TimeoutError):  # of the episode, whose time also passes
        async with asyncio.timeout(1):
            await library.start()
    assert psutil.Process().children() == before


def test_path_and_section_go_together() -> None:
    with pytest.raises(ConfigError, match=r"environment\.path \(guess\)"):
        configured("environment.path=guess")
    with pytest.raises(ConfigError, match=r"environment\.path \(verifiers\)"):
        load("tiny-guess", ["environment.path=verifiers"])


@pytest.mark.parametrize("columns", [{}, {"task": "3"}, {"task": -1}, {"task": True}])
def test_a_row_without_a_task_is_refused(columns: dict[str, object]) -> None:
    with pytest.raises(EnvironmentFault, match=r"'task'.*verifiers_rows"):
        task_of(Row(0, "n=", "", columns))


def test_an_opening_that_data_cannot_say_is_refused() -> None:
    user, system = {"role": "user", "content": "n="}, {"role": "system", "content": "be brief"}
    assert problem_of([user], None, 0) == "n="
    assert problem_of([system, user], "be brief", 0) == "n="
    with pytest.raises(ConfigError, match=r"'be brief'.*data\.system"):
        problem_of([system, user], None, 0)
    with pytest.raises(ConfigError, match="task 4"):
        problem_of([user, {"role": "assistant", "content": "?"}, user], None, 4)


@needs_verifiers
@pytest.mark.system
class TestWithTheLibrary:
    @pytest.fixture(autouse=True)
    def _in_examples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(ROOT / "examples")
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/support"))

    def test_what_goes_wrong_there_is_named_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hora_rl.actors.environment.episodes.ATTEMPTS", 1)
        monkeypatch.setenv("HORA_REDIS_URL", "redis://:secret@127.0.0.1:1")
        config = configured(
            "environment.time_limit_s=8",
            "reward.weights={episode.half: 1.0}",
            "reward.success=episode.half",
            "environment.max_given_tokens=4000",
            "rollout.max_prompt_tokens=100",
            taskset="verifiers_rooms",
        )
        found, counts = played(config, list(range(len(KINDS))))
        said = dict(zip(KINDS, found, strict=True))
        assert said["good"][0].rewards == {"half": 0.5}
        for kind, words in {
            "raises": "raises KeyError: 'door'",
            "hangs": "hangs for more than 8 s of its own",
            "rewrites": "lets several agents ask the policy",
            "rubric": "raises .*rubric",
            "silent": "raises EnvError: .*ran no agent",
            "dies": "ended: its process, with status 3",
        }.items():
            assert isinstance(said[kind], Failed), kind
            assert re.search(words, said[kind].reason), said[kind].reason
        assert not psutil.Process().children(), "its process is gone"
        (leaks,) = said["leaks"]
        heard = TOKENIZER.decode(leaks.turns[1].context)
        assert "PATH" in heard
        assert "HORA_REDIS_URL" not in heard
        assert counts["episodes"] == 2

    def test_rows_are_what_the_environment_opens_with(self, tmp_path: Path) -> None:
        config = configured(f"data.path={tmp_path / 'rows.jsonl'}")
        assert write_rows(config.data, config.environment.verifiers, "r", 40) == 40
        rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
        assert rows == [{"problem": "n=", "answer": "", "task": i} for i in range(40)]
        with pytest.raises(ConfigError, match=r"rows\.jsonl"):
            write_rows(config.data, config.environment.verifiers, "r", 40)

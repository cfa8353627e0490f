"""A game of several turns for the library `verifiers` (0.4.0): guess a number, told after each guess whether
it is higher or lower. It knows nothing of HORA; verifiers_guess.yaml trains on it.

    python3.11 -m venv .venv-verifiers
    .venv-verifiers/bin/pip install -r requirements/verifiers.txt
    cd examples && python -m hora_rl.deploy.verifiers_rows verifiers_guess.yaml
    hora run verifiers_guess.yaml
"""

import re
from collections.abc import Iterator

import verifiers.v1 as vf


class GuessData(vf.TaskData):
    secret: int


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def solved(self, trace: vf.Trace) -> float:
        """1 where the last guess was right."""
        reply = trace.branches[-1].messages[-1].content or "" if trace.branches else ""
        return float(guessed(reply) == self.data.secret)


class Guess(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self) -> Iterator[GuessTask]:
        for secret in (0, 3, 6) * 14:
            yield GuessTask(GuessData(prompt=None, secret=secret), self.config.task)


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task: GuessTask, agents: vf.Agents) -> None:
        """One game: the player speaks until it is right or has no turn left."""
        secret, hint = task.data.secret, "n="
        async with agents.player.interaction(task) as game:
            while True:
                segment = await game.turn(hint)
                if segment.terminated:
                    return
                guess = guessed(segment.last_reply)
                if guess == secret:
                    return
                word = "no number" if guess is None else "higher" if guess < secret else "lower"
                hint = f"\n{word}\nn="


def guessed(text: str) -> int | None:
    match = re.search(r"\d+", text)
    return int(match.group()) if match else None


__all__ = ["Guess", "GuessEnv"]

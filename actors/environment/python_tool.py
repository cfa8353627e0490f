"""A Python tool: the policy may write a program in a ```python block and is told what it printed, as often as
it likes. Programs run in the sandbox alone. The last turn is the policy's answer, which the run's rewards
judge as they judge a completion."""

from __future__ import annotations

import re

from actors.environment.protocol import Episode, EpisodeOver, Speaker, Tools
from common.datasets import Row

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


async def python_tool(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """One problem; `runs` is how many programs were run."""
    runs = 0
    try:
        said = await policy.generate()
        while found := BLOCK.search(said.text):
            runs += 1
            printed = await sandbox.python(found.group(1))
            said = await policy.generate({"role": "user", "content": f"```output\n{printed}\n```"})
    except EpisodeOver:
        pass  # what it said last stands
    return Episode({"runs": float(runs)})

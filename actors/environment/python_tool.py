"""A Python tool: the policy may write a program in a ```python block of a turn and reads the output in the
next message. Programs run only in the sandbox. The last turn is the answer; rewards judge it like a
completion."""

from hora_rl.actors.environment.protocol import Episode, EpisodeOver, Speaker, Tools
from hora_rl.common.data.rows import Row

BEGIN, END = "```python\n", "```"


async def python_tool(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """One problem. `runs` is the number of executed programs."""
    runs = 0
    try:
        said = await policy.generate()
        while (program := written(said.text)) is not None:
            runs += 1
            printed = await sandbox.python(program)
            said = await policy.generate({"role": "user", "content": f"```output\n{printed}\n```"})
    except EpisodeOver:
        pass  # the last turn is the answer
    return Episode({"runs": float(runs)})


def written(text: str) -> str | None:
    """The first program in `text`; None without a complete block. Runs in linear time, where a regular
    expression may need quadratic time."""
    program, closed, _ = text.partition(BEGIN)[2].partition(END)
    return program if closed else None

"""In the sandbox: scores one answer with the scorer of a `reasoning-gym` task. Some scorers evaluate answers
as Python, so this process is untrusted."""

import json
import os
import pickle
import sys

from hora_rl.common.data.gym_process import library

factory = library()  # before the fork


def main() -> None:
    """Read a task from stdin, written by the verifier, and write `[nonce, score]`."""
    task = pickle.load(sys.stdin.buffer)
    sys.stdout = sys.stderr  # only the score goes to stdout
    settings = task["settings"] | {"seed": 0, "size": 1}
    score = factory.create_dataset(task["task"], **settings).score_answer(task["answer"], task["entry"])
    os.write(1, json.dumps([task["nonce"], float(score)]).encode())

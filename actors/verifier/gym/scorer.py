"""In the sandbox: the scorer of a task of `reasoning-gym` on one answer. Some scorers evaluate an answer as
Python, so what happens here may be anything."""

from __future__ import annotations

import json
import os
import pickle
import sys

from hora_rl.common.data.gym_process import library

factory = library()  # before the fork


def main() -> None:
    """Read a task from stdin, which the verifier wrote, and write `[nonce, score]`."""
    asked = pickle.load(sys.stdin.buffer)
    sys.stdout = sys.stderr  # the score alone goes to stdout
    settings = asked["settings"] | {"seed": 0, "size": 1}
    score = factory.create_dataset(asked["task"], **settings).score_answer(asked["answer"], asked["entry"])
    os.write(1, json.dumps([asked["nonce"], float(score)]).encode())

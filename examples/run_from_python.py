"""A run from Python: configure, train, read the results as data frames.

python -m examples.run_from_python [FOLDER]
"""

import sys

import hora_rl

CHANGES = {
    "run.name": "from-python",
    "learner.steps": 3,
    "rollout.prompts_per_batch": 8,
    "rollout.shards": 2,
    "evaluation.prompts": 10,
    "evaluation.samples": 8,
    "evaluation.k": [1, 8],
    "telemetry.http_port": 0,
}


def main(folder: str = "runs") -> None:
    config = hora_rl.configure("tiny", {**CHANGES, "run.folder": folder})
    found = hora_rl.run(config, fresh=True)
    print(found.steps[["step", "success", "length/mean", "rollouts"]].to_string(index=False))
    print(found.evaluations.to_string(index=False))
    extra = found.groups.groupby("successes")["extra"].mean()
    print(f"Phase B rollouts of a prompt, by its successes in Phase A:\n{extra.to_string()}")
    print(found.rollouts(success=False, order="longest", limit=3)[["step", "prompt", "length"]].to_string())


if __name__ == "__main__":
    main(*sys.argv[1:])

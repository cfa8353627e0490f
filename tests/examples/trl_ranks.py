"""TRL with HORA in two processes on the CPU: `python -m tests.examples.trl_ranks FOLDER` asserts in both."""

import sys
from pathlib import Path

import numpy as np
import torch
import trl.trainer.grpo_trainer  # noqa: F401, before the fork
from accelerate import debug_launcher
from accelerate.utils import gather, gather_object

from tests.examples import test_examples_allocator as alone
from tests.examples.test_examples_allocator import G0, GAMMA, G, accuracy, rows_of, short, trainer_of

RANKS, ROUNDS, SCORED = 2, 3, list[str]()


def counted(completions: list[str], **_: object) -> list[float]:
    SCORED.extend(completions)
    return short(completions)


def main(folder: Path) -> None:
    own = {"per_device_train_batch_size": GAMMA * G // 4}
    trainer = trainer_of(folder, [counted, accuracy], own, rounds=ROUNDS, stop="hit")
    accelerator = trainer.accelerator
    assert accelerator.num_processes == RANKS
    each, rank = GAMMA * G // RANKS, accelerator.process_index
    mine = slice(rank * each, (rank + 1) * each)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions(rows_of(trainer)[mine])

    # One allocation, to the exact budget, that follows from the rewards of both; each row is scored once.
    owner, rewards = trainer.last_owner, trainer._rewards
    assert all(np.array_equal(owner, other) for other in gather_object([owner]))
    sizes = np.bincount(owner, minlength=GAMMA)
    assert (len(owner), sizes.min() >= G0, len(set(sizes.tolist())) > 1) == (GAMMA * G, True, True)
    assert len(SCORED) == each
    assert trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True) == SCORED
    assert gather_object([SCORED])[0] != gather_object([SCORED])[1]
    answers = [trainer.train_dataset[int(i)]["answer"] for i in owner]
    assert rewards[:, 1].tolist() == accuracy(gather_object(SCORED), answers)
    session, at = trainer.session_of(GAMMA, GAMMA * (G - G0)), 0
    by_rank, hits = owner.reshape(RANKS, each), rewards[:, 1].numpy().reshape(RANKS, each)
    for size in [GAMMA * G0 // RANKS, *[GAMMA * (G - G0) // ROUNDS // RANKS] * ROUNDS]:
        rows = np.s_[:, at : (at := at + size)]
        trials = np.bincount(by_rank[rows].ravel(), minlength=GAMMA)
        if at > size:
            assert session.ask().tolist() == trials.tolist()
        found = np.bincount(by_rank[rows].ravel(), weights=hits[rows].ravel(), minlength=GAMMA)
        session.tell(found.astype(int), trials)
    assert session.done

    # The mean of both gradients is that of the paper's objective over all rows.
    whole = {
        key: gather(accelerator.pad_across_processes(batch[key], dim=1))
        for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    }
    ours = alone.gradient(trainer, alone.paper_loss(trainer, whole))
    theirs = alone.gradient(trainer, trainer.compute_loss(trainer.model, batch))
    assert ours.abs().max() > 1e-4
    torch.testing.assert_close(gather(theirs[None]).mean(0), ours, atol=1e-6, rtol=1e-4)

    trainer.train()
    assert trainer.state.global_step == 2
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    assert torch.equal(*gather(weights[None]))
    (folder / f"whole.{rank}").touch()


if __name__ == "__main__":
    debug_launcher(main, (Path(sys.argv[1]),), num_processes=RANKS)  # forks: the imports are paid once

"""A learner that cannot write ends with the disk's name, once."""

from pathlib import Path

import pytest

from hora_rl.common.errors import RunError
from hora_rl.common.files import check_room
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.filling import fill
from tests.support.real_learner import ended, recorded, said, small_run, start
from tests.support.small_disk import fill_up, small_disk

GAMMA = 2


def test_a_disk_is_full_or_it_is_not(tmp_path: Path) -> None:
    check_room(tmp_path)
    with small_disk(tmp_path / "disk", 4) as disk:
        check_room(disk)
        fill_up(disk)
        with pytest.raises(RunError, match=r"the disk of .*/disk is full: free some of it, then resume the"):
            check_room(disk)


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_a_learner_on_a_full_disk_says_so_once_and_ends(tmp_path: Path, redis_server: RedisServer) -> None:
    with small_disk(tmp_path / "disk", 100) as disk:
        config = small_run(disk, GAMMA, "learner.steps=4", "learner.checkpoint_every=1")
        fill(config, redis_server, recorded(config, [[9, 12]] * 4 * GAMMA, per_batch=GAMMA))
        fill_up(disk, leaving=8)
        assert ended(start(config, redis_server, tmp_path)) == 1
        assert said(tmp_path).count(f"hora learner, rank 0: the disk of {disk / 'r'} is full") == 1
        assert said(tmp_path).count("is full") == 1

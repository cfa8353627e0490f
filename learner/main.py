"""The learner under other launchers, reading the same queue:

    torchrun --nproc-per-node 2 -m hora_rl.learner.main --config hora.yaml --redis redis://host:6379
    deepspeed --num_gpus 2 --module hora_rl.learner.main --config hora.yaml --redis redis://host:6379

Rank 0 attaches to the Ray cluster only to publish weights; with --no-ray it writes files for replicas to
pull."""

import argparse
import logging
import os
import sys
from pathlib import Path

import torch

from hora_rl.common.config import Config
from hora_rl.common.config.base import Scope
from hora_rl.common.errors import ConfigError, HoraError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import read_config
from hora_rl.common.load import differences, load
from hora_rl.learner.ranks import set_device
from hora_rl.learner.ray_private import job_of
from hora_rl.learner.train import train


def main() -> None:
    parser = argparse.ArgumentParser(description="HORA learner for torchrun and deepspeed.")
    parser.add_argument("--config", required=True)
    parser.add_argument("--redis", default=os.environ.get("HORA_REDIS_URL"), help="default: HORA_REDIS_URL")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--local_rank", type=int, default=None, help=argparse.SUPPRESS)  # deepspeed passes it
    options = parser.parse_args()
    if not options.redis:
        parser.error("--redis or HORA_REDIS_URL is needed")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    os.environ.setdefault("LOCAL_RANK", str(options.local_rank or 0))
    try:
        config = load(options.config, options.set)
        _refuse(config, options.redis, no_ray=options.no_ray)
        _run(config, options.redis, rank, world, with_ray=not options.no_ray)
    except HoraError as error:
        sys.exit(f"hora learner, rank {rank}: {error}")


def _refuse(config: Config, redis_url: str, *, no_ray: bool) -> None:
    """Raise ConfigError for settings that these launchers cannot keep, or that were deployed otherwise."""
    if no_ray:  # replicas cannot be called
        for key, value, needed in (
            ("weights.transport", config.weights.transport, "file"),
            ("generator.sleep", config.generator.sleep, "none"),
        ):
            if value != needed:
                raise ConfigError(f"--no-ray needs {key}: {needed}, not {value}: change one of them")
    if config.evaluation.every is not None:  # as with learner.keep_best
        raise ConfigError(
            f"evaluation.every ({config.evaluation.every}) is kept by `hora run` and `hora train`, whose "
            "launcher evaluates: use one of these, or set evaluation.every and learner.keep_best to null"
        )
    stored = connect(redis_url, patient=True).get(Keys(config.run.name).config)
    if stored and (changed := differences(read_config(stored, config.run.name), config, below=Scope.PART)):
        raise ConfigError(
            f"run {config.run.name!r} was deployed with other settings: {'; '.join(changed)} (the run's "
            "value first): give the learner the deployed file, or deploy this one first"
        )


def _run(config: Config, redis_url: str, rank: int, world: int, *, with_ray: bool) -> None:
    backend = set_device(config.learner, config.run.seed, int(os.environ["LOCAL_RANK"]))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    torch.distributed.init_process_group(backend, rank=rank, world_size=world)
    if rank == 0 and with_ray:
        import ray

        job = job_of(config.run.name)
        ray.init(address="auto", log_to_driver=False, configure_logging=False, job_config=job)
    run_dir = Path(config.run.folder).resolve() / config.run.name
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        train(config, redis_url, run_dir, rank, world)
    finally:
        torch.distributed.destroy_process_group()
    if rank == 0 and with_ray:
        ray.shutdown()


if __name__ == "__main__":
    main()
    # All is saved and closed. The interpreter's end would destroy C++ objects under running threads, which
    # aborts now and then on a busy machine, so that a launcher would report a finished run as failed.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

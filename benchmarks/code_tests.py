"""What `code_tests` costs: milliseconds per program, and programs per second over several runners.

python -m benchmarks.code_tests [--programs 100] [--processes 2]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time

from actors.verifier.code.pool import ProgramPool, limits_of
from actors.verifier.code.runner import Runner
from actors.verifier.sandbox.sandbox import Sandbox
from common.code import RowTests, code_block, read_tests
from common.config.reward import CodeTests
from common.user_rewards import Answer

PLUS_ONE = "print(int(input()) + {})"
FUNCTION = "def add(a, b):\n    return a + b + {}"
PAIR = [{"input": "1\n", "output": "2\n"}]
ASSERTS = ["assert add(2, 3) == 5", "assert add(-1, 1) == 0", "assert add(0, 0) == 0"]


def each(runner: Runner, program: str, tests: RowTests, count: int) -> str:
    """Median and 95th percentile of the time of one program, in ms."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        assert runner.judge(program, tests).right
        took.append(1000 * (time.perf_counter() - began))
    return f"median {statistics.median(took):.1f} ms, p95 {statistics.quantiles(took, n=20)[-1]:.1f} ms"


async def together(count: int, processes: int) -> float:
    """Different programs per second, as many runners as `processes`."""
    pool = ProgramPool(CodeTests(), processes)
    try:
        await pool.score(Answer("", code_block(PLUS_ONE.format(1)), "", {"tests": PAIR}))
        began = time.perf_counter()
        answers = (
            Answer("", code_block(PLUS_ONE.format(i)), "", {"tests": PAIR}) for i in range(2, count + 2)
        )
        await asyncio.gather(*map(pool.score, answers))
        return count / (time.perf_counter() - began)
    finally:
        pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    began = time.perf_counter()
    box = Sandbox()
    print(f"start {1000 * (time.perf_counter() - began):.0f} ms, layers {dict(box.layers)}")
    used = [box.run(PLUS_ONE.format(1), b"1\n").cpu_s for _ in range(arguments.programs)]
    print(f"processor time of a program {1000 * statistics.median(used):.1f} ms")
    box.close()
    runner = Runner(limits_of(CodeTests()))
    print("stdin, one test:", each(runner, PLUS_ONE.format(1), read_tests(PAIR), arguments.programs))
    print("three assertions:", each(runner, FUNCTION.format(0), read_tests(ASSERTS), arguments.programs))
    runner.close()
    rate = asyncio.run(together(arguments.programs * 4, arguments.processes))
    print(f"{arguments.processes} runners: {rate:.0f} programs/s; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

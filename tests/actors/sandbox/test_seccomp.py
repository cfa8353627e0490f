"""The filter's rules, read by a small machine as the kernel reads them, for both kinds of processor."""

import errno
import re
import struct
from pathlib import Path

import pytest

from hora_rl.actors.verifier.sandbox import seccomp
from hora_rl.actors.verifier.sandbox.seccomp import ALLOWED, AUDIT_ARCH, MACHINES, SPECIAL

PID = 4321
HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
OLD_NAMES = {"newfstatat": "fstatat"}
"""asm-generic names some by a macro of another name."""

both = pytest.mark.parametrize("machine", MACHINES)


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None, threads: bool = True) -> int:
    """What the filter returns for a call: 0 for allowed, an error number, or -1 for an ended process."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, arch or AUDIT_ARCH[machine], 0, *[w & (1 << 64) - 1 for w in words])
    code = [struct.unpack("HBBI", i) for i in seccomp.program(machine, PID, threads)]
    value, place = 0, 0
    while True:
        what, if_true, if_false, k = code[place]
        place += 1
        if what == seccomp.LOAD:
            value = struct.unpack_from("<I", data, k)[0]
        elif what == seccomp.AND:
            value &= k
        elif what == seccomp.RETURN:
            return {seccomp.ALLOW: 0, seccomp.KILL_PROCESS: -1}.get(k, k & 0xFFFF)
        else:
            test = {seccomp.EQUAL: value == k, seccomp.ANY_BIT: value & k, seccomp.AT_LEAST: value >= k}[what]
            place += if_true if test else if_false


def number(machine: str, name: str) -> int:
    return {**ALLOWED, **SPECIAL}[name][MACHINES.index(machine)]


@both
def test_every_call_of_the_list_is_allowed_and_no_other(machine: str) -> None:
    place = MACHINES.index(machine)
    plain = {pair[place] for pair in ALLOWED.values()} - {None}
    known = {pair[place] for pair in SPECIAL.values()} | plain
    for n in range(451):
        if n not in known:
            assert verdict(machine, n) == errno.EPERM, n
    assert all(verdict(machine, n) == 0 for n in plain if n is not None)
    assert verdict(machine, 451) == verdict(machine, 1 << 30) == errno.ENOSYS
    assert verdict(machine, 0, arch=0x40000003) == -1, "another architecture's numbers"
    code = seccomp.program(machine, PID, True)
    assert len(code) < 4096, "the kernel's jumps reach no further"
    assert all(len(i) == 8 for i in code)


@both
@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        *(("openat", (0, 0, flags), 0) for flags in (0, 0o2000000)),
        *(("openat", (0, 0, flags), errno.EROFS) for flags in (1, 2, 0o100, 0o20200000)),
        ("clone", (0x3D0F00,), 0),
        *(("clone", (flags,), errno.EAGAIN) for flags in (17, 0x10000 | 0x20000000)),
        ("clone3", (), errno.ENOSYS),
        ("kill", (PID, 9), 0),
        *(("kill", arguments, errno.EPERM) for arguments in ((-PID, 9), (PID + 1, 0))),
        ("tgkill", (PID, 7, 6), 0),
        ("tgkill", (1, 1, 0), errno.EPERM),
        *(("prlimit64", (who, 3, 0, 1), 0) for who in (0, PID)),
        ("prlimit64", (1, 3, 0, 1), errno.EPERM),
        ("ioctl", (0, 0x5401), 0),
        ("ioctl", (0, 0x5412), errno.ENOTTY),
        ("fcntl", (0, 4), 0),
        ("fcntl", (0, 8), errno.EPERM),
        ("socketpair", (1, 1 | 0o2004000), 0),
        *(("socketpair", kind, errno.EPERM) for kind in ((1, 2), (2, 1))),
        ("seccomp", (1, 0, 0), errno.EPERM),
        *((name, (), errno.EPERM) for name in ("capset", "landlock_restrict_self")),
    ],
)
def test_calls_by_their_arguments(machine: str, name: str, arguments: tuple[int, ...], found: int) -> None:
    assert verdict(machine, number(machine, name), *arguments) == found
    if name == "clone":
        assert verdict(machine, number(machine, name), *arguments, threads=False) == errno.EAGAIN


@both
def test_numbers_are_the_kernel_s(machine: str) -> None:
    headers = Path("/usr/include") / HEADERS[machine]
    if not headers.exists():
        pytest.skip("no kernel headers on this machine")
    lines = headers.read_text()
    known = {name: int(n) for name, n in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", lines)}
    for name, pair in (ALLOWED | SPECIAL).items():
        ours = pair[MACHINES.index(machine)]
        assert ours == known.get(name, known.get(OLD_NAMES.get(name, ""))), name

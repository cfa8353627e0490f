"""What stands between a program and the machine, one layer behind the other, and what each is for.

    namespaces  of the zygote, once: no process, network, or shared memory of the machine is visible
    uid         where the zygote is root, a user for each sandbox: no file, signal or /proc entry of ours
    rlimits     processor time, memory, output, open files, threads; always
    privileges  no capability, no new ones by any means; always
    landlock    reads the interpreter's files alone
    seccomp     only calls that a single process without a network needs; required

Which hold is found by trying, not by guessing from versions: containers, kernels and security modules refuse
in their own ways. seccomp with Landlock alone stops every attack of the tests; without seccomp some get
through all other layers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Callable

from actors.verifier.sandbox import landlock, seccomp
from actors.verifier.sandbox.syscalls import LIBC, MACHINES, call

OPTIONAL = ("namespaces", "uid", "landlock")
NAMES = (*OPTIONAL, "seccomp")
PDEATHSIG, NO_NEW_PRIVS = 1, 38  # prctl
NEW_USER, NEW_PID, NEW_NET, NEW_IPC, NEW_UTS = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000
CAPABILITIES_V3 = 0x20080522
OWN_USERS, FEW_USERS = 1 << 21, 61_000
"""First of the users that programs run as: beyond every process id and every user that a distribution gives
out; where a container maps 65,536 users, the range that Debian leaves free."""
MAIN_STACK = 64 << 20
"""Of the first thread. It is taken as it is used; other threads get 8 MiB (`zygote`)."""
SPARE_THREADS = 256
Limits = dict[str, float]


def held(refused: set[str]) -> dict[str, str]:
    """By layer: empty where it holds here, else why not. Each is tried in a process of its own."""
    attempts: dict[str, Callable[[], object]] = {
        "namespaces": enter_namespaces,
        "uid": _try_user,
        "landlock": _try_landlock,
        "seccomp": _try_seccomp,
    }
    return {
        name: "switched off" if name in refused else _tried(attempt) for name, attempt in attempts.items()
    }


def machine() -> str:
    """x86_64 or aarch64. Raises OSError on another kind of processor, whose numbers are not known here."""
    if platform.machine() not in MACHINES:
        raise OSError(f"no list of system calls for {platform.machine()}")
    return platform.machine()


def enter_namespaces() -> None:
    """New user (unless root), process, network, IPC and host-name namespaces; children are in them. Raises
    OSError."""
    uid, gid = os.geteuid(), os.getegid()
    flags = NEW_PID | NEW_NET | NEW_IPC | NEW_UTS | (0 if uid == 0 else NEW_USER)
    if LIBC.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
    if uid != 0:
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def own_user() -> int:
    """A user that no other sandbox of this machine has: from the process id that the machine sees."""
    with open("/proc/self/uid_map") as file:
        mapped = max(int(first) + int(count) for first, _, count in map(str.split, file))
    wide = OWN_USERS + os.getpid()
    return wide if wide < mapped else FEW_USERS + os.getpid() % 3000


def become(user: int) -> None:
    """Another user without groups. Raises OSError."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def die_with(parent: int) -> None:
    """Be killed when the parent ends: process `parent`, 0 for one outside of these namespaces. A change of
    user clears this: call it after."""
    LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def limit(limits: Limits, threads: int | None) -> None:
    """Limits that the kernel keeps. `threads` bounds the processes of this user; None where that is useless
    (root) and threads are forbidden."""
    seconds = int(-(-limits["seconds"] // 1))
    pairs = {
        # SIGXCPU first, which a program may catch; a second later SIGKILL. The exact time is compared after.
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_AS: (int(limits["memory"]),) * 2,
        # stdout and stderr are files in memory: the kernel bounds them, and nobody has to pump a pipe.
        resource.RLIMIT_FSIZE: (int(limits["output"]),) * 2,
        resource.RLIMIT_NOFILE: (int(limits["files"]),) * 2,
        resource.RLIMIT_STACK: (MAIN_STACK,) * 2,
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_SIGPENDING: (64, 64),
    }
    if threads is not None:
        pairs[resource.RLIMIT_NPROC] = (threads, threads)
    for what, (soft, hard) in pairs.items():
        top = resource.getrlimit(what)[1]
        if top != resource.RLIM_INFINITY:  # what the host allows less of
            soft, hard = min(soft, top), min(hard, top)
        resource.setrlimit(what, (soft, hard))


def threads_of_the_machine() -> int:
    """Threads that exist now on the whole host, with room for a program's. A loose bound, for a user that is
    shared: the kernel counts Ray's threads too, and those of the same user in other containers, which cannot
    be seen from here. A tighter one would refuse honest programs their threads."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2]) + SPARE_THREADS


def first_to_be_killed() -> None:
    """Where memory runs out all the same, the kernel takes this process before any of the run's."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        return  # /proc may be read-only in a container; its memory is bounded without this


def no_capabilities() -> None:
    """Root's powers go, also those of a user namespace."""
    call("capset", struct.pack("Ii", CAPABILITIES_V3, 0), struct.pack("6I", *[0] * 6))


def no_new_privileges() -> None:
    """No program can give privileges back; Landlock and seccomp ask for it. Raises OSError."""
    if LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs is refused")


def _try_user() -> None:
    if os.geteuid() != 0:
        raise OSError("only root can give a program a user of its own")
    become(own_user())
    try:
        os.listdir(os.path.dirname(os.__file__))
    except OSError as error:
        raise OSError(f"another user cannot read {error.filename}, the interpreter's own files") from error


def _try_landlock() -> None:
    no_new_privileges()
    landlock.restrict(landlock.ruleset())


def _try_seccomp() -> None:
    no_new_privileges()
    seccomp.install(machine(), os.getpid(), True)


def _tried(attempt: Callable[[], object]) -> str:
    """Empty where the attempt succeeded, else its error."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
        except OSError as error:
            os.write(write, (error.strerror or str(error)).encode()[:500])
            os._exit(1)
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as said:
        reason = said.read().decode()
    return "" if status == 0 else reason or f"ended with status {status}"

"""The layers of protection between a program and the machine.

    namespaces  of the zygote: hide the machine's processes, network and shared memory
    uid         if the zygote is root, a separate user per sandbox: no access to our files and processes
    rlimits     processor time, memory, output, open files, threads; always
    privileges  no capabilities, and no way to gain any; always
    landlock    only the interpreter's files can be read: no file of the run, no `/proc`; no TCP ports, no
                signals to other processes. Needs Linux 5.13 and no privileges; later kernels have more rights
    seccomp     only system calls that a single process without a network needs; required

Each layer is tried, not guessed from versions, because containers, kernels and security modules differ.
seccomp and Landlock together stop all attacks of the tests; without seccomp some attacks pass all other
layers.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial

from hora_rl.actors.verifier.sandbox import seccomp
from hora_rl.actors.verifier.sandbox.seccomp import LIBC, MACHINES, call

READ_FILE, READ_DIR = 1 << 2, 1 << 3
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights (the lowest bits) by ABI version. All rights are withdrawn."""
TCP, TCP_SINCE = 0b11, 4
SCOPES, SCOPES_SINCE = 0b11, 6  # abstract sockets, signals
VERSION, PATH_BENEATH = 1, 1
FILES = ("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")
PDEATHSIG, NO_NEW_PRIVS = 1, 38  # prctl
NEW_USER, NEW_PID, NEW_NET, NEW_IPC, NEW_UTS = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000
CAPABILITIES_V3 = 0x20080522
OWN_USERS, FEW_USERS = 1 << 21, 61_000
"""First user id for programs, above all process ids and ids that distributions assign. If a container maps
only 65,536 users, the second is in a range that Debian leaves free."""
MAIN_STACK = 64 << 20
"""Stack limit of the first thread, allocated on use. Other threads get 8 MiB (`zygote`)."""
SPARE_THREADS = 256
Limits = dict[str, float]


def version() -> int:
    """The kernel's Landlock ABI version. Raises OSError if Landlock is missing or disabled."""
    return call("landlock_create_ruleset", None, 0, VERSION)


def ruleset(packages: str = "") -> int:
    """Descriptor of the ruleset for `restrict`; the folder `packages` is readable too. Raises OSError."""
    known = version()
    rights = (1 << FILE_RIGHTS[min(known, max(FILE_RIGHTS))]) - 1
    fields = [rights, *([TCP] if known >= TCP_SINCE else []), *([SCOPES] if known >= SCOPES_SINCE else [])]
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    rules = call("landlock_create_ruleset", attributes, len(attributes), 0)
    for path in FILES:
        _allow(rules, path, READ_FILE)
    interpreter = (os.path.join(sys.base_prefix, "lib"), os.path.dirname(os.__file__))
    for path in (*LIBRARIES, *interpreter, *_installed(packages)):
        _allow(rules, path, READ_FILE | READ_DIR)
    return rules


def _installed(packages: str) -> list[str]:
    """The folder and the targets of symbolic links in it."""
    if not packages:
        return []
    with os.scandir(packages) as entries:
        return [
            packages,
            *(os.path.realpath(entry.path) for entry in entries if entry.is_symlink() and entry.is_dir()),
        ]


def restrict(rules: int) -> None:
    """Apply the ruleset to this process permanently. Requires no_new_privs. Raises OSError."""
    call("landlock_restrict_self", rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # missing on this machine
    try:
        call("landlock_add_rule", rules, PATH_BENEATH, struct.pack("=Qi", rights, folder), 0)
    finally:
        os.close(folder)


def held(refused: set[str], packages: str) -> dict[str, str]:
    """For each layer the reason why it does not work here, or "". Each layer is tried in a separate process.
    `packages` is a folder that programs must be able to read, or ""."""
    attempts: dict[str, Callable[[], object]] = {
        "namespaces": enter_namespaces,
        "uid": partial(_try_user, packages),
        "landlock": _try_landlock,
        "seccomp": _try_seccomp,
    }
    return {
        name: "switched off" if name in refused else _tried(attempt) for name, attempt in attempts.items()
    }


def machine() -> str:
    """x86_64 or aarch64. Raises OSError on another architecture, whose system call numbers are not listed."""
    if platform.machine() not in MACHINES:
        raise OSError(f"no list of system calls for {platform.machine()}")
    return platform.machine()


def enter_namespaces() -> None:
    """New user (unless root), process, network, IPC and host-name namespaces for children. Raises OSError."""
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
    """A user id that is unique on this machine, derived from the process id on the host."""
    with open("/proc/self/uid_map") as file:
        mapped = max(int(first) + int(count) for first, _, count in map(str.split, file))
    wide = OWN_USERS + os.getpid()
    return wide if wide < mapped else FEW_USERS + os.getpid() % 3000


def become(user: int) -> None:
    """Switch to this user, without groups. Raises OSError."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends. `parent` is the parent's id, 0 for a parent
    outside these namespaces. Call after a change of user, which clears the setting."""
    LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def limit(limits: Limits, threads: int | None) -> None:
    """Set the resource limits. `threads` bounds the processes of this user. None for root, whose processes
    the kernel does not count: then seccomp forbids threads."""
    seconds = int(-(-limits["seconds"] // 1))
    pairs = {
        # A program may catch SIGXCPU; SIGKILL follows one second later. The sandbox checks the exact time.
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_AS: (int(limits["memory"]),) * 2,
        # stdout and stderr are files in memory, which the kernel bounds. No pipe has to be read.
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
        if top != resource.RLIM_INFINITY:  # the host's limit is lower
            soft, hard = min(soft, top), min(hard, top)
        resource.setrlimit(what, (soft, hard))


def threads_of_the_machine() -> int:
    """The host's threads, plus room for a program: loose for a shared user, because the kernel also counts
    invisible threads of the user in other containers, and a correct program must get its own."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2]) + SPARE_THREADS


def first_to_be_killed() -> None:
    """If memory runs out, let the kernel kill this process first."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        return  # /proc may be read-only in a container; memory is bounded anyway


def no_capabilities() -> None:
    """Drop root's capabilities, including those in a user namespace."""
    call("capset", struct.pack("Ii", CAPABILITIES_V3, 0), struct.pack("6I", *[0] * 6))


def no_new_privileges() -> None:
    """Set no_new_privs, which Landlock and seccomp require. Raises OSError."""
    if LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs is refused")


def _try_user(packages: str) -> None:
    if os.geteuid() != 0:
        raise OSError("only root can give a program a user of its own")
    become(own_user())
    try:
        for folder in filter(None, (os.path.dirname(os.__file__), packages)):
            os.listdir(folder)
    except OSError as error:
        raise OSError(f"another user cannot read {error.filename}, the interpreter's own files") from error


def _try_landlock() -> None:
    no_new_privileges()
    restrict(ruleset())


def _try_seccomp() -> None:
    no_new_privileges()
    seccomp.install(machine(), os.getpid(), True)


def _tried(attempt: Callable[[], object]) -> str:
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
    with os.fdopen(read, "rb") as answer:
        reason = answer.read().decode()
    return "" if status == 0 else reason or f"ended with status {status}"

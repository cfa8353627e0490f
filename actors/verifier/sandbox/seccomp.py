"""The seccomp filter for the system calls of a program. This layer is required.

Calls that are not listed here fail with EPERM: sockets, signals to other processes, ptrace, mounts, new
namespaces, io_uring, shared memory, memfds, unlink, chmod, execve. Calls newer than the list fail with
ENOSYS. The numbers, which never change, are those of the kernel's `unistd_64.h` (x86_64) and
`asm-generic/unistd.h` (aarch64). aarch64 has none for calls that newer ones replaced (`open`, `fork`).
"""

import ctypes
import errno
import os
import platform
import struct


def _table(text: str) -> dict[str, tuple[int, int | None]]:
    """The number of each call on x86_64 and aarch64."""
    rows = (entry.split() for entry in text.split(","))
    return {name: (int(x86), None if arm == "-" else int(arm)) for name, x86, arm in rows}


# Calls that programs make most are first: the filter is read from the top.
ALLOWED = _table("""
    futex 202 98, read 0 63, write 1 64, mmap 9 222, munmap 11 215, brk 12 214, madvise 28 233,
    mremap 25 216, mprotect 10 226, clock_gettime 228 113, rt_sigaction 13 134, rt_sigprocmask 14 135,
    rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, sigaltstack 131 132, close 3 57,
    close_range 436 436, fstat 5 80, newfstatat 262 79, stat 4 -, lstat 6 -, statx 332 291, access 21 -,
    faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents64 217 61,
    getcwd 79 17, lseek 8 62, pread64 17 67, readv 19 65, writev 20 66, dup 32 23, dup2 33 -, dup3 292 24,
    pipe 22 -, pipe2 293 59, eventfd2 290 19, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72,
    epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, sendto 44 206,
    recvfrom 45 207, shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209,
    sched_yield 24 124, sched_getaffinity 204 123, nanosleep 35 101, clock_nanosleep 230 115,
    clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165, pause 34 -,
    alarm 37 -, getitimer 36 102, setitimer 38 103, getpid 39 172, getppid 110 173, gettid 186 178,
    getpgid 121 155, getpgrp 111 -, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176,
    getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, getrlimit 97 163,
    uname 63 160, sysinfo 99 179, arch_prctl 158 -, set_tid_address 218 96, set_robust_list 273 99,
    rseq 334 293, restart_syscall 219 128, membarrier 324 283, getrandom 318 278, exit 60 93,
    exit_group 231 94
""")

# Allowed for certain arguments only, refused with an error for which libc falls back, or made by the zygote.
SPECIAL = _table("""
    open 2 -, openat 257 56, clone 56 220, clone3 435 435, fork 57 -, vfork 58 -, kill 62 129,
    tgkill 234 131, prlimit64 302 261, ioctl 16 29, fcntl 72 25, socketpair 53 199, seccomp 317 277,
    capset 126 91, landlock_create_ruleset 444 444, landlock_add_rule 445 445,
    landlock_restrict_self 446 446
""")

LAST_KNOWN = 450
"""Calls above this number are newer than the list. They fail with ENOSYS, so libc falls back."""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = tuple(AUDIT_ARCH)
LIBC = ctypes.CDLL(None, use_errno=True)


def allowed(machine: str) -> list[int]:
    """Numbers of the calls that are allowed with any arguments."""
    index = MACHINES.index(machine)
    return [number for pair in ALLOWED.values() if (number := pair[index]) is not None]


def special(name: str, machine: str) -> int | None:
    """The number of a call in `SPECIAL`; None if the machine has no such call."""
    return SPECIAL[name][MACHINES.index(machine)]


def call(name: str, *args: int | bytes | None) -> int:
    """Make one of the `SPECIAL` calls on this machine. Raises OSError."""
    number = special(name, platform.machine())
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = LIBC.syscall(ctypes.c_long(number or 0), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return int(result)


# linux/bpf_common.h, linux/seccomp.h. A program is an array of (code, jump if true, jump if false, operand).
LOAD, EQUAL, ANY_BIT, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER, ARCH, ARGUMENTS = 0, 4, 16
SET_MODE_FILTER = 1

WRITING = 0x1 | 0x2 | 0x40 | 0x200 | 0x400000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE
CLONE_THREAD = 0x10000
NEW_NAMESPACES = 0x7E020080
PLAIN_IOCTL = (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONBIO, FIONCLEX, FIOCLEX
PLAIN_FCNTL = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
AF_UNIX, STREAM = 1, 1

Instruction = bytes


def program(machine: str, pid: int, threads: bool) -> list[Instruction]:
    """The filter for process `pid`. Without `threads` the process cannot start any."""
    start = [
        # In another architecture the numbers mean other calls: a process that switches is killed.
        _ins(LOAD, k=ARCH),
        _ins(EQUAL, 1, 0, AUDIT_ARCH[machine]),
        _ins(RETURN, k=KILL_PROCESS),
        _ins(LOAD, k=NUMBER),
        # Also x86_64's second set of numbers (x32), which starts at 2^30.
        _ins(AT_LEAST, 0, 1, LAST_KNOWN + 1),
        _error(errno.ENOSYS),
    ]
    plain = [i for number in allowed(machine) for i in (_ins(EQUAL, 0, 1, number), _ins(RETURN, k=ALLOW))]
    return [*start, *plain, *_special_rules(machine, pid, threads), _error(errno.EPERM)]


def install(machine: str, pid: int, threads: bool) -> None:
    """Apply the filter to this process permanently. Requires no_new_privs. Raises OSError."""
    code = program(machine, pid, threads)
    blob = b"".join(code)
    buffer = ctypes.create_string_buffer(blob, len(blob))
    call("seccomp", SET_MODE_FILTER, 0, struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer)))


def _special_rules(machine: str, pid: int, threads: bool) -> list[Instruction]:
    bodies = {
        # Only stdout and stderr are writable, so no disk can be filled. Independent of Landlock, because a
        # reward must not depend on the machine.
        "open": _unless_any_bit(1, WRITING, errno.EROFS),
        "openat": _unless_any_bit(2, WRITING, errno.EROFS),
        # One process per program: no fork bomb, no leftover process, and RLIMIT_AS bounds all memory.
        # EAGAIN: fork's error for too many processes.
        "clone": _masked(0, CLONE_THREAD | NEW_NAMESPACES, CLONE_THREAD if threads else 1, errno.EAGAIN),
        "fork": [_error(errno.EAGAIN)],
        "vfork": [_error(errno.EAGAIN)],
        # Filters cannot read its flags, which are behind a pointer. libc falls back to clone.
        "clone3": [_error(errno.ENOSYS)],
        "kill": _one_of(0, (pid,), errno.EPERM),
        "tgkill": _one_of(0, (pid,), errno.EPERM),
        # Limits of this process: without capabilities they can only be lowered.
        "prlimit64": _one_of(0, (0, pid), errno.EPERM),
        # Not FIOSETOWN, with which the kernel would signal another process.
        "ioctl": _one_of(1, PLAIN_IOCTL, errno.ENOTTY),
        # Not F_SETOWN (the same), nor F_SETPIPE_SZ, which takes memory from all programs of a user.
        "fcntl": _one_of(1, PLAIN_FCNTL, errno.EPERM),
        # asyncio needs a pair. Not of datagrams: such a socket can send to any address.
        "socketpair": [
            _ins(LOAD, k=ARGUMENTS),
            _ins(EQUAL, 1, 0, AF_UNIX),
            _error(errno.EPERM),
            *_masked(1, 0xF, STREAM, errno.EPERM),
        ],
    }
    code: list[Instruction] = []
    for name, body in bodies.items():
        number = special(name, machine)
        if number is not None:
            code += [_ins(EQUAL, 0, len(body), number), *body]
    return code


def _ins(code: int, if_true: int = 0, if_false: int = 0, k: int = 0) -> Instruction:
    return struct.pack("HBBI", code, if_true, if_false, k)


def _error(code: int) -> Instruction:
    return _ins(RETURN, k=ERRNO | code)


def _argument(index: int) -> Instruction:
    """Load the low half of an argument. The kernel ignores the high half of an int."""
    return _ins(LOAD, k=ARGUMENTS + 8 * index)


def _unless_any_bit(index: int, bits: int, code: int) -> list[Instruction]:
    return [_argument(index), _ins(ANY_BIT, 0, 1, bits), _error(code), _ins(RETURN, k=ALLOW)]


def _masked(index: int, mask: int, wanted: int, code: int) -> list[Instruction]:
    masked = [_argument(index), _ins(AND, k=mask)]
    return [*masked, _ins(EQUAL, 0, 1, wanted), _ins(RETURN, k=ALLOW), _error(code)]


def _one_of(index: int, values: tuple[int, ...], code: int) -> list[Instruction]:
    tests = [i for value in values for i in (_ins(EQUAL, 0, 1, value), _ins(RETURN, k=ALLOW))]
    return [_argument(index), *tests, _error(code)]

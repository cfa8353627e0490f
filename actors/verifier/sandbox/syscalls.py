"""Allowed system calls, with their numbers on x86_64 and aarch64.

The numbers never change. They come from the kernel's `unistd_64.h` (x86_64) and `asm-generic/unistd.h`
(aarch64). aarch64 has no numbers for calls that newer ones replaced (`open`, `fork`).
"""

import ctypes
import os
import platform


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

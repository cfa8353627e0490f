"""The seccomp filter for the system calls of a program. This layer is required.

Calls that `syscalls` does not list fail with EPERM: sockets, signals to other processes, ptrace, mounts, new
namespaces, io_uring, shared memory, memfds, unlink, chmod, execve. Calls newer than the list fail with
ENOSYS.
"""

import ctypes
import errno
import struct

from hora_rl.actors.verifier.sandbox.syscalls import AUDIT_ARCH, LAST_KNOWN, allowed, call, special

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

"""Landlock: restricts the files that a program may read, and forbids TCP ports and signals to other
processes.

A program may only read the interpreter's files: no file of the run, no `/proc`. Needs Linux 5.13 and no
privileges. Later kernels support more rights.
"""

import os
import struct
import sys

from hora_rl.actors.verifier.sandbox.seccomp import call

READ_FILE, READ_DIR = 1 << 2, 1 << 3
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights (the lowest bits) by ABI version. All rights are withdrawn."""
TCP, TCP_SINCE = 0b11, 4
SCOPES, SCOPES_SINCE = 0b11, 6  # abstract sockets, signals
VERSION, PATH_BENEATH = 1, 1
FILES = ("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")


def version() -> int:
    """The kernel's Landlock ABI version. Raises OSError if Landlock is missing or disabled."""
    return call("landlock_create_ruleset", None, 0, VERSION)


def ruleset(packages: str = "") -> int:
    """File descriptor of the ruleset for `restrict`. Programs may also read the folder `packages`. Raises
    OSError."""
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

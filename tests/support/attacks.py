"""Hostile programs, all bounded. Each prints HARM where the machine let it do what it wants.

`VICTIM` is the id of another process of this user, `PORT` a port of this machine that is listened to,
`FOLDER` a folder of this user that holds `secret` (mode 600), `open` (mode 666) and a socket `socket`.
"""

PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(word, action):
    try:
        action()
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(word, type(error).__name__)
    else:
        print("HARM", word, flush=True)
def raw(word, *arguments):
    if libc.syscall(*arguments) >= 0:
        print("HARM", word, flush=True)
"""

ATTACKS = {
    "fork bomb": """
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            import time; time.sleep(0.5); os._exit(0)
        made += 1
except OSError: pass
if made: print("HARM", made)
""",
    "one child by vfork, clone, subprocess and multiprocessing": """
import subprocess, multiprocessing
def child(): pass
attempt("subprocess", lambda: subprocess.run(["/bin/true"], check=True))
attempt("multiprocessing", lambda: multiprocessing.get_context("fork").Process(target=child).start())
raw("vfork", 58) if os.uname().machine == "x86_64" else None
""",
    "daemon": """
def leave():
    if os.fork() == 0:
        os.setsid()
        import time; time.sleep(3); os._exit(0)
attempt("daemon", leave)
""",
    "thread bomb": """
import threading, time
threading.stack_size(32768)
made = 0
try:
    while made < 2000:
        threading.Thread(target=time.sleep, args=(0.3,), daemon=True).start(); made += 1
except (RuntimeError, MemoryError): pass
if made > 1000: print("HARM", made)
""",
    "memory": """
held = []
try:
    while len(held) < 24: held.append(bytearray(64 << 20))
except MemoryError: pass
if len(held) > 12: print("HARM", len(held))
""",
    "memory in files": """
import mmap
attempt("memfd", lambda: os.write(os.memfd_create("m"), b"x"))
raw("System V memory", {"x86_64": 29, "aarch64": 194}[os.uname().machine], 0, 16 << 20, 0o1600)
attempt("/dev/shm", lambda: open("/dev/shm/x", "w"))
""",
    "memory in pipes": """
import fcntl
attempt("pipe", lambda: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20))
""",
    "filling the disk": """
for place in ("FOLDER", "/tmp", "/var/tmp", "/dev/shm", "/run", ".", os.path.expanduser("~")):
    attempt(place, lambda: open(place + "/filled", "wb").write(b"x" * 4096))
    attempt(place, lambda: os.mkdir(place + "/made"))
    attempt(place, lambda: os.symlink("/", place + "/link"))
    attempt(place, lambda: os.open(place, os.O_TMPFILE | os.O_RDWR))
attempt("open", lambda: open("FOLDER/open", "a"))
""",
    "endless files": """
held = []
try:
    while len(held) < 500: held.append(open("/dev/null"))
except OSError: pass
if len(held) > 100: print("HARM", len(held))
""",
    "endless output": """
try:
    for _ in range(200): os.write(1, b"x" * (1 << 18))
except OSError: pass
""",
    "endless errors": """
try:
    for _ in range(200): os.write(2, b"x" * (1 << 18))
except OSError: pass
""",
    "killing its parent": """
for who in (os.getppid(), VICTIM, 0, -1, 1):
    attempt(f"kill {who}", lambda: os.kill(who, 0))
raw("tgkill", {"x86_64": 234, "aarch64": 131}[os.uname().machine], VICTIM, VICTIM, 0)
raw("tkill", {"x86_64": 200, "aarch64": 130}[os.uname().machine], VICTIM, 0)
""",
    "signals by way of a file's owner": """
import fcntl, socket
a, b = socket.socketpair()
attempt("F_SETOWN", lambda: fcntl.fcntl(a, fcntl.F_SETOWN, VICTIM))
attempt("FIOSETOWN", lambda: fcntl.ioctl(a, 0x8901, (VICTIM).to_bytes(4, "little")))
""",
    "changing other processes": """
import resource
for who in (os.getppid(), VICTIM):
    attempt("prlimit", lambda: resource.prlimit(who, resource.RLIMIT_CORE, (0, 0)))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, who, 5))
    attempt("affinity", lambda: os.sched_setaffinity(who, {0}))
raw("ptrace", {"x86_64": 101, "aarch64": 117}[os.uname().machine], 16, VICTIM, 0, 0)
""",
    "reading other processes": """
for who in (os.getppid(), VICTIM, 1, "self"):
    for what in ("environ", "mem", "maps", "cmdline", "fd"):
        try:
            place = f"/proc/{who}/{what}"
            read = os.listdir(place) if what == "fd" else open(place, "rb").read(64)
        except OSError:
            continue
        if who not in ("self", 0) and what != "cmdline" and read: print("HARM", place)
raw("process_vm_readv", {"x86_64": 310, "aarch64": 270}[os.uname().machine], VICTIM, 0, 0, 0, 0, 0)
""",
    "raising its own limits": """
import resource
for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    attempt("limit", lambda: resource.setrlimit(what, (resource.RLIM_INFINITY,) * 2))
""",
    "sockets": """
import socket
def connect(kind, to):
    def go():
        with socket.socket(*kind) as s:
            s.settimeout(1)
            s.sendto(b"x", to) if kind[1] == socket.SOCK_DGRAM else s.connect(to)
    attempt(str(to), go)
connect((socket.AF_INET, socket.SOCK_STREAM), ("127.0.0.1", PORT))
connect((socket.AF_INET, socket.SOCK_DGRAM), ("127.0.0.1", PORT))
connect((socket.AF_UNIX, socket.SOCK_STREAM), "FOLDER/socket")
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
def listen():
    with socket.create_server(("127.0.0.1", 0)): pass
attempt("listen", listen)
""",
    "a pair of sockets that sends elsewhere": """
import socket
attempt("datagrams", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
a, b = socket.socketpair()
attempt("address", lambda: a.sendto(b"x", "FOLDER/socket"))
""",
    "the run's secrets": """
for path in ("FOLDER/secret", "FOLDER/open", "/etc/shadow", os.path.expanduser("~/.bashrc")):
    try:
        open(path).close()
    except OSError: continue
    if path in ("FOLDER/secret", "/etc/shadow"): print("HARM", path)
if any("REDIS" in name or "TOKEN" in name or "HORA" in name for name in os.environ): print("HARM environment")
for number in range(3, 400):
    try: os.fstat(number)
    except OSError: continue
    print("HARM descriptor", number)
""",
    "changing files of others": """
attempt("chmod", lambda: os.chmod("FOLDER/open", 0o600))
attempt("utime", lambda: os.utime("FOLDER/open"))
attempt("xattr", lambda: os.setxattr("FOLDER/open", "user.x", b"1"))
attempt("truncate", lambda: os.truncate("FOLDER/open", 0))
attempt("unlink", lambda: os.unlink("FOLDER/open"))
attempt("rename", lambda: os.rename("FOLDER/open", "FOLDER/other"))
attempt("link", lambda: os.link("FOLDER/open", "FOLDER/other"))
attempt("chown", lambda: os.chown("FOLDER/open", 0, 0))
""",
    "leaving by other calls": """
x86 = os.uname().machine == "x86_64"
raw("unshare", 272 if x86 else 97, 0x10000000)
raw("io_uring", 425, 4, ctypes.create_string_buffer(120))
raw("mount", 165 if x86 else 40, b"none", b"/tmp", b"tmpfs", 0, 0)
raw("bpf", 321 if x86 else 280, 0, ctypes.create_string_buffer(64), 64)
raw("userfaultfd", 323 if x86 else 282, 1)
raw("keyctl", 250 if x86 else 219, 0, -3, 0)
raw("pidfd_open", 434, VICTIM, 0)
raw("perf_event_open", 298 if x86 else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0)
raw("getpid by x32's number", 0x40000000 + 39) if x86 else None
raw("openat2", 437, -100, b"/etc/passwd", ctypes.create_string_buffer(24), 24)
raw("a call of the future", 470)
attempt("execve", lambda: os.execv("/bin/echo", ["echo", "HARM execve"]))
""",
    "becoming root again": """
attempt("chroot", lambda: os.chroot("/"))
header, all_of_them = (0x20080522).to_bytes(8, "little"), b"\\xff" * 24
raw("capset", {"x86_64": 126, "aarch64": 91}[os.uname().machine], header, all_of_them)
attempt("setuid", lambda: (os.setresuid(0, 0, 0), os.setresuid(1, 1, 1)))
""",
    "dying of a signal": "os.abort()",
    "a crash of the interpreter": "ctypes.string_at(1)",
}
"""What ends at once. Every one of them is a wrong answer."""

SLOW = {
    "endless loop": "while True: pass",
    "endless loop that catches its end": """
import signal
signal.signal(signal.SIGXCPU, lambda *_: None)
while True: pass
""",
    "sleeping": "import time; time.sleep(60)",
    "waiting for input that never comes": "os.read(os.pipe()[0], 1)",
    "stopping itself": "import signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "endless exit": "import atexit, time; atexit.register(time.sleep, 60)",
}
"""What ends at a limit of time."""

"""A process that locks itself in and becomes a Python program; `sandbox.py` starts it as ``python -I -S jail.py``.

It imports nothing of ours. Every lock is the kernel's own and needs no privilege: Landlock for files (Linux 5.13), a
seccomp filter for the network, processes and signals, rlimits for time, memory and file size, and, where the kernel
lets us, empty network and IPC namespaces besides. Root becomes nobody first. What is refused ends the process before
the program starts, with a line that says what is missing.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import struct
import sys

NOBODY = 65534
CAP_DAC_READ_SEARCH = 2

# Landlock, include/uapi/linux/landlock.h
READ = 1 << 2 | 1 << 3  # files, folders
EXECUTE = 1 << 0
WRITE = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12  # write, remove, make folders, files, links
KNOWN_BY_ABI = (0, 13, 14, 15, 15, 16)  # number of file rights from ABI 0 on
TREES = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")

# What seccomp refuses, with its number on x86-64 and on AArch64
REFUSED = {
    # the network, and other ways to a socket
    "socket": (41, 198), "io_uring_setup": (425, 425),
    # processes: the program is one process, so that nothing outlives it
    "fork": (57, None), "vfork": (58, None),
    # other processes
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    # changes to files that Landlock does not see, or not in its first versions
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "open_by_handle_at": (304, 265),
    # memory that is not in the address space, or stays when the process ends
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # the kernel's back rooms
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}  # fmt: skip
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, audit architecture

_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, function: str, *args: object) -> int:
    result = getattr(_libc, function)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def restrict_files(folder: str) -> None:
    """Landlock: the interpreter and the system's libraries can be read, `folder` alone written, TCP not used."""
    try:
        abi = _call("Landlock", "syscall", 444, None, 0, 1)
    except OSError as error:
        raise OSError(error.errno, "no Landlock (Linux 5.13 or later with landlock among its LSMs)") from None
    rights = (1 << KNOWN_BY_ABI[min(abi, len(KNOWN_BY_ABI) - 1)]) - 1
    write = (READ | WRITE | 1 << 13 | 1 << 14) & rights
    handled = struct.pack("QQQ", rights, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _call("Landlock", "syscall", 444, handled, size, 0)
    allowed = dict.fromkeys((*TREES, sys.base_prefix, sys.base_exec_prefix), READ | EXECUTE)
    for path, right in (allowed | {d: 1 << 1 | 1 << 2 for d in DEVICES} | {folder: write}).items():
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if not os.path.isdir(path):
            right &= 1 << 0 | 1 << 1 | 1 << 2
        _call(f"Landlock on {path}", "syscall", 445, rules, 1, struct.pack("=Qi", right, fd), 0)
        os.close(fd)
    _call("Landlock", "syscall", 446, rules, 0)
    os.close(rules)


def restrict_calls() -> None:
    """Seccomp: what is in REFUSED fails with EPERM; threads can be made, processes not."""
    if platform.machine() not in MACHINES or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {platform.machine()}")
    column, architecture = MACHINES[platform.machine()]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, refuse = (give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x80000000), (give, 0, 0, 0x00050000 | errno.EPERM)
    code = [(load, 0, 0, 4), (equal, 1, 0, architecture), kill, (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), kill]
    for number in (row[column] for row in REFUSED.values()):
        if number is not None:
            code += [(equal, 0, 1, number), refuse]
    # without clone3 the C library uses clone, whose flags can be read: CLONE_THREAD makes a thread
    code += [(equal, 0, 1, CLONE3[column]), (give, 0, 0, 0x00050000 | errno.ENOSYS)]
    code += [(equal, 0, 4, CLONE[column]), (load, 0, 0, 16), (any_bit, 0, 1, 0x00010000), allow, refuse]
    code += [(equal, 0, 4, PRLIMIT[column]), (load, 0, 0, 16), (equal, 0, 1, 0), allow, refuse, allow]
    body = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(body))
    _call("seccomp", "prctl", 22, 2, program, 0, 0)


def become_nobody() -> None:
    """Root gives up all but reading, which it may need to reach the interpreter; Landlock says what can be read."""
    header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    _call("keeping a capability", "prctl", 8, 1, 0, 0, 0)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _call("capabilities", "capget", header, data)
    kept = struct.unpack("6I", data.raw)[1] & 1 << CAP_DAC_READ_SEARCH
    _call("capabilities", "capset", header, struct.pack("6I", kept, kept, kept, 0, 0, 0))
    if kept:
        _call("capabilities", "prctl", 47, 2, CAP_DAC_READ_SEARCH, 0, 0)


def limit(seconds: int, memory: int, file_size: int) -> None:
    """Limits of the process: CPU time, address space (which bounds threads too), the size of a file, open files."""
    for what, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def main() -> None:
    config = json.loads(sys.argv[1])
    try:
        if config["protect"]:
            root = os.geteuid() == 0
            # a second lock on the network where namespaces are allowed: CLONE_NEWNET, NEWIPC, and NEWUSER for users
            _libc.unshare(0x40000000 | 0x08000000 | (0 if root else 0x10000000))
            _call("no_new_privs", "prctl", 38, 1, 0, 0, 0)
            if root:
                become_nobody()
            restrict_files(config["folder"])
        _call("the parent's death", "prctl", 1, 9, 0, 0, 0)
        if os.getppid() != config["parent"]:
            sys.exit("the parent is gone")
        limit(config["seconds"], config["memory"], config["file_size"])
        if config["protect"]:
            restrict_calls()
        os.write(config["done"], b"R")
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-"], dict(os.environ))
    except OSError as error:
        sys.exit(f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}")


if __name__ == "__main__":
    main()

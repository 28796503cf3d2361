# SPDX-License-Identifier: MIT OR Apache-2.0
"""The latest system calls of the calling thread, with what each has cost (docs/in-band.md).

    thread = tollgate_in_band.thread()
    before = thread.sequence
    data = os.pread(fd, 65536, 0)
    call = thread.latest(before)
    if call is not None and call.blocked_ns > 1_000_000:
        print("blocked for", call.blocked_ns, "ns")

It works in a command of `tollgate run --in-band -- COMMAND`, and in any program that a
`tollgate daemon --in-band` gates. This module is one file, which needs nothing else.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import socket
import struct
import threading

# bpf/wire/in_band.h
_VERSION = 2
_PAGE = 4096
_ENTRIES = 257
_CALLS = 16
_SLEEPS = 5
# The offset of the records in a thread's entry.
_CALLS_OFFSET = 512
# crates/control/src/in_band.rs
_RECORDS, _SITE_NAME, _SITE_SOURCE = 1, 2, 3
_CHALLENGE_LEN = 8
_DEFAULT_SOCKET = "/run/tollgate/in-band.sock"
_REPLY_TIMEOUT = 10

VARIABLE = "TOLLGATE_IN_BAND"
# A number of waiting threads that is not known.
UNKNOWN = 0xFFFF


class _Fields(ctypes.Structure):
    """A structure that shows its fields."""

    def __repr__(self):
        names = [name for name, _ in self._fields_ if not name.startswith("_")]
        shown = [f"{name}={getattr(self, name)!r}" for name in names + self._further]
        return f"{type(self).__name__}({', '.join(shown)})"

    _further = []


class Others(_Fields):
    """How many other threads with in-band records sleep in a site: threads of the same user, and
    of other users."""

    _fields_ = [("same_user", ctypes.c_uint16), ("outside", ctypes.c_uint16)]


class Sleep(_Fields):
    """The sleeps of a call in one site: their time, the number of the site, how many; and who else
    slept there when the first one began, and when the last one ended."""

    _fields_ = [
        ("ns", ctypes.c_uint64),
        ("site", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("at_entry", Others),
        ("at_exit", Others),
    ]


class Call(_Fields):
    """A call that has ended. Times are nanoseconds; `ended_ns` is by CLOCK_MONOTONIC."""

    _fields_ = [
        ("result", ctypes.c_int64),
        ("ended_ns", ctypes.c_uint64),
        ("wall_ns", ctypes.c_uint64),
        ("blocked_ns", ctypes.c_uint64),
        ("waiting_ns", ctypes.c_uint64),
        ("minor_faults", ctypes.c_uint32),
        ("major_faults", ctypes.c_uint32),
        ("number", ctypes.c_uint16),
        ("abi", ctypes.c_uint8),
        ("is_rejected", ctypes.c_uint8),
        ("sleep_count", ctypes.c_uint32),
        ("other_sleeps_ns", ctypes.c_uint64),
        ("_unused", ctypes.c_uint64),
        ("_sleep", Sleep * _SLEEPS),
    ]
    _further = ["sleeps"]

    @property
    def sleeps(self):
        """The sleeps by site, at most five."""
        return list(self._sleep[: self.sleep_count])

    @property
    def on_cpu_ns(self):
        """The time on a processor."""
        return self.wall_ns - self.blocked_ns - self.waiting_ns


class Unavailable(Exception):
    """This process has no in-band records."""


# crates/tollgate/src/lens/in_band_server.rs, errno_of
_REASONS = {
    errno.ESRCH: "Tollgate does not gate this thread",
    errno.EBUSY: "this thread counts in another session of Tollgate, and not in the one that gives "
    "in-band records",
    errno.EUSERS: "too many processes have in-band records (255 at a time)",
    errno.ENOSPC: "too many threads of this process have in-band records (256 at a time)",
}


def _check(number):
    if number:
        reason = f"Tollgate has refused: {os.strerror(number)}"
        raise Unavailable(_REASONS.get(number, reason))


def _word(reply):
    if len(reply) < 4:
        raise Unavailable("Tollgate has closed the connection")
    return struct.unpack("=i", reply[:4])[0]


def _is_roots(connection):
    """Whether root listens at the other end. A name in the abstract namespace that Tollgate has
    left can be any user's. In a user namespace without root, root is the user 65534
    (user_namespaces(7))."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    user = struct.unpack("=iII", peer)[1]
    if user != 65534:
        return user == 0
    with open("/proc/self/uid_map", "rb") as users:
        return users.read().split() != [b"0", b"0", b"4294967295"]


def _request(request, of):
    if not 0 <= of < 1 << 32:
        raise Unavailable(f"no call of this process has slept in a site {of}")
    name = os.environ.get(VARIABLE) or _DEFAULT_SOCKET
    address = "\0" + name[1:] if name.startswith("@") else name
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(_REPLY_TIMEOUT)
        connection.connect(address)
        if not _is_roots(connection):
            raise Unavailable(f"who listens at {name} is not root, and so is not Tollgate")
        _check(_word(_receive(connection, 4)))
        challenge = _receive(connection, _CHALLENGE_LEN)
        connection.sendall(challenge + struct.pack("=II", request, of))
    except OSError as error:
        connection.close()
        hint = (
            "if this is the socket of a run, the run may have ended"
            if os.environ.get(VARIABLE)
            else f"{VARIABLE} is not set"
        )
        reason = error.strerror or error
        message = f"no Tollgate gives in-band records at {name}: {reason} ({hint})"
        raise Unavailable(message) from error
    except Unavailable:
        connection.close()
        raise
    return connection


def _receive(connection, length):
    received = b""
    while len(received) < length and (part := connection.recv(length - len(received))):
        received += part
    return received


@contextlib.contextmanager
def _unavailable_if_the_system_fails():
    """Raises Unavailable if, for example, this process has no descriptor left."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the request has failed: {error.strerror or error}") from error


@_unavailable_if_the_system_fails()
def _request_text(request, site):
    reply = b""
    with _request(request, site) as connection:
        while part := connection.recv(4096):
            reply += part
    _check(_word(reply))
    return reply[4:].decode()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# asm-generic/mman-common.h
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value

# The addresses of what this process has mapped, by Tollgate's numbers. Nothing is unmapped, because
# records may still be read. The lock is held during a fork, so that no child gets the memory.
_mapped = {}
_lock = threading.RLock()


def _map(address, flags, descriptor):
    mapped = _libc.mmap(address, _ENTRIES * _PAGE, mmap.PROT_READ, flags, descriptor, 0)
    if mapped == _MAP_FAILED:
        raise Unavailable(f"the memory cannot be mapped: {os.strerror(ctypes.get_errno())}")
    return mapped


def _map_memory(number, descriptor):
    if number not in _mapped:
        address = _map(None, mmap.MAP_SHARED, descriptor)
        # A child has records of its own.
        if _libc.madvise(address, _ENTRIES * _PAGE, mmap.MADV_DONTFORK):
            raise Unavailable(f"the memory cannot be kept: {os.strerror(ctypes.get_errno())}")
        _mapped[number] = address
    return _mapped[number]


def _in_child():
    """The child has no records. Where its parent's memory was, it gets empty pages."""
    for address in _mapped.values():
        _map(address, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1)
    _mapped.clear()
    _lock.release()


os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child
)


class Thread:
    """The records of one thread. In the child of a fork, those of its parent are empty."""

    @_unavailable_if_the_system_fails()
    def __init__(self):
        with _lock:
            with _request(_RECORDS, threading.get_native_id()) as connection:
                close_on_exec = socket.MSG_CMSG_CLOEXEC
                reply, descriptors, _, _ = socket.recv_fds(connection, 12, 1, close_on_exec)
            try:
                _check(_word(reply))
                if len(reply) != 12 or not descriptors:
                    raise Unavailable("Tollgate has closed the connection")
                entry, number = struct.unpack("=II", reply[4:])
                address = _map_memory(number, descriptors[0])
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        self._memory = (ctypes.c_char * (_ENTRIES * _PAGE)).from_address(address)
        version = struct.unpack_from("=I", self._memory, 0)[0]
        if version != _VERSION:
            raise Unavailable(f"Tollgate has records of version {version}, not {_VERSION}")
        self._start = entry * _PAGE

    @property
    def sequence(self):
        """The number of calls that were recorded."""
        return struct.unpack_from("=Q", self._memory, self._start)[0]

    @property
    def losses(self):
        """The number of calls that have ended without a record."""
        return struct.unpack_from("=Q", self._memory, self._start + 8)[0]

    def advances(self):
        """Whether a call of the calling thread is recorded here."""
        before = self.sequence
        os.getppid()
        return self.sequence != before

    def call(self, number):
        """A copy of the record with this number; None: it does not exist any more, or not yet."""
        start = self._start + _CALLS_OFFSET + (number - 1) % _CALLS * ctypes.sizeof(Call)
        copy = Call.from_buffer_copy(self._memory, start)
        # The oldest record may be being overwritten.
        return copy if 0 <= self.sequence - number < _CALLS - 1 and number > 0 else None

    def latest(self, before):
        """The latest call, if it was recorded after the sequence number `before`; otherwise None:
        Tollgate does not record any more, or could not record the call (`losses`)."""
        sequence = self.sequence
        return self.call(sequence) if sequence > before else None

    def blocked_since(self, before):
        """For how many nanoseconds the calls after the sequence number `before` were blocked, as
        far as their records still exist. Between two statements, the interpreter may make calls of
        its own, to wait for its lock or in a signal handler."""
        sequence = self.sequence
        numbers = range(max(before, sequence - _CALLS + 1) + 1, sequence + 1)
        return sum(call.blocked_ns for call in map(self.call, numbers) if call)


def site_name(site):
    """The kernel function in which a call slept. It sends a request to Tollgate, which takes some
    hundred microseconds; the number of a site keeps its meaning as long as the process runs."""
    name = _request_text(_SITE_NAME, site)
    if not name:
        raise Unavailable(f"no call of this process has slept in a site {site}")
    return name


def site_source(site):
    """The file and line of the kernel's source where a call slept, such as "fs/pipe.c:325". None:
    they are not known, because the kernel's debug information is not installed, for example."""
    return _request_text(_SITE_SOURCE, site) or None


_local = threading.local()


def thread():
    """The records of the calling thread. They are requested at the first call, and anew if they do
    not advance any more: from a daemon that was restarted, for example."""
    is_own = getattr(_local, "pid", None) == os.getpid()
    if not is_own or not _local.records.advances():
        _local.records = Thread()
        _local.pid = os.getpid()
    return _local.records

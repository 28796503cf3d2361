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

import ctypes
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

VARIABLE = "TOLLGATE_IN_BAND"
# A number of waiting threads that is not known.
UNKNOWN = 0xFFFF


class Others(ctypes.Structure):
    """How many other threads with in-band records sleep in a site: threads of the same user, and
    of other users."""

    _fields_ = [("same_user", ctypes.c_uint16), ("outside", ctypes.c_uint16)]


class Sleep(ctypes.Structure):
    """The sleeps of a call in one site: their time, the number of the site, how many; and who else
    slept there when the first one began, and when the last one ended."""

    _fields_ = [
        ("ns", ctypes.c_uint64),
        ("site", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("at_entry", Others),
        ("at_exit", Others),
    ]


class Call(ctypes.Structure):
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


def _request(request, of):
    name = os.environ.get(VARIABLE) or _DEFAULT_SOCKET
    address = "\0" + name[1:] if name.startswith("@") else name
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(address)
        challenge = connection.recv(_CHALLENGE_LEN, socket.MSG_WAITALL)
        connection.sendall(challenge + struct.pack("=II", request, of))
    except OSError as error:
        connection.close()
        hint = "" if os.environ.get(VARIABLE) else f", and {VARIABLE} is not set"
        raise Unavailable(f"no Tollgate replies at {name}{hint}: {error.strerror}") from error
    return connection


def _request_text(request, site):
    reply = b""
    with _request(request, site) as connection:
        while part := connection.recv(4096):
            reply += part
    errno = struct.unpack("=i", reply[:4])[0] if len(reply) >= 4 else 0
    if errno:
        raise Unavailable(f"Tollgate has refused: {os.strerror(errno)}")
    return reply[4:].decode()


class Thread:
    """The records of one thread."""

    def __init__(self):
        with _request(_RECORDS, threading.get_native_id()) as connection:
            reply, descriptors, _, _ = socket.recv_fds(connection, 12, 1)
        errno = struct.unpack("=i", reply[:4])[0] if len(reply) >= 4 else 0
        if errno:
            raise Unavailable(f"Tollgate has refused: {os.strerror(errno)}")
        if len(reply) != 12 or not descriptors:
            raise Unavailable("Tollgate has closed the connection")
        entry = struct.unpack("=I", reply[4:8])[0]
        try:
            self._memory = mmap.mmap(descriptors[0], _ENTRIES * _PAGE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptors[0])
        # A child has records of its own.
        self._memory.madvise(mmap.MADV_DONTFORK)
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
        Tollgate does not record any more."""
        sequence = self.sequence
        return self.call(sequence) if sequence > before else None


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

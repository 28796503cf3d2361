# SPDX-License-Identifier: MIT OR Apache-2.0
"""The latest system calls of the calling thread, with what each has cost (docs/in-band.md).

    thread = tollgate_in_band.thread()
    before = thread.sequence
    data = os.pread(fd, 65536, 0)
    call = thread.latest(before)
    if call is not None and call.blocked_ns > 1_000_000:
        print("blocked for", call.blocked_ns, "ns")

It works in a command of `tollgate run --in-band -- COMMAND`. This module is one file, which needs
nothing else.
"""

import ctypes
import mmap
import os
import socket
import struct
import threading

# bpf/wire/in_band.h
_VERSION = 1
_PAGE = 4096
_ENTRIES = 257
_CALLS = 16
_SLEEPS = 5
# The offset of the records in a thread's entry.
_CALLS_OFFSET = 512
# crates/tollgate/src/lens/in_band_server.rs
_RECORDS_OF_THREAD, _NAME_OF_SITE = 1, 2
# include/linux/kallsyms.h, KSYM_NAME_LEN
_NAME_LEN = 512

VARIABLE = "TOLLGATE_IN_BAND"


class Sleep(ctypes.Structure):
    """The sleeps of a call in one site: their time, the number of the site, how many."""

    _fields_ = [("ns", ctypes.c_uint64), ("site", ctypes.c_uint32), ("count", ctypes.c_uint32)]


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
        ("_unused", ctypes.c_uint64 * 6),
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
    name = os.environ.get(VARIABLE)
    if not name:
        raise Unavailable(f"{VARIABLE} is not set: run the program by `tollgate run --in-band`")
    address = "\0" + name[1:] if name.startswith("@") else name
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(address)
        connection.sendall(struct.pack("=II", request, of))
    except OSError as error:
        connection.close()
        raise Unavailable(f"no Tollgate listens at {name}: {error.strerror}") from error
    return connection


class Thread:
    """The records of one thread."""

    def __init__(self):
        with _request(_RECORDS_OF_THREAD, threading.get_native_id()) as connection:
            reply, descriptors, _, _ = socket.recv_fds(connection, 8, 1)
        errno = struct.unpack("=i", reply[:4])[0] if len(reply) >= 4 else 0
        if errno:
            raise Unavailable(f"Tollgate has refused: {os.strerror(errno)}")
        if len(reply) != 8 or not descriptors:
            raise Unavailable("Tollgate has closed the connection")
        entry = struct.unpack("=I", reply[4:])[0]
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
    with _request(_NAME_OF_SITE, site) as connection:
        reply = b""
        while len(reply) < 4 + _NAME_LEN and (part := connection.recv(4 + _NAME_LEN)):
            reply += part
    if len(reply) <= 4:
        raise Unavailable(f"no call of this process has slept in a site {site}")
    return reply[4:].decode()


_local = threading.local()


def thread():
    """The records of the calling thread."""
    if getattr(_local, "pid", None) != os.getpid():
        _local.records = Thread()
        _local.pid = os.getpid()
    return _local.records

# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tasks with deadlines for Tollgate (docs/pace.md).

    import tollgate_pace

    frame = tollgate_pace.TaskType("frame")
    with frame.begin():
        draw()

Each operation is one system call, getppid with arguments that it ignores. Without Tollgate, it does
nothing. All operations may be used by any thread.
"""

import ctypes
import itertools
import platform

# bpf/wire/pace.h, PACE_MAGIC and enum pace_operation.
_MAGIC = 0x544F4C4C50414345
_BEGIN, _END, _END_AND_BEGIN, _SET_DEADLINE, _NAME_TYPE = 1, 2, 3, 4, 5
# arch/x86/entry/syscalls/syscall_64.tbl
_GETPPID = 110
# bpf/wire/pace.h, PACE_NAME_LEN without the terminating NUL
_NAME_BYTES = 63
# The gate has 64 bits for a deadline.
_MAX_NANOSECONDS = 2**64 - 1

_syscall = ctypes.CDLL(None).syscall
_syscall.argtypes = [ctypes.c_long] + 5 * [ctypes.c_uint64]
_syscall.restype = ctypes.c_long
_is_supported = platform.machine() == "x86_64"
# itertools.count() is atomic under the interpreter's lock.
_numbers = itertools.count(1)


def _new_task(ended=0):
    """A task with a new ID. The gate begins a task faster if the lower half of its ID is that of
    the task that has just ended (bpf/wire/pace.h)."""
    number = next(_numbers)
    # 0 is no ID.
    return Task((number << 32 | (ended or number) % 2**32) % 2**64 or 1)


def _request(operation, a=0, b=0, c=0):
    if _is_supported:
        _syscall(_GETPPID, _MAGIC, operation, a, b, c)


def _hash(name):
    """The FNV-1a hash of 64 bits. It is never 0, because 0 stands for no type."""
    value = 0xCBF29CE484222325
    for byte in name:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value or 1


class TaskType:
    """A type of tasks. Its deadline and target are in the file of rules that Tollgate uses."""

    def __init__(self, name):
        """The name has at least one byte in UTF-8. Tollgate uses the first 63."""
        if not isinstance(name, str):
            raise TypeError(f"the name of a type of tasks is a string, not {type(name).__name__}")
        encoded = name.encode()[:_NAME_BYTES]
        if not encoded:
            raise ValueError("the name of a type of tasks is empty")
        if 0 in encoded:
            raise ValueError(f"the name of a type of tasks has a NUL: {name!r}")
        self.id = _hash(encoded)
        text = ctypes.create_string_buffer(encoded)
        _request(_NAME_TYPE, self.id, ctypes.addressof(text))

    def begin(self):
        """Begins a task. The calling thread works on it until the task ends."""
        task = _new_task()
        _request(_BEGIN, self.id, task.id)
        return task


class Task:
    """A task that has begun. As a context manager, it ends with its block."""

    def __init__(self, identifier):
        self.id = identifier

    def end(self):
        """Ends the task. Does nothing if it has ended already."""
        _request(_END, self.id)

    def end_and_begin(self, task_type):
        """Ends the task and begins the next one, with one system call."""
        task = _new_task(self.id)
        _request(_END_AND_BEGIN, self.id, task.id, task_type.id)
        return task

    def set_deadline(self, seconds):
        """Changes the time from the task's beginning to its deadline."""
        # Written so that it refuses NaN, too.
        if not 0 <= seconds * 1e9 <= _MAX_NANOSECONDS:
            raise ValueError(f"{seconds} s cannot be a deadline")
        _request(_SET_DEADLINE, self.id, min(int(seconds * 1e9), _MAX_NANOSECONDS))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

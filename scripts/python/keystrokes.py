"""Types into vim through a terminal, at the intervals of a quick typist:
keystrokes.py SECONDS FILE"""

import os
import pty
import random
import struct
import sys
import termios
import threading
import time
from fcntl import ioctl

# The median of the time between two keys, and the standard deviation of its logarithm: some 80
# words a minute.
INTERVAL_S = 0.14
DEVIATION = 0.5
ROWS, COLUMNS = 50, 160
LINE = "static int value_%d(struct table *table, int index) { return table->entry[index]; }"
# What keys of vim's normal mode do: movements, searches, substitutions, and the undoing of them.
COMMANDS = ["\x06", "\x02", "gg", "G", "/entry\r", "n", ":%s/table/list/g\r", "u", "dd", "p", "u"]


def keys(numbers: random.Random):
    """Words are typed, and after some lines a few commands follow."""
    while True:
        for line in range(numbers.randint(1, 3)):
            yield "o"
            yield from LINE % line
            yield "\x1b"
        for _ in range(numbers.randint(3, 8)):
            yield from numbers.choice(COMMANDS)


def read(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        # vim has ended.
        pass


def main() -> None:
    seconds, path = float(sys.argv[1]), sys.argv[2]
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(LINE % number + "\n" for number in range(5000))
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        settings = ["set nocompatible number hlsearch noswapfile", "syntax on"]
        os.execvp("vim", ["vim", "-u", "NONE", *(f"+{one}" for one in settings), path])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    threading.Thread(target=read, args=(terminal,), daemon=True).start()
    numbers = random.Random(1)
    end = time.monotonic() + seconds
    for key in keys(numbers):
        time.sleep(INTERVAL_S * numbers.lognormvariate(0.0, DEVIATION))
        if time.monotonic() > end:
            break
        os.write(terminal, key.encode())
    os.write(terminal, b"\x1b:q!\r")
    os.waitpid(child, 0)


main()

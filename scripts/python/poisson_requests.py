"""Sends HTTP requests whose intervals are exponentially distributed:
poisson_requests.py SECONDS URL"""

import random
import sys
import threading
import time
import urllib.request

# Requests a second, on average.
RATE = 15
# More than there are: the page takes the number modulo that of its files.
FILES = 1000


def send(url: str) -> None:
    with urllib.request.urlopen(url, timeout=10) as reply:
        reply.read()


def main() -> None:
    seconds, url = float(sys.argv[1]), sys.argv[2]
    numbers = random.Random(1)
    end = time.monotonic() + seconds
    due = time.monotonic()
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        # A request does not wait for the reply to the one before.
        address = f"{url}?file={numbers.randrange(FILES)}"
        threading.Thread(target=send, args=(address,), daemon=True).start()
        due += numbers.expovariate(RATE)


main()

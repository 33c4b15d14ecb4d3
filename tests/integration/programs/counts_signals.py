"""Names the signals as they come, until it gets SIGUSR1; then says how many of each came."""

import collections
import os
import signal
import time

seen = collections.Counter()


def count(number, frame):
    name = signal.Signals(number).name
    seen.update([name])
    os.write(1, f"{name}\n".encode())


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, count)
print("ready", flush=True)
while not seen["SIGUSR1"]:
    time.sleep(0.01)
time.sleep(0.5)
print(sorted(seen.items()), flush=True)

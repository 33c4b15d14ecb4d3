"""Counts the signals it gets until it gets SIGUSR1, then says how many of each."""

import collections
import signal
import time

seen = collections.Counter()
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, frame: seen.update([signal.Signals(number).name]))
print("ready", flush=True)
while not seen["SIGUSR1"]:
    time.sleep(0.01)
time.sleep(0.5)
print(sorted(seen.items()), flush=True)

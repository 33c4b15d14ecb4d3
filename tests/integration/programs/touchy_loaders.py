"""Would notice a recorder that touches more than it must: what it prints must be the same with and without.

What is replaced here before the loaders run (`open`, a method of `http.client`) is what data sets that decrypt and
libraries that trace replace.
"""

import builtins
import gc
import http.client
import http.server
import io
import multiprocessing
import os
import pickle
import tempfile
import threading
import urllib.request
from functools import partial

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

FOLDER = tempfile.mkdtemp()
real_open, opened = builtins.open, []
with real_open(os.path.join(FOLDER, "plain"), "wb") as file:
    file.write(b"a" * 500)


class Reads(Dataset):
    """Reads the same file in one way or another; keeps the `open` that it found at first."""

    def __init__(self, read):
        self.read, self.open = read, None

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.open = self.open or open
        return self.read(self)


def from_file(data):
    with data.open(os.path.join(FOLDER, "plain"), "rb") as file:
        return len(file.read(100))


kept = Reads(from_file)
print(sum(batch.item() for batch in DataLoader(kept)), pickle.loads(pickle.dumps(kept)).open is real_open)


def inverting_open(file, mode="r", *args, **kwargs):
    opened.append(os.path.basename(str(file)))
    with real_open(file, mode, *args, **kwargs) as inner:
        return io.BytesIO(bytes(byte ^ 0x20 for byte in inner.read()))


builtins.open = inverting_open
beginnings = DataLoader(Reads(lambda data: data.open(os.path.join(FOLDER, "plain"), "rb").read(3)))
print([*beginnings], opened)
builtins.open = real_open


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=FOLDER))
threading.Thread(target=server.serve_forever, daemon=True).start()


def over_http(data):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/plain") as answer:
        return len(answer.read(amt=100))


print([batch.item() for batch in DataLoader(Reads(over_http))])


class Traced:
    """Wants to be asked for by an instance, as the wrappers of tracing libraries do."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __get__(self, instance, owner):
        return partial(self.wrapped, instance)


http.client.HTTPConnection.getresponse = Traced(http.client.HTTPConnection.getresponse)
print([batch.item() for batch in DataLoader(Reads(over_http))])


class OnDisk(Sampler):
    """Owns a file; so would a copy of it, which would close it."""

    def __init__(self):
        self.descriptor = os.open(os.path.join(FOLDER, "plain"), os.O_RDONLY)

    def __len__(self):
        return 8

    def __iter__(self):
        return (os.pread(self.descriptor, 1, index)[0] % 8 for index in range(8))

    def __del__(self):
        print("closed")
        os.close(self.descriptor)


print([batch.tolist() for batch in DataLoader(range(8), sampler=OnDisk(), batch_size=2)])


class Lies(IterableDataset):
    def __len__(self):
        return 2

    def __iter__(self):
        return iter(range(4))

    def __repr__(self):
        return "Lies"


loader = DataLoader(Lies())
print(len(loader), [batch.item() for batch in loader])  # torch warns, and names this line
print([batch.item() for batch in DataLoader([1, 2], pin_memory=True)])  # torch may warn, and names itself
print(len([*DataLoader([1, 2, 3], collate_fn=lambda rows: torch.eye(3).to_sparse())]))

gc.disable()
batches = iter(DataLoader(range(64), shuffle=True, num_workers=1))
next(batches)
del batches  # its workers go with it, not with the garbage collector
print(len(multiprocessing.active_children()))

"""Samples that are read in all the ways that Python has; the arguments say where, how many workers, how they start."""

import hashlib
import http.client
import http.server
import io
import mmap
import pickle
import random
import sys
import threading
import urllib.request
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import torch
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SIZE = 30_000


class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass


class BackwardsFile(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        return (Path(self.fs.folder) / self.path).read_bytes()[start:end]


class Objects(AbstractFileSystem):
    protocol = "objects"

    def __init__(self, folder, **kwargs):
        super().__init__(**kwargs)
        self.folder = folder

    def info(self, path, **kwargs):
        return {"name": path, "size": (Path(self.folder) / path).stat().st_size, "type": "file"}

    def _open(self, path, mode="rb", **kwargs):
        return BackwardsFile(self, path, mode, **kwargs)


class Kept:
    opened = open  # a built-in function is no method


class Samples(Dataset):
    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        self.kept = None

    def __len__(self):
        return 44

    def __getitem__(self, index):
        data = getattr(self, f"way_{index % 11}")(self.folder)
        return torch.tensor(list(hashlib.sha256(data).digest()), dtype=torch.uint8)

    def way_0(self, folder):
        with open(folder / "binary", "rb") as file:
            return file.read(10) + file.read() + f"{type(file)} {type(file.raw)} {file.mode} {file.raw!r}".encode()

    def way_1(self, folder):
        with open(folder / "text", encoding="utf-8") as file:
            return ("".join(file) + f"{type(file)} {file.mode} {file.newlines!r} {file.encoding}").encode()

    def way_2(self, folder):
        return (folder / "binary").read_bytes() + (folder / "text").read_text("utf-8", "strict").encode()

    def way_3(self, folder):
        return np.load(folder / "array.npy").tobytes()

    def way_4(self, folder):
        return Image.open(folder / "image.png").convert("RGB").tobytes()

    def way_5(self, folder):
        with fsspec.open(folder / "binary") as file:
            return file.read(500) + file.read()

    def way_6(self, folder):
        fs = Objects(str(folder))
        with fs.open("binary", "rb") as file:
            file.seek(1000)
            return file.read(700) + fs.cat_file("text")

    def way_7(self, folder):
        with urllib.request.urlopen(f"{self.url}/binary?key=secret") as answer:
            return answer.read()

    def way_8(self, folder):
        if self.kept is None:
            self.kept = open(folder / "packed", "rb")  # noqa: SIM115
        self.kept.seek(12_345)
        return self.kept.read(1_000) + self.kept.readline()

    def way_9(self, folder):
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"))
        connection.request("GET", "/text")
        answer = connection.getresponse()
        data = bytearray(SIZE)
        return bytes(data[: answer.readinto(data)]) + answer.read()

    def way_10(self, folder):
        """What is none of our business, and what fails."""
        words = []
        for wrong in ((folder / "absent",), (folder,), (folder / "text", "q"), (folder / "text", "rb", -1, "utf-8"),
                      (folder / "text", "r", -1, "no such code"), (None,), (folder / "\0",), (3.5,)):  # fmt: skip
            try:
                open(*wrong).close()
            except Exception as error:
                words.append(f"{type(error).__name__} {error}")
        with open(folder / "binary", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            words.append(repr(mapped[:20]))
        with open(folder / "binary", "rb", buffering=0) as file, Kept.opened(folder / "text") as text:
            words.append(f"{type(file)} {file.read(7)!r} {text.readline()!r}")
        with io.open(folder / "binary", "r+b") as file:  # noqa: UP020
            words.append(f"{type(file)} {file.read(3)!r}")
        words.append(f"{pickle.loads(pickle.dumps(open)) is open} {open.__name__} {callable(open)}")
        return "\n".join(words).encode()


def main():
    folder, workers, method = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
    (folder / "binary").write_bytes(bytes(range(250)) * (SIZE // 250))
    (folder / "text").write_bytes("Zeile ä\r\nline\n".encode() * 500)
    (folder / "packed").write_bytes(bytes(range(256)) * 400)
    np.save(folder / "array.npy", np.arange(5000))
    Image.frombytes("L", (60, 40), random.Random(0).randbytes(60 * 40)).save(folder / "image.png")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    samples = Samples(folder, f"http://127.0.0.1:{server.server_address[1]}")
    loader = DataLoader(samples, batch_size=11, num_workers=workers, multiprocessing_context=method)
    for batch in loader:
        print(hashlib.sha256(batch.numpy().tobytes()).hexdigest())
    print(type(open).__name__, type(io.open).__name__, Image.core is not None)


if __name__ == "__main__":
    main()

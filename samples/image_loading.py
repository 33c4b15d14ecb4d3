"""Training of a small CNN on image files: an ordinary program, nothing in it knows of tracekit.

It draws its images itself, once, as JPEG files in a folder; then it decodes, crops and flips them as image programs do.

    python samples/image_loading.py
    python samples/image_loading.py --workers 2
    python samples/image_loading.py --store http://127.0.0.1:8000     the same files, from an HTTP server
"""

import argparse
import random
import time
import urllib.request
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SHAPES = ["ellipse", "rectangle", "line"]
CROP = 64


def draw_images(folder: Path, count: int, size: int) -> None:
    """Draw `count` JPEG files of some shapes on a noisy ground, the same every time."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number:05d}.jpg"
        if path.exists():
            continue
        draw = random.Random(number)
        ground = np.random.default_rng(number).integers(0, 80, (size, size, 3), dtype=np.uint8)
        image = Image.fromarray(ground)
        corners = sorted(draw.sample(range(size), 2)), sorted(draw.sample(range(size), 2))
        box = (corners[0][0], corners[1][0], corners[0][1], corners[1][1])
        colour = tuple(draw.randrange(100, 256) for _ in range(3))
        getattr(ImageDraw.Draw(image), SHAPES[number % len(SHAPES)])(box, fill=colour)
        scratch = path.with_suffix(".part")
        image.save(scratch, "JPEG", quality=90)
        scratch.replace(path)


class Images(Dataset[tuple[Tensor, int]]):
    """The images of a folder, or of the same folder behind an HTTP server, and which shape each shows."""

    def __init__(self, folder: Path, count: int, store: str | None) -> None:
        self.folder = folder
        self.count = count
        self.store = store

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> bytes:
        name = f"{index:05d}.jpg"
        if self.store is None:
            return (self.folder / name).read_bytes()
        with urllib.request.urlopen(f"{self.store}/{name}") as answer:
            return bytes(answer.read())

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """A random crop [3, CROP, CROP] of the image, flipped or not, and its shape."""
        image = Image.open(BytesIO(self.read(index))).convert("RGB")
        left, top = (int(torch.randint(side - CROP + 1, ())) for side in image.size)
        pixels = torch.from_numpy(np.asarray(image.crop((left, top, left + CROP, top + CROP)), dtype=np.float32))
        pixels = pixels.permute(2, 0, 1) / 255
        return (pixels.flip(2) if torch.rand(()) < 0.5 else pixels.contiguous()), index % len(SHAPES)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, len(SHAPES)),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("tracekit-runs/images"), help="of the images")
    parser.add_argument("--store", help="URL that serves the folder; without it the files are read")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--size", type=int, default=256, help="of an image, pixels each way")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    draw_images(options.folder, options.images, options.size)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    images = Images(options.folder, options.images, options.store)
    loader = DataLoader(images, batch_size=options.batch, shuffle=True, num_workers=options.workers)
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    began, seen, loss = time.perf_counter(), 0, torch.zeros(())
    for _ in range(options.epochs):
        for pixels, shapes in loader:
            loss = nn.functional.cross_entropy(model(pixels), shapes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(shapes)
    print(f"last loss {loss.item():.4f}")
    print(f"{seen / (time.perf_counter() - began):.0f} images/s")


if __name__ == "__main__":
    main()

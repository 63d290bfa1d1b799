"""A small file that asks for gigabytes gets at most what docs/reliability.md says."""

import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uce_edge.datasets import splits
from uce_edge.errors import UsageError
from uce_edge.images.memory_budget import MAX_BYTES

LONG = bool(os.environ.get("UCE_EDGE_FUZZ"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it")

_PEAK = """
import sys
from pathlib import Path
from uce_edge.images import loader as images
from uce_edge.errors import ImageError
from uce_edge.metadata import ImageSpec
def peak():  # of this process alone; getrusage begins with that of the one before exec
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
images.prepare(images.Image.new("RGBA", (9, 9)), ImageSpec(8, 8, 3))
before = peak()
try:
    images.load(sys.argv[1], ImageSpec(224, 224, 3))
except ImageError as error:
    print(error, file=sys.stderr)
print(peak() - before)
"""


def megabytes(path: Path) -> float:
    """What reading a file takes, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", _PEAK, path], capture_output=True, text=True, check=True)
    return float(done.stdout)


def png(side: int, *, alpha: bool) -> bytes:
    """A black square, packed row by row, so that making it takes no memory."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, row = zlib.compressobj(1), bytes(1 + side * (4 if alpha else 3))
    rows = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    head = struct.pack(">IIBBBBB", side, side, 8, 6 if alpha else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_transparency_takes_no_copies_of_a_large_image(tmp_path: Path) -> None:
    path, side = tmp_path / "bomb.png", 4500
    path.write_bytes(png(side, alpha=True))
    assert path.stat().st_size < 500_000
    assert megabytes(path) < 4 * side * side / 2**20 + 80  # four copies took 310


def _bombs() -> Iterator[tuple[str, str, str, dict[str, object], int]]:
    """As large as each format may be."""
    for mode in ("RGB", "RGBA", "P", "1", "LA", "I;16"):
        yield f"{mode}.png", "PNG", mode, {}, 9990
    for mode in ("RGB", "CMYK", "L"):
        yield f"{mode}.jpg", "JPEG", mode, {}, 9990
        yield f"{mode}-progressive.jpg", "JPEG", mode, {"progressive": True, "subsampling": 0}, 7840
    for mode in ("RGB", "RGBA"):
        yield f"{mode}.webp", "WEBP", mode, {"lossless": True}, 6859
        yield f"{mode}.jp2", "JPEG2000", mode, {}, 5656
    for mode in ("RGBA", "F", "I"):
        yield f"{mode}.tif", "TIFF", mode, {"compression": "tiff_adobe_deflate"}, 9990
    yield "P.gif", "GIF", "P", {"transparency": 0}, 9990


@pytest.mark.skipif(not LONG, reason="minutes: make fuzz")
@pytest.mark.parametrize(("name", "kind", "mode", "options", "side"), list(_bombs()), ids=lambda value: str(value)[:20])
def test_no_format_takes_more_than_the_limit(
    tmp_path: Path, name: str, kind: str, mode: str, options: dict[str, object], side: int
) -> None:
    path = tmp_path / name
    Image.new(mode, (side, side)).save(path, kind, **options)
    taken = megabytes(path)
    print(f"{name}: {side * side / 1e6:.0f} megapixels in {path.stat().st_size / 1e6:.1f} MB took {taken:.0f} MB")
    assert taken * 2**20 < MAX_BYTES


# Archives.

_READ = """
import resource, sys
from uce_edge.datasets import splits
from uce_edge.errors import UceEdgeError
resource.setrlimit(resource.RLIMIT_AS, (1500 << 20, 1500 << 20))
try:
    splits.load(sys.argv[1])
except UceEdgeError as error:
    print(error)
"""


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    """A .npy that claims a shape."""
    with io.BytesIO() as file:
        np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": kind})
        return file.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    import zipfile

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def npy(values: np.ndarray) -> bytes:
    with io.BytesIO() as file:
        np.save(file, values)
        return file.getvalue()


def test_archives_that_claim_or_unpack_to_gigabytes_are_refused_in_a_small_address_space(tmp_path: Path) -> None:
    labels, pixels = np.arange(20) % 2, np.zeros((20, 8, 8), np.uint8)
    wrong = labels.copy()
    wrong[7] = 10**9
    bombs = {
        archive(tmp_path / "label.npz", x=npy(pixels), y=npy(wrong)): "at most as many classes, but got 1000000000",
        archive(tmp_path / "images.npz", x=header((10**6, 100, 100)), y=npy(labels)): "cannot be read as an .npz",
        archive(tmp_path / "labels.npz", x=npy(pixels), y=header((2**60,), "<i8")): "cannot be read as an .npz",
        archive(
            tmp_path / "packed.npz", x=header((30_000, 256, 256)) + bytes(2 << 20), y=npy(labels)
        ): "cannot be read",
    }
    for path, sentence in bombs.items():
        done = subprocess.run([sys.executable, "-c", _READ, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert sentence in done.stdout
        with pytest.raises(UsageError, match=r"\.npz"):  # and in this process, which has no limit, just the same
            splits.load(str(path))

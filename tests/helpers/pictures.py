"""Images that tests make: good files, ones that claim what they do not hold, and what is no photo at all."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and carries next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def no_photos() -> dict[str, np.ndarray]:
    """What cameras see that should be seen by nobody, as uint8 [images, 32, 32, 3]."""
    rng = np.random.default_rng(0)
    blue = np.zeros((1, 32, 32, 3), np.uint8)
    blue[..., 2] = 255
    return {
        "a solid blue frame": blue,
        "white noise": rng.integers(0, 256, (20, 32, 32, 3)).astype(np.uint8),
        "a covered lens": np.clip(rng.normal(4, 2, (5, 32, 32, 3)), 0, 255).astype(np.uint8),
        "a gray wall": np.full((1, 32, 32, 3), 127, np.uint8),
    }

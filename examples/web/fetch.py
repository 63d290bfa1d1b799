"""Fetches onnxruntime-web from the npm registry into `uce_edge_web/vendor`: only the files that the page loads.

    python examples/web/fetch.py

The archive is pinned by its checksum. Behind a mirror, set NPM_CONFIG_REGISTRY.
"""

import base64
import hashlib
import io
import os
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "1.30.0"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""The `integrity` that the registry tells of this version."""
FILES = (
    "ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm",
)  # fmt: skip
"""The build for processors, with threads, and the one that also has WebGPU."""
VENDOR = Path(__file__).resolve().parent / "uce_edge_web" / "vendor"


def missing() -> list[str]:
    """The files that are not there yet, or of another version."""
    stamp = VENDOR / "VERSION"
    if not stamp.is_file() or stamp.read_text().strip() != VERSION:
        return list(FILES)
    return [name for name in FILES if not (VENDOR / name).is_file()]


def fetch() -> None:
    """Download, check and unpack; does nothing when all is there."""
    if not missing():
        return
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
    address = f"{registry}/onnxruntime-web/-/onnxruntime-web-{VERSION}.tgz"
    print(f"Fetching {address}", file=sys.stderr)
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            archive = answer.read()
    except OSError as error:
        raise SystemExit(
            f"{address} cannot be fetched: {error}. Check the connection, or NPM_CONFIG_REGISTRY."
        ) from None
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != SHA512:
        raise SystemExit(f"{address} is not the archive that this script was written for. Check the registry.")
    VENDOR.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        for name in FILES:
            file = package.extractfile(f"package/dist/{name}")
            if file is None:
                raise SystemExit(f"{address} has no file {name}.")
            (VENDOR / name).write_bytes(file.read())
    (VENDOR / "VERSION").write_text(f"{VERSION}\n")
    size = sum((VENDOR / name).stat().st_size for name in FILES)
    print(f"onnxruntime-web {VERSION}: {len(FILES)} files, {size / 1e6:.0f} MB in {VENDOR}", file=sys.stderr)


if __name__ == "__main__":
    fetch()

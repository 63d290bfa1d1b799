"""Download public datasets from their official addresses."""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from uce_edge import __version__
from uce_edge._util.atomic_files import replacing
from uce_edge._util.progress import progress
from uce_edge.errors import UceEdgeError

_CHUNK = 256_000
_TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Public:
    """The files of a public dataset and their origin."""

    folder: str
    """Its default folder under the root."""
    address: str
    """The address of a file is this and its name."""
    files: dict[str, str]
    """The published files and their MD5."""
    contents: dict[str, int | None] = field(default_factory=dict)
    """What an archive unpacks to and is read from, with the size in bytes where it is known."""


def places(name: str, public: Public, root: Path) -> tuple[Path, Path, Path]:
    """The folders to search for a dataset's files, in order."""
    return root / public.folder, root / name, root


def by_hand(public: Public, root: Path) -> str:
    """How to download the files by hand, as a clause."""
    files = ", ".join(f"{file} (md5 {md5})" for file, md5 in public.files.items())
    if public.contents:
        return f"put {files} from {public.address} into {root} and unpack it there"
    return f"put {files} from {public.address} into {root / public.folder}"


def fetch(name: str, public: Public, root: Path) -> None:
    """Download the missing files of a public dataset.

    Files with the right checksum are not downloaded again, in the default folder or in `root`. A wrong file raises an
    error and is never overwritten.

    Args:
        name: The name of the dataset.
        public: Its origin.
        root: The folder of all datasets.

    Raises:
        UceEdgeError: No connection, a wrong checksum or a full disk. The message describes the manual download.
    """
    if (root / f"{name}.npz").is_file():
        return
    needed = public.contents or public.files
    for place in places(name, public, root):
        lacking = _lacking(public, place, root)
        if not lacking:
            return
        if len(lacking) < len(needed) or any((place / file).exists() for file in needed):
            break  # the reader would stop at this place, too
    folder = root / public.folder
    lacking = _lacking(public, folder, root)
    for file in lacking:
        _refuse_wrong(public, folder / file)
    if public.contents:
        _fetch_archive(public, root, lacking)
        return
    for file in lacking:
        with replacing(folder / file, "--root") as temporary:
            if _flaw(public, root / file) is None:
                shutil.copyfile(root / file, temporary)
            else:
                _download(public, folder / file, temporary)


def _fetch_archive(public: Public, root: Path, lacking: list[str]) -> None:
    (archive,) = (root / file for file in public.files)
    _refuse_wrong(public, archive)
    given = archive.is_file()
    if not given:
        with replacing(archive, "--root") as temporary:
            _download(public, archive, temporary)
    _unpack(archive, root / public.folder, lacking)
    if not given:
        archive.unlink()


def _lacking(public: Public, place: Path, root: Path) -> list[str]:
    """The files that a folder lacks, or has with a wrong checksum."""

    def unzipped(file: str) -> bool:
        # Without a checksum, only the folder distinguishes MNIST from Fashion-MNIST.
        return place != root and file.endswith(".gz") and (place / file).with_suffix("").is_file()

    needed = public.contents or public.files
    return [file for file in needed if not unzipped(file) and _flaw(public, place / file) is not None]


def _flaw(public: Public, path: Path) -> str | None:
    """The fault of a file of the dataset; None for no fault."""
    if not path.is_file():
        return "does not exist"
    if path.name in public.contents:
        size, published = path.stat().st_size, public.contents[path.name]
        return None if published in (None, size) else f"has {size} bytes instead of {published}"
    with path.open("rb") as file:
        md5 = hashlib.file_digest(file, _md5).hexdigest()
    return None if md5 == public.files[path.name] else f"has the md5 {md5} instead of {public.files[path.name]}"


def _refuse_wrong(public: Public, path: Path) -> None:
    flaw = _flaw(public, path) if path.is_file() else None
    if flaw is not None:
        raise UceEdgeError(
            f"{path} {flaw}: it is damaged, or another file. Delete it and run this again, or replace it; "
            f"it belongs to {' and '.join(public.files)} from {public.address}",
            "download.wrong-file",
            path=path,
        )


def _download(public: Public, target: Path, temporary: Path) -> None:
    """Download the target's file and check its MD5."""
    md5 = _md5()
    # Closed at once when the disk is full, so that no bar is drawn over the message.
    with temporary.open("wb") as file, closing(_stream(public, target)) as chunks:
        for chunk in chunks:
            md5.update(chunk)
            file.write(chunk)
    if md5.hexdigest() != public.files[target.name]:
        raise _failed(public, target, f"the downloaded file has the md5 {md5.hexdigest()}")


def _stream(public: Public, target: Path) -> Generator[bytes]:
    """Yield the body of a published file; raise network errors only."""
    headers = {"User-Agent": f"uce-edge/{__version__}"}
    request = urllib.request.Request(public.address + target.name, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            size, arrived = response.length or 0, 0
            with progress(f"downloading {target.name} (kB)", size // 1000) as advance:
                while chunk := response.read(_CHUNK):
                    yield chunk
                    arrived += len(chunk)
                    advance(len(chunk) // 1000)
    except urllib.error.HTTPError as error:
        error.close()
        raise _failed(public, target, f"the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _failed(public, target, str(getattr(reason, "strerror", None) or reason)) from None
    if arrived < size:
        raise _failed(public, target, f"the connection broke after {arrived} of {size} bytes")


def _failed(public: Public, target: Path, reason: str) -> UceEdgeError:
    return UceEdgeError(
        f"{public.address}{target.name} cannot be downloaded: {reason}. Try again later, or get the file with the md5 "
        f"{public.files[target.name]} elsewhere, put it at {target}, and run this again.",
        "download.failed",
        path=target,
        reason=reason,
    )


def _unpack(archive: Path, folder: Path, files: list[str]) -> None:
    """Unpack some files of an archive, all or none."""
    if not hasattr(tarfile, "data_filter"):
        raise UceEdgeError(
            f"Python before 3.11.4 cannot unpack archives safely. Run: tar -xf {archive} -C {folder.parent}",
            "download.unpack",
            path=archive,
        )
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as temporary:
            with tarfile.open(archive) as tar:
                tar.extractall(temporary, filter="data")
            unpacked = Path(temporary) / folder.name
            absent = [file for file in files if not (unpacked / file).is_file()]
            if absent:
                raise UceEdgeError(
                    f"{archive} does not hold {folder.name}/{absent[0]}. Get it again.", "download.unpack", path=archive
                )
            folder.mkdir(exist_ok=True)
            for file in files:
                (unpacked / file).replace(folder / file)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UceEdgeError(
            f"{archive} cannot be unpacked ({error}). Make room, or unpack it into {folder.parent} yourself.",
            "download.unpack",
            path=archive,
        ) from None


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)  # a checksum against accidents, as published

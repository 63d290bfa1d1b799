"""Public datasets come whole and checked, or not at all; a server on this machine plays the official ones."""

import gzip
import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from scipy.io import savemat

from uce_edge.datasets import downloads, named, splits
from uce_edge.datasets.resolve import resolve
from uce_edge.datasets.sources import Source
from uce_edge.errors import UceEdgeError, UsageError


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@dataclass
class Server:
    """Serves `files`, and remembers what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """Files whose connection breaks half-way."""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/data/")
            state.asked.append(name)
            if name not in state.files:
                self.send_error(404)
                return
            content = state.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if name in state.broken else content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{listening.server_port}/data/"
        yield state
        listening.shutdown()
        thread.join()


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def cifar10(rng: np.random.Generator) -> dict[str, bytes]:
    def rows(count: int) -> bytes:
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        return np.concatenate([np.arange(count, dtype=np.uint8)[:, None] % 10, pixels], axis=1).tobytes()

    files = {f"data_batch_{i}.bin": rows(10) for i in range(1, 6)} | {"test_batch.bin": rows(10)}
    return files | {"batches.meta.txt": "\n".join("abcdefghij").encode()}


def mat(rng: np.random.Generator) -> bytes:
    stream = io.BytesIO()
    savemat(stream, {"X": rng.integers(0, 256, (32, 32, 3, 30), dtype=np.uint8), "y": np.arange(30)[:, None] % 10 + 1})
    return stream.getvalue()


def idx(rng: np.random.Generator) -> dict[str, bytes]:
    header = b"\x00\x00\x08\x03" + np.array([30, 28, 28], ">i4").tobytes()
    images = header + rng.integers(0, 256, 30 * 28 * 28, dtype=np.uint8).tobytes()
    labels = b"\x00\x00\x08\x01" + np.array([30], ">i4").tobytes() + bytes(rng.permutation(np.arange(30) % 10).tolist())
    parts = {"images-idx3": images, "labels-idx1": labels}
    return {
        f"{part}-{name}-ubyte.gz": gzip.compress(content, mtime=0)
        for part in ("train", "t10k")
        for name, content in parts.items()
    }


@pytest.fixture
def small(server: Server, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Server:
    """CIFAR-10, SVHN, MNIST and Fashion-MNIST in small, with their own checksums."""
    contents = cifar10(rng)
    archive = tar({f"cifar-10-batches-bin/{name}": content for name, content in contents.items()})
    published = {
        "cifar10": {"cifar-10-binary.tar.gz": archive},
        "svhn": {"train_32x32.mat": mat(rng), "test_32x32.mat": mat(rng)},
        "mnist": idx(rng),
        "fashion-mnist": idx(rng),
    }
    for name, files in published.items():
        server.files |= {f"{name}/{file}": content for file, content in files.items()}
        checksums = {file: md5(content) for file, content in files.items()}
        publish(monkeypatch, name, address=f"{server.address}{name}/", files=checksums)
    assert set(public("cifar10").contents) == set(contents)
    publish(monkeypatch, "cifar10", contents={file: len(content) for file, content in contents.items()})
    return server


def public(name: str) -> downloads.Public:
    found = named.get(name).public
    assert found is not None
    return found


def publish(monkeypatch: pytest.MonkeyPatch, name: str, **changes: object) -> None:
    """Change what is known of a public dataset."""
    module = import_module(f"{named.__name__}.{name.replace('-', '_')}")
    changed = replace(public(name), **changes)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "DATASET", replace(module.DATASET, public=changed))


def fetch(name: str, root: Path) -> None:
    downloads.fetch(name, public(name), root)


def read(name: str, root: Path) -> Source:
    return resolve(name, root).source


def listing(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


NAMES = ["cifar10", "svhn", "mnist", "fashion-mnist"]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_fetched_is_read_and_not_fetched_again(name: str, small: Server, tmp_path: Path) -> None:
    root = tmp_path / "new"
    fetch(name, root)
    known = public(name)
    assert listing(root) == {f"{known.folder}/{file}" for file in known.contents or known.files}
    dataset = splits.load(name, root)
    assert len(dataset.class_names) == 10
    assert len(small.asked) == len(known.files)
    fetch(name, root)
    assert len(small.asked) == len(known.files)


def test_only_what_is_missing_is_fetched(small: Server, tmp_path: Path) -> None:
    fetch("svhn", tmp_path)
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    small.asked.clear()
    fetch("svhn", tmp_path)
    assert small.asked == ["svhn/test_32x32.mat"]
    fetch("cifar10", tmp_path)
    before = (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").stat().st_mtime_ns
    (tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin").unlink()
    fetch("cifar10", tmp_path)
    assert (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").stat().st_mtime_ns == before
    assert read("cifar10", tmp_path).parts["train"][0].shape == (50, 32, 32, 3)


# Files that somebody put there by hand


def test_an_archive_in_the_root_is_unpacked_without_a_download_and_kept(small: Server, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(small.files["cifar10/cifar-10-binary.tar.gz"])
    fetch("cifar10", tmp_path)
    assert small.asked == []
    assert (tmp_path / "cifar-10-binary.tar.gz").is_file()
    assert len(read("cifar10", tmp_path).parts["test"][1]) == 10


def test_files_in_the_root_are_used_without_a_download(small: Server, tmp_path: Path) -> None:
    (tmp_path / "train_32x32.mat").write_bytes(small.files["svhn/train_32x32.mat"])
    fetch("svhn", tmp_path)
    assert small.asked == ["svhn/test_32x32.mat"]
    assert (tmp_path / "svhn" / "train_32x32.mat").read_bytes() == small.files["svhn/train_32x32.mat"]
    read("svhn", tmp_path)


def test_mnist_in_the_root_is_not_taken_for_fashion_mnist(small: Server, tmp_path: Path) -> None:
    for file in public("mnist").files:
        (tmp_path / file).write_bytes(small.files[f"mnist/{file}"])
    fetch("mnist", tmp_path)
    assert small.asked == []
    fetch("fashion-mnist", tmp_path)
    assert len(small.asked) == 4
    fetched = tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    assert fetched.read_bytes() == small.files["fashion-mnist/train-images-idx3-ubyte.gz"]


@pytest.mark.parametrize("place", ["mnist.npz", "mnist/unzipped"])
def test_other_forms_that_the_reader_takes_need_no_download(place: str, small: Server, tmp_path: Path) -> None:
    if place == "mnist.npz":
        np.savez(tmp_path / place, x=np.zeros((2, 8, 8), np.uint8), y=np.arange(2))
    else:
        (tmp_path / "mnist").mkdir()
        for file in public("mnist").files:
            unzipped = gzip.decompress(small.files[f"mnist/{file}"])
            (tmp_path / "mnist" / file).with_suffix("").write_bytes(unzipped)
    fetch("mnist", tmp_path)
    assert small.asked == []
    read("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("cifar10", "cifar-10-batches-bin/test_batch.bin"),
        ("svhn", "svhn/test_32x32.mat"),
    ],
)
def test_a_wrong_file_is_named_and_never_overwritten(name: str, place: str, small: Server, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"half of it")
    with raises("download.wrong-file") as caught:
        fetch(name, tmp_path)
    assert str(caught.value).startswith(str(path))
    assert public(name).address in str(caught.value)
    assert path.read_bytes() == b"half of it"
    assert listing(tmp_path) == {place}
    assert small.asked == []


# Failures


@pytest.fixture
def fails(small: Server, tmp_path: Path):
    """Fetch, expect a message with all that is needed to do it by hand, and nothing on disk."""

    def fetched(name: str, file: str, reason: str) -> None:
        known = public(name)
        target = tmp_path / file if known.contents else tmp_path / known.folder / file
        with raises("download.failed") as caught:
            fetch(name, tmp_path)
        assert caught.value.exit_code == 1
        for fact in (reason, f"{known.address}{file}", known.files[file], str(target)):
            assert fact in str(caught.value)
        assert "\n" not in str(caught.value)
        assert listing(tmp_path) == set()

    return fetched


FIRST = [("cifar10", "cifar-10-binary.tar.gz"), ("svhn", "train_32x32.mat")]


@pytest.mark.parametrize(("name", "file"), FIRST)
def test_a_wrong_checksum(name: str, file: str, small: Server, fails) -> None:
    small.files[f"{name}/{file}"] += b"!"
    fails(name, file, md5(small.files[f"{name}/{file}"]))


@pytest.mark.parametrize(("name", "file"), FIRST)
def test_a_broken_connection(name: str, file: str, small: Server, fails) -> None:
    small.broken.add(f"{name}/{file}")
    size = len(small.files[f"{name}/{file}"])
    fails(name, file, f"{size // 2} of {size} bytes")


@pytest.mark.parametrize(("name", "file"), FIRST)
def test_a_file_that_the_server_does_not_have(name: str, file: str, small: Server, fails) -> None:
    del small.files[f"{name}/{file}"]
    fails(name, file, "404")


@pytest.mark.parametrize(("name", "file"), FIRST)
def test_no_connection(name: str, file: str, fails, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    publish(monkeypatch, name, address=f"http://127.0.0.1:{port}/")
    fails(name, file, "refused")


def test_a_silent_server(fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        publish(monkeypatch, "svhn", address=address)
        fails("svhn", "train_32x32.mat", "timed out")


def test_what_arrived_before_a_failure_is_kept(small: Server, tmp_path: Path) -> None:
    del small.files["svhn/test_32x32.mat"]
    with raises("download.failed"):
        fetch("svhn", tmp_path)
    assert listing(tmp_path) == {"svhn/train_32x32.mat"}


def test_a_full_disk_is_not_blamed_on_the_network(
    small: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda *_: Full())
    with pytest.raises(UceEdgeError, match="No space left on device"):
        fetch("svhn", tmp_path)
    assert listing(tmp_path) == set()


@pytest.mark.parametrize("member", ["../evil.txt", "{}/evil.txt", "cifar-10-batches-bin/readme.html"])
def test_a_bad_archive_leaves_nothing(
    member: str, small: Server, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    files = {f"cifar-10-batches-bin/{name}": content for name, content in cifar10(rng).items()}
    files.pop("cifar-10-batches-bin/test_batch.bin")
    archive = tar(files | {member.format(tmp_path): b"evil"})
    small.files["cifar10/cifar-10-binary.tar.gz"] = archive
    publish(monkeypatch, "cifar10", files={"cifar-10-binary.tar.gz": md5(archive)})
    with raises("download.unpack"):
        fetch("cifar10", root)
    assert listing(tmp_path) == {"root/cifar-10-binary.tar.gz"}  # checked, so that it need not come twice


def test_an_old_python_is_told_how_to_unpack(small: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    with raises("download.unpack"):
        fetch("cifar10", tmp_path)
    assert listing(tmp_path) == {"cifar-10-binary.tar.gz"}


def test_a_wrong_file_in_the_usual_folder_hides_a_whole_set_elsewhere(small: Server, tmp_path: Path) -> None:
    fetch("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-bin").rename(tmp_path / "cifar10")
    fetch("cifar10", tmp_path)
    assert len(small.asked) == 1  # the reader looks there, too
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(b"half")
    with raises("download.wrong-file"):
        fetch("cifar10", tmp_path)


def test_a_download_needs_a_place(tmp_path: Path, small: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCE_EDGE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with raises("download.no-root"):
        splits.load("svhn", download=True)
    assert small.asked == []
    monkeypatch.setenv("UCE_EDGE_DATA", str(tmp_path))
    assert len(splits.load("svhn", download=True).class_names) == 10
    assert len(small.asked) == 2


# What the reader says when there is nothing


@pytest.mark.parametrize("name", [name for name in named.names() if name != "digits"])
def test_a_missing_dataset_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(name, tmp_path)
    known = public(name)
    place = tmp_path if known.contents else tmp_path / known.folder
    for fact in ("fetch it with --download", known.address, f"into {place}", *known.files, *known.files.values()):
        assert fact in str(caught.value)
    assert all(len(checksum) == 32 for checksum in known.files.values())
    assert "\n" not in str(caught.value)

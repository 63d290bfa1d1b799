"""Nothing is sent and nothing is written unasked: every system call of the commands, as the kernel saw it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

from uce_edge.errors import UceEdgeError
from uce_edge.serve import page_contents

pytestmark = [
    pytest.mark.skipif(os.environ.get("UCE_EDGE_PORTS") != "required", reason="runs with: make test-trace"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

SENDS = "socket,connect,bind,listen,sendto,sendmsg,sendmmsg"
WRITES = (
    "open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,truncate,mknod"
)
WRITABLE = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Folders:
    """Where a command runs, may write its outputs, and may keep what it removes at its end."""

    def __init__(self, root: Path) -> None:
        self.home, self.temporary, self.out = (root / name for name in ("home", "temporary", "out"))
        self.log = root / "trace"
        for folder in (self.home, self.temporary, self.out):
            folder.mkdir()

    def words(self, *command: object) -> list[str]:
        strace = ["strace", "--seccomp-bpf", "-f", "-qq", "-s", "4096", "-e", f"trace={SENDS},{WRITES}", "-o", self.log]
        return [str(word) for word in (*strace, sys.executable, "-m", "uce_edge", *command)]

    def environment(self) -> dict[str, str]:
        places = {"HOME": self.home, "XDG_CACHE_HOME": self.home, "XDG_DATA_HOME": self.home, "TMPDIR": self.temporary}
        # ONNX Runtime reports nothing where it sees a build server, so it must not see one.
        unset = ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS", "TF_BUILD")
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        return kept | {name: str(path) for name, path in places.items()} | {"PYTHONDONTWRITEBYTECODE": "1"}

    def calls(self) -> Iterator[str]:
        """What was called and succeeded, without the number of the process."""
        for line in self.log.read_text(errors="replace").splitlines():
            call = line.split(maxsplit=1)[1]
            if not re.search(r"= -1 E\w+", call):
                yield call

    def sent(self) -> list[str]:
        return [call for call in self.calls() if call.split("(")[0] in SENDS.split(",")]

    def written_elsewhere(self) -> list[str]:
        """What opened a file for writing, or made one, outside of the named outputs and the temporary folder."""
        named = (str(self.out), str(self.temporary), "/dev/null", "/dev/shm/")
        elsewhere = []
        for call in self.calls():
            name = call.split("(")[0]
            if name in SENDS.split(",") or (name.startswith("open") and not WRITABLE.search(call)):
                continue
            elsewhere += [call for path in QUOTED.findall(call) if not path.startswith(named)]
        return elsewhere


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 digits of noise: what is measured on them does not matter."""
    path, rng = tmp_path_factory.mktemp("data") / "digits.npz", np.random.default_rng(0)
    np.savez(path, x=rng.integers(0, 256, (40, 8, 8, 1), np.uint8), y=np.arange(40) % 10)
    return path


MODEL = GOLDEN / "digits-mc.onnx"
PICTURE = ROOT / "tests" / "cifar" / "cat.png"


@pytest.mark.parametrize("name", ["predict", "evaluate", "calibrate", "bench", "verify"])
def test_a_command_sends_nothing_and_writes_what_it_was_asked_for(folders: Folders, data: Path, name: str) -> None:
    out = folders.out
    command, outputs = {
        "predict": (
            (PICTURE, "--audit", out / "log.jsonl", "--save", out / "saved", "--sheet", out / "sheet.png"),
            ["log.jsonl", "saved/cat.png", "sheet.png"],
        ),
        "evaluate": ((MODEL, "--data", data, "--report", out / "report.html"), ["report.html"]),
        "calibrate": (
            (MODEL, "--data", data, "--method", "temperature", "--out", out / "new.onnx"),
            ["new.json", "new.onnx"],
        ),
        "bench": (("--model", MODEL, "--samples", "1", "--threads", "1", "--json"), []),
        "verify": ((), []),
    }[name]
    words = folders.words(name, *command)
    unshare = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0:
        words = unshare + words  # and it works without a network
    done = subprocess.run(
        words, cwd=folders.home, env=folders.environment() | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert folders.sent() == []
    assert folders.written_elsewhere() == []
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == outputs
    assert [*folders.home.rglob("*"), *folders.temporary.rglob("*")] == []


def test_the_trace_would_show_it(folders: Folders) -> None:
    """What the others do not find is found here: with its telemetry on, ONNX Runtime writes into the home folder."""
    environment = folders.environment() | {"PYTHONPATH": str(ROOT), "ORT_DISABLE_TELEMETRY": "0"}
    subprocess.run(
        folders.words("predict", PICTURE), cwd=folders.home, env=environment, capture_output=True, check=True
    )
    assert any("deviceid" in call for call in folders.written_elsewhere())
    script = "import socket; socket.create_server(('127.0.0.1', 0)).close()"
    words = folders.words()
    place = words.index("-m")
    subprocess.run([*words[:place], "-c", script], env=environment, check=True)
    assert [call.split("(")[0] for call in folders.sent()] == ["socket", "bind", "listen"]


def test_the_page_listens_where_it_was_told_and_calls_nobody(folders: Folders) -> None:
    try:
        page_contents.assets()
    except UceEdgeError as error:
        pytest.skip(str(error))
    words = folders.words("web", "--model", MODEL, "--port", "0")
    environment = folders.environment() | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    # A shell that starts this in the background ignores Ctrl-C, and so would the server.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        server = subprocess.Popen(
            words, cwd=folders.home, env=environment, stderr=subprocess.PIPE, text=True, process_group=0
        )
    finally:
        signal.signal(signal.SIGINT, ours)
    with server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            address = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
            assert address is not None, said
            for path in ("", "model.json", "model.onnx"):
                with urllib.request.urlopen(address.group() + path, timeout=30) as answer:
                    assert answer.status == 200
            time.sleep(0.2)
        finally:
            os.killpg(server.pid, signal.SIGINT)
        server.wait(timeout=30)
    sent = folders.sent()
    assert not [call for call in sent if call.startswith(("connect", "sendmsg", "sendmmsg"))]
    sockets, bound = ([call for call in sent if call.startswith(name)] for name in ("socket", "bind"))
    assert all("AF_INET, SOCK_STREAM" in call for call in sockets), sockets
    assert len(bound) == 1
    assert 'inet_addr("127.0.0.1")' in bound[0]
    # Answers go to who asked: over an accepted connection, which has no address in the call.
    assert all("NULL, 0)" in call for call in sent if call.startswith("sendto"))
    assert folders.written_elsewhere() == []
    assert [*folders.home.rglob("*"), *folders.temporary.rglob("*"), *folders.out.rglob("*")] == []

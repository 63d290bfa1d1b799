"""A real `uce-edge serve` in a process of its own, for the tests that ask it."""

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from PIL import Image


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    process: "subprocess.Popen[str]"

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(content) if is_json else content, answer.headers


@contextmanager
def started(*arguments: object, **variables: str) -> Iterator[Server]:
    words = [sys.executable, "-m", "uce_edge", "serve", "--port", "0", "--threads", "1", *map(str, arguments)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | variables)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "Ctrl+C" in line:
            break
    match = re.search(r"http://127\.0\.0\.1:(\d+)", said)
    assert match, said
    try:
        yield Server(int(match[1]), process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def png(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image[..., 0]).save(file, "PNG")
    return file.getvalue()


def tensor(pixels: Any, **more: Any) -> bytes:
    entry = {"name": "image", "shape": list(pixels.shape), "datatype": "UINT8", "data": pixels.ravel().tolist()}
    return json.dumps({"inputs": [entry]} | more).encode()

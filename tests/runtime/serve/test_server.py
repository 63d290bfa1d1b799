"""A real server in its own process, with http.client and Triton's client."""

import io
import json
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, Call
from helpers.served import Server, png, started, tensor
from PIL import Image

from uce_edge import Model

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

MODEL, GATED, MOMENTS = (GOLDEN / f"digits-{name}.onnx" for name in ("mc", "novelty", "moments"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = ("--max-samples", 64, "--max-body", 1, "--max-queue", 64)
    with started(f"digits={GATED}", f"plain:1={MOMENTS}", f"plain:3={MODEL}", "--reject", "auto", *limits) as running:
        yield running


@pytest.fixture(scope="module")
def pixels() -> Any:
    shape = Model(MODEL, "cpu").metadata.image
    raw = b"".join((GOLDEN / f"{name}.raw").read_bytes() for name in ("digit-0", "digit-1", "two-digits", "noise"))
    return np.frombuffer(raw, np.uint8).reshape(-1, shape.height, shape.width, shape.channels)


def test_tritons_client_gets_the_models_answers(server: Server, pixels: Any) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert not client.is_model_ready("missing")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    described = client.get_model_metadata("plain")
    assert described["versions"] == ["1", "3"]
    assert {entry["name"]: entry["datatype"] for entry in described["inputs"]} == {"image": "UINT8", "seeds": "INT32"}
    image = triton.InferInput("image", pixels.shape, "UINT8")
    seeds = triton.InferInput("seeds", [5], "INT32")
    model = Model(MODEL, "cpu")
    chosen = model.seeds(5, 2)
    expected = model.outputs(pixels, chosen, ["uncertainty", "logits"])
    for binary in (True, False):
        image.set_data_from_numpy(pixels, binary_data=binary)
        seeds.set_data_from_numpy(chosen, binary_data=binary)
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("uncertainty", "logits")]
        for asked in (None, outputs):
            result = client.infer("plain", [image, seeds], model_version="3", outputs=asked, request_id="7")
            assert result.get_response()["id"] == "7"
            np.testing.assert_array_equal(result.as_numpy("uncertainty"), expected["uncertainty"])
        np.testing.assert_array_equal(result.as_numpy("logits"), expected["logits"])
        assert result.as_numpy("probabilities") is None
    client.close()


def test_an_encoded_image_gets_the_json_of_predict(server: Server, pixels: Any, tmp_path: Path, call: Call) -> None:
    for index, image in enumerate(pixels):
        path = tmp_path / f"{index}.png"
        path.write_bytes(png(image))
        printed = call("predict", path, "--model", GATED, "--reject", "auto", "--jsonl").out
        status, answer, _ = server.ask("POST", f"/v2/models/digits/answer?name={path}", path.read_bytes())
        assert (status, answer) == (200, json.loads(printed))
    counted = server.ask("GET", "/metrics")[1].decode()
    assert 'uce_edge_decisions_total{decision="accept",model="digits",reason=""}' in counted
    assert 'uce_edge_decisions_total{decision="reject",model="digits",reason="uncertain"}' in counted
    assert 'uce_edge_requests_total{endpoint="answer",model="digits",status="200"} 4.0' in counted
    assert 'uce_edge_queue_images{model="digits"} 0.0' in counted


def test_requests_of_many_clients_share_calls_and_none_is_lost(server: Server, pixels: Any) -> None:
    model = Model(MOMENTS, "cpu", threads=1)
    alone = [model.predict(image[None]).uncertainty.tolist() for image in pixels]

    def ask(number: int) -> tuple[int, bool]:
        index = number % len(pixels)
        status, answer, _ = server.ask("POST", "/v2/models/plain/versions/1/infer", tensor(pixels[index][None]))
        (uncertainty,) = (entry["data"] for entry in answer["outputs"] if entry["name"] == "uncertainty")
        return status, np.allclose(np.float32(uncertainty), alone[index], rtol=0, atol=1e-6)

    with ThreadPoolExecutor(16) as clients:
        assert set(clients.map(ask, range(200))) == {(200, True)}
    counted = server.ask("GET", "/metrics")[1].decode()
    calls = re.search(r'uce_edge_batch_images_count\{model="plain"\} (\d+)', counted)
    images = re.search(r'uce_edge_batch_images_sum\{model="plain"\} (\d+)', counted)
    assert calls
    assert images
    assert int(calls[1]) < int(images[1])


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("digits/infer", b"{}", 400, "`inputs`"),
        ("digits/infer", b"", 400, "body"),
        ("missing/infer", b"{}", 404, "digits, plain"),
        ("plain/versions/2/infer", b"{}", 404, "version 2"),
        ("plain/versions/x/infer", b"{}", 404, "version x"),
        ("digits/infer", b" " * (2**20 + 1), 413, "1048576"),
        ("digits/answer", b"no image", 422, "image"),
        ("digits/answer?reject=2", b"x", 400, "`reject`"),
        ("digits/answer?reject=x", b"x", 400, "`reject`"),
        ("digits/answer?samples=65", b"x", 400, "64"),
        ("digits/answer?samples=x", b"x", 400, "`samples`"),
        ("digits/answer?seed=99999", b"x", 400, "`seed`"),
        ("digits/answer?colour=red", b"x", 400, "query"),
        ("digits/nothing", b"x", 404, "/v2/models/NAME"),
    ],
)
def test_a_wrong_request_gets_its_status(server: Server, path: str, body: bytes, status: int, word: str) -> None:
    if path.endswith("samples=65"):
        body = png(np.zeros((8, 8, 1), np.uint8))
    found, answer, _ = server.ask("POST", f"/v2/models/{path}", body)
    assert (found, word in answer["error"]) == (status, True), answer
    assert "Traceback" not in answer["error"]


def test_a_tensor_that_the_model_does_not_accept_gets_400(server: Server, pixels: Any) -> None:
    wrong = {
        "UINT8 [1, 2, 2, 1]": tensor(np.zeros((1, 2, 2, 1), np.uint8)),
        "64 images": tensor(np.zeros((65, *pixels.shape[1:]), np.uint8)),
        "64 on this server": tensor(pixels, parameters={"samples": 65}),
        "`seed`": tensor(pixels, parameters={"seed": "1"}),
        "`outputs`": tensor(pixels, outputs=[{"name": "colour"}]),
    }
    for word, body in wrong.items():
        status, answer, _ = server.ask("POST", "/v2/models/digits/infer", body)
        assert (status, word in answer["error"]) == (400, True), answer


def test_a_client_that_sends_nonsense_or_nothing_does_no_harm(server: Server) -> None:
    for sent in (
        b"",
        b"\x00" * 100,
        b"GET / HTTP/1.1\r\n",
        b"POST /v2/models/digits/infer HTTP/1.1\r\nContent-Length: 9\r\n\r\nab",
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(sent)
    assert server.ask("GET", "/v2/health/ready")[:2] == (200, {"ready": True})
    assert server.ask("GET", "/v2/models/digits/infer")[0] == 405


def raw(server: Server, request: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(server: Server) -> None:
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
    answer = raw(
        server, head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:1", 200),
        ("LOCALHOST.", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost@evil.example", 421),
        ("10.0.0.1", 421),
        ("", 421),
    ],
)
def test_another_host_name_is_rejected(server: Server, host: str, status: int) -> None:
    assert server.ask("GET", "/v2", headers={"Host": host})[0] == status


def test_a_name_may_be_allowed_and_a_small_server_serves(tmp_path: Path) -> None:
    with started(MOMENTS, "--allow-host", "models.example", "--max-connections", 1) as running:
        assert running.ask("GET", "/v2", headers={"Host": "models.example:80"})[0] == 200
        assert running.ask("GET", "/v2", headers={"Host": "evil.example"})[0] == 421


def test_damaged_images_and_odd_passes_print_nothing_on_stderr(pixels: Any) -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(
        file, "TIFF", compression="tiff_lzw"
    )
    tiff = bytearray(file.getvalue())
    tiff[200:-400] = b"\xa5" * len(tiff[200:-400])
    wide = io.BytesIO()
    Image.fromarray(np.full((8, 8), 70, np.uint16)).save(wide, "PNG")
    with started(f"digits={GATED}", "--reject", "auto") as running:
        path = "/v2/models/digits/answer"
        assert running.ask("POST", path, bytes(tiff))[0] == 422
        assert running.ask("POST", path, wide.getvalue())[0] == 200
        assert running.ask("POST", f"{path}?samples=3", png(pixels[0]))[0] == 200
        running.process.terminate()
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""


def test_a_token_is_required_and_requests_under_way_are_answered(tmp_path: Path, pixels: Any) -> None:
    secret, log = "0123456789abcdef", tmp_path / "log.jsonl"
    with started(f"slow={MODEL}", "--audit", log, "--max-samples", 4096, UCE_EDGE_TOKEN=secret) as running:
        assert running.ask("GET", "/v2/health/live")[0] == 200
        for header in ({}, {"Authorization": "Bearer no"}):
            assert running.ask("GET", "/v2/models/slow", headers=header)[0] == 401
        token = {"Authorization": f"Bearer {secret}"}
        with ThreadPoolExecutor(1) as clients:
            path = "/v2/models/slow/answer?samples=4000"
            begun = clients.submit(running.ask, "POST", path, png(pixels[0]), token)
            while (
                b'uce_edge_batch_images_count{model="slow"} 1.0' not in running.ask("GET", "/metrics", None, token)[1]
            ):
                pass
            running.process.send_signal(signal.SIGTERM)
            status, answer, _ = begun.result()
        assert (status, answer["samples"]) == (200, 4000)
        assert running.process.wait(30) == 0
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["label"] == answer["label"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["missing.onnx"], "model"),
        (["a b=x.onnx"], "argument.models"),
        (["a:0=x.onnx"], "argument.models"),
        ([f"a={MODEL}", f"a={GATED}"], "model.duplicate"),
        ([f"a={MODEL}", f"b={GATED}", "--audit", "x.jsonl"], "server.several-models"),
        ([MODEL, "--port", "70000"], "argument.port"),
        ([MODEL, "--max-batch", "0"], "argument.max_batch"),
        ([MODEL, "--max-samples", "5000"], "argument.max_samples"),
        ([MODEL, "--timeout", "0"], "argument.timeout"),
        ([MODEL, "--tls-cert", "x"], "server.tls-key"),
        ([MODEL, "--tls-cert", "x", "--tls-key", "y"], "argument.tls_cert"),
    ],
)
def test_a_server_that_cannot_start_reports_why(call: Call, arguments: list[object], error: str) -> None:
    result = call("serve", *arguments)
    assert result.code in (1, 2)
    assert result.error.startswith(error)


def test_a_used_port_and_a_short_token_are_errors(call: Call, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("serve", MODEL, "--port", server.port)
    assert (result.code, result.error) == (1, "server.port")
    for token in ("short", "", "a blank in between", "0123456789abcdef\n"):
        monkeypatch.setenv("UCE_EDGE_TOKEN", token)
        assert call("serve", MODEL).error == "argument.UCE_EDGE_TOKEN"

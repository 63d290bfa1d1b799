"""The server's application under a real Ray Serve: the answers of the model, from two replicas."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from helpers.errors import raises
from helpers.served import png

from uce_edge import Model

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed: make test-scale")
pytest.importorskip("ray.serve", reason="ray[serve] is not installed: make test-scale")

pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = GOLDEN / "digits-novelty.onnx"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    from ray import serve

    from uce_edge.serve import ray_app

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": number})
        serve.run(ray_app.build({"model": f"digits={MODEL}", "reject": "auto", "replicas": "2"}))
        yield number
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(port: int, path: str, body: bytes | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET" if body is None else "POST", path, body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content)


def test_two_replicas_give_the_answers_of_the_model(port: int) -> None:
    assert ask(port, "/v2/health/ready") == (200, {"ready": True})
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), np.uint8)
    found = Model(MODEL, "cpu", threads=1).predict(images, reject="auto")
    for image, expected in zip(images, found, strict=True):
        status, answer = ask(port, "/v2/models/digits/answer", png(image))
        assert (status, answer["label"], answer["decision"]) == (200, expected.label, str(expected.decision))
        assert abs(answer["uncertainty"] - expected.uncertainty) < 1e-6
    assert ask(port, "/v2/models/digits/answer", b"no image")[0] == 422
    assert ask(port, "/v2/models/nobody")[0] == 404


def test_wrong_settings_are_errors() -> None:
    from uce_edge.serve.ray_app import build

    for settings, code in (
        ({}, "argument.settings"),
        ({"model": str(MODEL), "colour": "red"}, "argument.settings"),
        ({"model": str(MODEL), "replicas": "0"}, "argument.replicas"),
        ({"model": str(MODEL), "reject": "2"}, "argument.reject"),
        ({"model": "a b=x"}, "argument.models"),
    ):
        with raises(code):
            build(settings)

"""Ranking of images for labels and pseudo-labels."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uce_edge.runtime.model import Model


def write(folder: Path, images: np.ndarray) -> Path:
    for index, pixels in enumerate(images):
        Image.fromarray(pixels[..., 0]).save(folder / f"{index:03}.png")
    return folder


@pytest.fixture(scope="module")
def held_out(digits, tmp_path_factory) -> Path:
    """Digits that the model never saw."""
    return write(tmp_path_factory.mktemp("held-out"), digits.dataset.splits["test"].images)


@pytest.fixture(scope="module")
def pool(digits, tmp_path_factory) -> Path:
    """The same, every fourth half erased: a kind of image that the model should be taught."""
    images = digits.dataset.splits["test"].images.copy()
    images[::4, :, 4:] = 0
    return write(tmp_path_factory.mktemp("pool"), images)


@pytest.fixture
def ranked(digits, call, pool):
    """The records of a ranking of the pool."""

    def called(*arguments) -> list[dict]:
        done = call("rank", pool, "--model", digits.model, "--json", *arguments)
        assert done.code == 0, done.err
        return json.loads(done.out)

    return called


def truth(digits, record: dict) -> str:
    return str(digits.dataset.splits["test"].labels[int(Path(record["path"]).stem)])


SCORES = ["model_uncertainty", "uncertainty", "confidence", "standard_error"]


@pytest.mark.parametrize("by", SCORES)
def test_the_order_is_that_of_the_model_s_own_answers(digits, pool, ranked, by):
    paths = sorted(pool.iterdir())
    prediction = Model(digits.model, "cpu").predict(paths)
    score = -prediction.probabilities.max(-1) if by == "confidence" else getattr(prediction, by)
    wanted = [str(paths[index]) for index in np.argsort(-score, kind="stable")]
    records = ranked("--by", by, "--top", 1000)
    assert [record["path"] for record in records] == wanted
    assert [record["path"] for record in ranked("--by", by, "--top", 7)] == wanted[:7]
    assert len(ranked("--by", by)) == 100


@pytest.mark.parametrize("by", SCORES)
def test_least_is_the_other_end(ranked, by):
    most, least = ranked("--by", by, "--top", 1000), ranked("--by", by, "--top", 1000, "--least")
    assert [record[by] for record in least] == [record[by] for record in reversed(most)]
    assert {record["path"] for record in least} == {record["path"] for record in most}


def test_labels_are_asked_for_where_the_model_is_wrong(digits, ranked):
    records = ranked("--top", 1000)
    scores = [record["model_uncertainty"] for record in records]
    assert scores == sorted(scores, reverse=True)
    wrong = [record["label"] != truth(digits, record) for record in records]
    assert np.mean(wrong[:50]) > 3 * np.mean(wrong)


def test_pseudo_labels_are_right(digits, call, held_out):
    asked = ("rank", held_out, "--model", digits.model, "--least", "--top", 1000)
    done = call(*asked, "--max-uncertainty", 0.1, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert list(rows[0]) == ["path", "label", "confidence", "uncertainty", "model_uncertainty", "standard_error"]
    assert np.mean([row["label"] == truth(digits, row) for row in rows]) > 0.98
    everything = json.loads(call(*asked, "--json").out)
    sure = [record["path"] for record in everything if record["uncertainty"] <= 0.1]
    assert 0.5 * len(everything) < len(sure) < len(everything)
    assert [row["path"] for row in rows] == sure  # the most certain first, too
    limit = "with an uncertainty of at most 0.1, most certain first by uncertainty"
    assert done.err == f"{len(sure)} of {len(sure)} images {limit}.\n"


def test_a_limit_that_nothing_meets_is_an_empty_answer(digits, call):
    done = call("rank", digits.image, "--model", digits.model, "--max-uncertainty", 0, "--json")
    assert (done.code, json.loads(done.out)) == (0, [])
    assert "0 of 0 images with an uncertainty of at most 0," in done.err


def test_the_table_is_for_people(digits, call, pool):
    done = call("rank", pool, "--model", digits.model, "--top", 3)
    head, *rows = done.out.splitlines()
    assert head.split() == ["image", "label", "confidence", "uncertainty", "wrong", "about", "model", "uncertainty"]
    assert len(rows) == 3
    assert all(re.search(r"\.png +\d +\d+\.\d%  0\.\d{3} ± 0\.\d{3}  \S.* +0\.\d{3}$", row) for row in rows)
    count = len(list(pool.iterdir()))
    assert done.err == f"3 of {count} images, most uncertain first by model_uncertainty.\n"


def test_json_survives_a_pipe_and_two_processes_agree(digits, pool):
    command = [sys.executable, "-m", "uce_edge", "rank", pool, "--model", digits.model, "--top", "5", "--jsonl"]
    first, again = (subprocess.run(command, capture_output=True, check=True) for _ in range(2))
    records = [json.loads(line) for line in first.stdout.splitlines()]
    assert [record["status"] for record in records] == ["ok"] * 5
    assert first.stdout == again.stdout


def test_samples_and_seed_are_passed_on(digits, call, pool):
    asked = ("rank", pool, "--model", digits.model, "--top", 3, "--json")
    assert json.loads(call(*asked, "--seed", 7).out)[0]["seed"] == 7
    with pytest.warns(match="25 samples"):
        assert json.loads(call(*asked, "--samples", 5).out)[0]["samples"] == 5


def test_unreadable_images_are_reported_and_the_others_ranked(digits, call, tmp_path):
    write(tmp_path, digits.dataset.splits["test"].images[:5])
    (tmp_path / "002.png").write_bytes(b"no image")
    done = call("rank", tmp_path, tmp_path / "absent.png", "--model", digits.model, "--json")
    assert done.code == 1
    assert sorted(Path(record["path"]).name for record in json.loads(done.out)) == [f"00{i}.png" for i in (0, 1, 3, 4)]
    first, second, summary, last = done.err.splitlines()
    assert first.startswith(f"error: {tmp_path / '002.png'} is not an image")
    assert second.startswith(f"error: {tmp_path / 'absent.png'} does not exist")
    assert summary.startswith("4 of 4 images, ")
    assert last == "error: 2 of 6 images could not be used."


def test_a_single_pass_has_no_model_uncertainty(digits, call):
    for asked in (
        (digits.deterministic,),
        (digits.model, "--samples", 1),
        (digits.deterministic, "--by", "standard_error"),
    ):
        done = call("rank", digits.image, "--model", *asked)
        assert (done.code, done.out) == (2, "")
        assert done.error == "rank.one-pass"
    assert call("rank", digits.image, "--model", digits.deterministic, "--by", "uncertainty").code == 0
    assert call("rank", digits.image, "--model", digits.deterministic, "--least").code == 0


WRONG = {
    "--top 0": "argument.top",
    "--max-uncertainty 1.5": "argument.max_uncertainty",
    "--max-uncertainty nan": "argument.max_uncertainty",
    "--samples 0": "argument.samples",
    "--seed -1": "argument.seed",
    "--json --csv": "usage.two-formats",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage_is_an_error_before_anything_slow(call, line):
    done = call("rank", "absent", "--model", "absent.onnx", *line.split())
    assert (done.code, done.out) == (2, "")
    assert done.error == WRONG[line]
    assert done.err.count("\n") == 1


def test_other_wrong_requests(digits, call, tmp_path):
    assert str(tmp_path) in call("rank", tmp_path, "--model", digits.model).err
    assert call("rank", tmp_path, "--model", digits.model).code == 1  # as in `predict`
    assert call("rank", tmp_path, "--model", digits.model, "--by", "size").code == 2
    assert call("rank").code == 2
    assert call("rank", digits.image, "--model", tmp_path / "absent.onnx").code == 1
    assert "Example: uce-edge rank" in call("rank", "--help").out

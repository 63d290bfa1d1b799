"""What a user does with a prediction in Python: take parts of it, make a table, look at it in a notebook."""

import base64
import io
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, ROOT
from helpers.errors import raises
from PIL import Image

import uce_edge
from uce_edge import ImagePrediction, MissingPartError, Model, Prediction
from uce_edge.output import notebook

FILES = ("digit-0", "digit-1", "noise", "black")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(GOLDEN / "digits-novelty.onnx", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name in FILES:
        pixels = np.frombuffer((GOLDEN / f"{name}.raw").read_bytes(), np.uint8).reshape(8, 8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="module")
def paths(folder: Path) -> list[str]:
    return [str(folder / f"{name}.png") for name in FILES]


@pytest.fixture(scope="module")
def prediction(model: Model, paths: list[str]) -> Prediction:
    return model.predict(paths, reject="auto")


def rows(prediction: Prediction) -> list[dict[str, object]]:
    return [{"path": image.path} | image.as_dict() for image in prediction]


@pytest.mark.parametrize(
    "index",
    [
        slice(1, 3), slice(None, None, -1), slice(-2, None), slice(9, None), [2, 0], [-1], [],
        [True, False, False, True], np.array([False, True, True, False]), np.array([3, 3]),
    ],
    ids=str,
)  # fmt: skip
def test_a_part_of_a_prediction_is_a_prediction_of_these_images(prediction: Prediction, index) -> None:
    part = prediction[index]
    assert isinstance(part, Prediction)
    whole = rows(prediction)
    chosen = np.arange(4)[index] if isinstance(index, slice) or len(index) else []
    assert rows(part) == [whole[number] for number in chosen]
    assert part.probabilities.shape == (len(chosen), 10)
    assert part.paths == [prediction.paths[number] for number in chosen]


def test_one_image_is_counted_from_either_end(prediction: Prediction) -> None:
    assert isinstance(prediction[-1], ImagePrediction)
    assert prediction[-1].as_dict() == prediction[np.int64(3)].as_dict() == prediction[3].as_dict()
    for beyond in (4, -5):
        with pytest.raises(IndexError):
            prediction[beyond]
    with pytest.raises(IndexError):
        prediction[[True, False]]


def test_a_comparison_of_a_whole_list_is_no_index(prediction: Prediction) -> None:
    with pytest.raises(IndexError, match="but got a bool"):
        prediction[prediction.decisions == "accept"]


def test_what_is_sure_is_taken_by_a_mask(prediction: Prediction) -> None:
    sure = prediction[prediction.uncertainty < 0.3]
    assert 0 < len(sure) < len(prediction)
    assert all(image.uncertainty < 0.3 for image in sure)


def test_what_is_accepted_is_taken_by_a_mask(model: Model, prediction: Prediction, paths: list[str]) -> None:
    kept = prediction[prediction.accepted]
    assert [image.path for image in kept] == [image.path for image in prediction if image.decision == "accept"]
    assert 0 < len(kept) < len(prediction)
    assert not model.predict(paths).accepted.any()  # nothing was to be decided
    ood = [image for image in prediction if image.out_of_distribution]
    assert not {image.path for image in ood} & {image.path for image in kept}


def test_an_image_knows_its_file_where_it_was_one(model: Model, paths: list[str]) -> None:
    content = Path(paths[0]).read_bytes()
    with Image.open(paths[1]) as opened:
        mixed = model.predict([paths[0], Path(paths[1]), content, opened])
    assert mixed.paths == [paths[0], paths[1], None, None]
    assert [image.path for image in model.predict(np.zeros((2, 8, 8, 1), np.uint8))] == [None, None]
    (answer,) = model.answers(paths[:1])
    assert answer.prediction is not None
    assert answer.prediction.path == paths[0]


def test_one_image_needs_no_list_and_gives_one_prediction(model: Model, paths: list[str]) -> None:
    alone = model.predict([paths[0]], reject=0.3)[0].as_dict()
    with Image.open(paths[0]) as opened:
        for given in (paths[0], Path(paths[0]), Path(paths[0]).read_bytes(), opened):
            one = model.predict(given, reject=0.3)
            assert isinstance(one, ImagePrediction)
            assert one.as_dict() == alone


def test_the_model_without_a_path_is_that_in_the_box() -> None:
    model = Model(device="cpu")
    assert model.classes == uce_edge.load(device="cpu").classes
    assert model.predict(ROOT / "examples" / "images" / "panda.jpg").label == "giant panda"


def test_an_image_says_why_it_is_rejected(prediction: Prediction) -> None:
    whys = {image.decision: image.why for image in prediction}
    assert whys["accept"].startswith("like what it was calibrated on, and its uncertainty is at most ")
    assert "unlike anything it was calibrated on" in whys["reject"]


def test_a_table_of_pandas_has_a_row_for_every_image(model: Model, prediction: Prediction, paths: list[str]) -> None:
    pandas = pytest.importorskip("pandas")
    table = prediction.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table["path"]) == paths
    assert list(table["label"]) == prediction.labels
    np.testing.assert_allclose(table["uncertainty"], prediction.uncertainty, rtol=1e-6)
    answered = uce_edge.to_pandas(model.answers([*paths, "absent.png"], reject="auto", top=2))
    assert list(answered["status"]) == ["ok"] * 4 + ["error"]
    assert answered["error"].isna().sum() == 4
    assert list(answered["decision"][:4]) == list(table["decision"])
    assert {"label_2", "probability_2"} <= set(answered.columns)
    assert "label_3" not in answered.columns
    assert len(uce_edge.to_pandas([])) == 0


def test_without_pandas_its_command_is_told(prediction: Prediction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises("part.missing", MissingPartError):
        prediction.to_pandas()


# Notebooks


def pictures(html: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(content))) for content in found]


def test_a_card_shows_the_image_its_classes_and_the_decision(prediction: Prediction) -> None:
    for image in prediction:
        html = image._repr_html_()
        (drawn,) = pictures(html)
        assert drawn.size == (96, 96)
        widths = [float(width) for width in re.findall(r"width:([\d.]+)%;height", html)]
        assert widths[0] == pytest.approx(100 * image.confidence, abs=0.06)
        assert widths == sorted(widths, reverse=True)
        assert f"uncertainty {image.uncertainty:.3f}" in html
        assert f">{image.decision}</b>: {image.why}" in html
        assert str(image.path) in html


def test_a_card_shows_what_was_given_in_memory(model: Model, paths: list[str]) -> None:
    with Image.open(paths[1]) as opened:
        pixels = np.asarray(opened)
        for given in ([opened], [Path(paths[1]).read_bytes()], [pixels], pixels[None, ..., None]):
            (drawn,) = pictures(model.predict(given)._repr_html_())
            np.testing.assert_array_equal(np.asarray(drawn)[6::12, 6::12, 0], pixels)


def test_a_card_does_without_an_image_that_is_gone(model: Model, paths: list[str], tmp_path: Path) -> None:
    path = tmp_path / "<b>gone.png"
    shutil.copy(paths[0], path)
    image = model.predict(path)
    path.unlink()
    assert pictures(image._repr_html_()) == []
    assert "&lt;b&gt;gone.png" in image._repr_html_()


def test_an_answer_has_a_card_be_it_an_error(model: Model, paths: list[str]) -> None:
    good, bad = model.answers([paths[0], "absent.png"], reject=0.3)
    assert "absent.png does not exist" in bad._repr_html_()
    assert len(pictures(good._repr_html_())) == 1


def test_a_batch_shows_its_first_images_and_counts_the_others(model: Model) -> None:
    html = model.predict(np.zeros((30, 8, 8, 1), np.uint8))._repr_html_()
    assert len(pictures(html)) == notebook.LIMIT == 24
    assert "and 6 more: prediction[24:]" in html

"""Heatmaps: passes that are split over calls, and the drawing over the image."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call
from PIL import Image

from uce_edge import Model, contract
from uce_edge.evaluation import evaluate
from uce_edge.images.loader import picture
from uce_edge.images.resize import Resize, parse
from uce_edge.metadata import ImageSpec
from uce_edge.output.heatmap_overlay import overlaid, panels, placed, scaled
from uce_edge.output.notebook import card
from uce_edge.output.report import page
from uce_edge.runtime import scheduler

FILE = GOLDEN / "digits-heatmap.onnx"
NAMES = ("digit-0", "digit-1", "digit-2", "two-digits", "noise", "black")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.stack([np.frombuffer((GOLDEN / f"{name}.raw").read_bytes(), np.uint8).reshape(8, 8, 1) for name in NAMES])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Model:
    """The file, with two passes in a call at most."""
    monkeypatch.setattr(scheduler, "_ROWS_PER_CALL", 2)
    return Model(FILE, "cpu")


def agreeing(model: Model, images: np.ndarray) -> np.ndarray:
    """The images whose calls, of two passes each, all predict the same class."""
    name = contract.PASS_PROBABILITIES
    passes = model.outputs(images, model.seeds(25), [name])[name]
    classes = np.array([passes[i : i + 2].mean(0).argmax(-1) for i in range(0, 25, 2)])
    same: np.ndarray = (classes == passes.mean(0).argmax(-1)).all(axis=0)
    assert same.any()
    assert not same.all()
    return same


def test_the_report_of_an_evaluation_shows_the_maps(images: np.ndarray) -> None:
    labels = np.array([0, 1, 2, 3, 4, 5])
    for name, maps in (("digits-heatmap", True), ("digits-mc", False)):
        found = evaluate(Model(GOLDEN / f"{name}.onnx", "cpu"), images, labels)
        report = page.render(found)
        shown = [*found.most_uncertain, *found.confidently_wrong]
        assert shown
        assert report.count('alt="where it looked') == (len(shown) if maps else 0)
        assert report.count('alt="where the passes disagree') == (len(shown) if maps else 0)


def test_split_calls_that_agree_give_the_map_of_one_call(images: np.ndarray, few: Model) -> None:
    seeds = few.seeds(25)
    feed = {contract.IMAGE: images, contract.SEEDS: seeds}
    names = [contract.CLASS_ID, *contract.MAPS]
    classes, whole, spread = few.session.run(names, feed)
    split = few.predict(images, samples=25)
    np.testing.assert_array_equal(split.class_ids, classes)
    agree = agreeing(few, images)
    np.testing.assert_allclose(split.heatmap[agree], whole[agree], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(split.heatmap_spread[agree], spread[agree], rtol=1e-3, atol=1e-5)


def test_split_calls_that_differ_give_the_map_of_the_passes_that_predict_the_class(
    images: np.ndarray, few: Model
) -> None:
    prediction, names = few.predict(images, samples=25), [contract.CLASS_ID, contract.HEATMAP]
    for number in np.flatnonzero(~agreeing(few, images)):
        image = images[number : number + 1]
        each = [few.outputs(image, few.seeds(25)[i : i + 1], names) for i in range(25)]
        own = [one[contract.HEATMAP] for one in each if one[contract.CLASS_ID] == prediction.class_ids[number]]
        assert 0 < len(own) < 25
        np.testing.assert_allclose(prediction.heatmap[number], np.mean(own, axis=(0, 1)), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(prediction.heatmap_spread[number], np.std(own, axis=(0, 1)), rtol=1e-2, atol=1e-4)


def test_early_stopping_has_the_map_of_the_passes_that_were_drawn(images: np.ndarray, few: Model) -> None:
    stopped = few.predict(images, samples=25, adaptive=0.2, reject=0.3)
    assert len(set(stopped.drawn)) > 1
    names = [contract.CLASS_ID, contract.HEATMAP]
    for number, drawn in enumerate(stopped.drawn):
        seeds, image = few.seeds(25)[:drawn], images[number : number + 1]
        label, whole = few.session.run(names, {contract.IMAGE: image, contract.SEEDS: seeds})
        assert label == stopped.class_ids[number]
        each = [few.outputs(image, seeds[i : i + 1], names) for i in range(drawn)]
        own = [one[contract.HEATMAP] for one in each if one[contract.CLASS_ID] == label]
        off = [np.abs(stopped.heatmap[number] - maps).max() for maps in (whole[0], np.mean(own, axis=(0, 1)))]
        assert min(off) < 1e-4  # of all passes where its calls agree, and of its own where they do not


def test_no_map_without_a_pass_that_predicts_the_class(images: np.ndarray, few: Model) -> None:
    """Three passes for three classes, and a fourth class that is second in all of them."""
    passes = np.full((3, 1, 10), 0.0, np.float32)
    for number in range(3):
        passes[number, 0, [number, 9]] = 0.55, 0.45
    calls = few._calls
    computed = scheduler.from_passes(passes, few.metadata)
    assert computed[contract.CLASS_ID] == [9]
    maps = calls._again(images[:1], few.seeds(25)[:3])
    assert maps is not None
    disagreeing = replace(maps, agree=np.array([False]))
    values = calls._mapped(computed, disagreeing, passes, images[:1], few.seeds(25)[:3])
    assert np.isnan(values[contract.HEATMAP]).all()
    known = few.predict(images[:1], samples=25)
    unknown = replace(known, heatmap=values[contract.HEATMAP], heatmap_spread=values[contract.HEATMAP_SPREAD])
    assert unknown[0].heatmap is None
    assert unknown[0].looked_at is None
    assert panels(unknown[0], Image.new("RGB", (8, 8))) == []


def test_selected_images_keep_their_maps(images: np.ndarray) -> None:
    prediction = Model(FILE, "cpu").predict(images)
    some = prediction[[4, 1]]
    np.testing.assert_array_equal(some.heatmap, prediction.heatmap[[4, 1]])
    np.testing.assert_array_equal(some[0].heatmap_spread, prediction.heatmap_spread[4])


@pytest.mark.parametrize(
    ("resize", "size", "peak"),
    [
        (Resize(), (80, 40), (50, 25)),  # the third of four places lies at 5/8 of a side
        (parse("pad"), (80, 40), (50, 30)),  # the image is the middle half of the rows
        (parse("crop:64"), (80, 40), (45, 25)),  # the middle half of the columns is seen
        (parse("crop:128"), (40, 40), (22.5, 22.5)),  # the middle 20 x 20 pixels are seen
    ],
)
def test_a_map_is_drawn_where_the_model_saw_it(
    resize: Resize, size: tuple[int, int], peak: tuple[float, float]
) -> None:
    values = np.zeros((4, 4), np.float32)
    values[2, 2] = 1
    drawn = placed(values, size, ImageSpec(64, 64, 3, resize=resize)) ** 8  # the top alone
    assert drawn.shape == size[::-1]
    rows, columns = np.indices(drawn.shape) + 0.5
    assert ((columns * drawn).sum() / drawn.sum(), (rows * drawn).sum() / drawn.sum()) == pytest.approx(peak, abs=1)


def test_nothing_is_drawn_where_nothing_speaks_for_the_class() -> None:
    image = Image.new("RGB", (16, 16), (90, 90, 90))
    against = np.full((16, 16), -1, np.float32)
    assert np.array_equal(np.asarray(overlaid(image, scaled(against, float(against.max())))), np.asarray(image))
    ramp = np.tile(np.linspace(0, 1, 16, dtype=np.float32), (16, 1))
    brightness = np.asarray(overlaid(Image.new("RGB", (16, 16)), ramp).convert("L"), int)[0]
    assert (np.diff(brightness) >= 0).all()  # readable without colours


def test_predict_draws_it_and_its_json_has_the_place(call: Call, tmp_path: Path, images: np.ndarray) -> None:
    Image.fromarray(images[0, ..., 0]).save(tmp_path / "digit.png")
    plain = call(
        "predict", "--model", GOLDEN / "digits-mc.onnx", tmp_path / "digit.png", "--json", "--save", tmp_path / "a"
    )
    shown = call("predict", "--model", FILE, tmp_path / "digit.png", "--json", "--save", tmp_path / "b")
    assert "looked_at" not in json.loads(plain.out)[0]
    x, y = json.loads(shown.out)[0]["looked_at"]
    assert {x, y} <= {0.25, 0.75}  # centres of 2 x 2 places
    without, with_maps = (np.asarray(picture(tmp_path / folder / "digit.png", 2000), int) for folder in ("a", "b"))
    assert with_maps.shape[1] / with_maps.shape[0] > 2 * without.shape[1] / without.shape[0]
    rows = with_maps[20:300]
    assert (rows.max(-1) - rows.min(-1)).max() > 50  # coloured, unlike the gray digit


def test_a_card_shows_the_maps(images: np.ndarray) -> None:
    one = Model(FILE, "cpu").predict(images)[0]
    assert card(one).count("<img") == 3
    assert "where the passes disagree" in card(one)


def test_looked_at_is_the_largest_place(images: np.ndarray) -> None:
    one = replace(Model(FILE, "cpu").predict(images)[0], heatmap=np.array([[0, 1, 2, 0], [0, 0, 0, 5]], np.float32))
    assert one.looked_at == (0.875, 0.75)
    assert replace(one, heatmap=-np.ones((2, 2), np.float32)).looked_at is None

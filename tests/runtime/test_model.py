"""The Python API: what `uce_edge.Model` answers, and what it refuses."""

import dataclasses
import json
import math
import sys
from dataclasses import dataclass

import numpy as np
import onnxruntime
import pytest
from helpers import port_cases
from helpers.errors import raises
from PIL import Image

import uce_edge
from uce_edge import Decision, Model, Prediction, contract, metrics
from uce_edge.calibration.error_map import error_probability
from uce_edge.errors import DeviceWarning, ImageError, MissingPartError, ModelFileError, UsageError
from uce_edge.metadata import Costs, Metadata
from uce_edge.runtime import providers
from uce_edge.runtime.model import SamplesWarning
from uce_edge.runtime.prediction import summarise
from uce_edge.runtime.providers import Device
from uce_edge.runtime.scheduler import Calls
from uce_edge.runtime.session import Runner

PER_IMAGE = ("probabilities", "uncertainty", "model_uncertainty", "standard_error", "error_probability")
CUDA = "CUDAExecutionProvider"


@dataclass(frozen=True)
class Answer:
    """The test digits and what the shared model says of them at the stored N."""

    images: np.ndarray
    labels: np.ndarray
    prediction: Prediction


@pytest.fixture(scope="module")
def model(digits) -> Model:
    return Model(digits.model, "cpu")


@pytest.fixture(scope="module")
def deterministic(digits) -> Model:
    return Model(digits.deterministic, "cpu")


@pytest.fixture(scope="module")
def answer(digits, model) -> Answer:
    test = digits.dataset.splits["test"]
    return Answer(test.images, test.labels, model.predict(test.images, reject=0.3))


def raw_passes(model: Model, images: np.ndarray, seeds: range, output: str = contract.PASS_PROBABILITIES) -> np.ndarray:
    feed = {contract.IMAGE: images, contract.SEEDS: np.array(seeds, np.int32)}
    session = providers.open_session(model.path, Device.CPU)
    return session.run([output], feed)[0]


def assert_same(left: Prediction, right: Prediction) -> None:
    for name in (*PER_IMAGE, "class_ids"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def test_public_names_are_reachable_and_others_are_not():
    assert all(hasattr(uce_edge, name) for name in uce_edge.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Modell'"):
        _ = uce_edge.Modell


def test_shapes_and_dtypes(model, answer):
    count, classes = len(answer.images), len(model.classes)
    prediction = answer.prediction
    assert len(prediction) == count
    assert (prediction.samples, prediction.seed) == (25, 0)
    assert prediction.class_ids.dtype == np.int32
    assert prediction.probabilities.shape == (count, classes)
    for name in PER_IMAGE:
        values = getattr(prediction, name)
        assert values.dtype == np.float32, name
        assert values.shape[:1] == (count,), name
        assert np.isfinite(values).all(), name
        assert ((values >= 0) & (values <= 1)).all(), name


def test_answers_are_consistent_with_each_other(model, answer):
    prediction = answer.prediction
    np.testing.assert_allclose(prediction.probabilities.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(prediction.uncertainty, metrics.normalized_entropy(prediction.probabilities), atol=1e-5)
    np.testing.assert_array_equal(prediction.class_ids, prediction.probabilities.argmax(-1))
    confidence = prediction.probabilities.max(-1)
    wrong = error_probability(model.metadata.calibration, confidence, prediction.uncertainty)
    np.testing.assert_allclose(prediction.error_probability, wrong, rtol=1e-4, atol=1e-7)
    assert (prediction.model_uncertainty <= prediction.uncertainty + 1e-6).all()
    assert prediction.labels == [model.classes[index] for index in prediction.class_ids]


def test_items_are_plain_values(answer):
    items = list(answer.prediction)
    assert len(items) == len(answer.images)
    written = json.loads(json.dumps([item.as_dict() for item in items]))
    for item, plain in zip(items, written, strict=True):
        assert "probabilities" not in plain
        assert plain["confidence"] == pytest.approx(float(item.probabilities.max()), abs=1e-7)
        assert plain["decision"] in ("accept", "reject")
    assert answer.prediction[-1].as_dict() == items[-1].as_dict()


def test_numpy_integers_stay_serialisable(model, answer):
    item = model.predict(answer.images[:1], samples=np.int64(25), seed=np.int64(3))[0]
    assert json.loads(json.dumps(item.as_dict()))["seed"] == 3


def test_predictions_can_be_compared_without_an_error(answer):
    # Arrays have no truth value, so the comparison that dataclasses write would raise.
    assert answer.prediction == answer.prediction
    assert answer.prediction[0] != answer.prediction[1]


def test_every_kind_of_image_gives_the_answer_of_its_pixels(model, answer, tmp_path):
    pixels = answer.images[0]
    path = tmp_path / "digit.png"
    picture = Image.fromarray(pixels[..., 0])
    picture.save(path)
    given = [str(path), path, path.read_bytes(), picture, pixels, pixels[..., 0]]
    assert_same(model.predict(given), model.predict(np.stack([pixels] * len(given))))
    assert_same(model.predict(tuple(given)), model.predict(given))


def test_answer_does_not_depend_on_the_batch(model, answer):
    for index in range(8):
        alone = model.predict(answer.images[index : index + 1])
        for name in PER_IMAGE:
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(answer.prediction, name)[index])


def test_seed_repeats_and_seeds_differ(model, answer):
    images = answer.images[:4]
    assert_same(model.predict(images, seed=7), model.predict(images, seed=7))
    assert (model.predict(images, seed=7).probabilities != model.predict(images, seed=8).probabilities).any()
    assert_same(model.predict(images), model.predict(images, samples=25, seed=0))


def test_summary_equals_what_the_graph_computes(model, answer):
    images = answer.images[:32]
    summary = summarise(
        np.concatenate([raw_passes(model, images, range(start, start + 5)) for start in range(0, 25, 5)])
    )
    graph = model.predict(images)
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error"):
        np.testing.assert_allclose(getattr(summary, name), getattr(graph, name), atol=1e-5, err_msg=name)


def test_many_samples_are_split_over_calls_and_merged(model, answer):
    images = answer.images[:5]
    with pytest.warns(SamplesWarning):
        prediction = model.predict(images, samples=100, seed=2)
    passes = raw_passes(model, images, contract.pass_seeds(100, 2))
    assert passes.shape == (100, 5, 10)
    summary = summarise(passes)
    assert prediction.samples == 100
    assert prediction.class_ids.dtype == np.int32
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error"):
        np.testing.assert_allclose(getattr(prediction, name), getattr(summary, name), atol=1e-6, err_msg=name)
    wrong = error_probability(model.metadata.calibration, summary.probabilities.max(-1), summary.uncertainty)
    np.testing.assert_allclose(prediction.error_probability, wrong, rtol=1e-4, atol=1e-7)


def test_logits_are_the_raw_passes(model, answer):
    images = answer.images[:3]
    logits = model.logits(images, seed=1)
    assert (logits.shape, logits.dtype) == ((25, 3, 10), np.float32)
    np.testing.assert_array_equal(logits, raw_passes(model, images, contract.pass_seeds(25, 1), contract.LOGITS))


@pytest.mark.filterwarnings("ignore::uce_edge.runtime.model.SamplesWarning")
def test_one_sample_knows_nothing_of_its_error(model, answer):
    prediction = model.predict(answer.images[:3], samples=1)
    np.testing.assert_array_equal(prediction.standard_error, 1)
    np.testing.assert_array_equal(prediction.model_uncertainty, 0)


def test_standard_error_is_the_spread_over_seeds(model, answer):
    images = answer.images[:32]
    runs = [model.predict(images, seed=seed) for seed in range(40)]
    spread = np.stack([run.uncertainty for run in runs]).std(axis=0, ddof=1).mean()
    claimed = np.stack([run.standard_error for run in runs]).mean()
    assert 0.5 < claimed / spread < 2


@pytest.mark.parametrize("samples", [1, 24, 100])
def test_samples_other_than_the_calibration_s_warn_the_caller(model, answer, samples):
    with pytest.warns(SamplesWarning, match=f"calibrated at 25 samples and runs with {samples}") as caught:
        model.predict(answer.images[:1], samples=samples)
    assert caught[0].filename == __file__


def test_rejection_compares_uncertainty_with_the_threshold(model, answer):
    images = answer.images[:16]
    assert model.predict(images).decisions == [None] * 16
    assert set(model.predict(images, reject=0).decisions) == {Decision.REJECT}
    assert set(model.predict(images, reject=1).decisions) == {Decision.ACCEPT}
    threshold = float(str(model.predict(images).uncertainty.max()))
    assert set(model.predict(images, reject=threshold).decisions) == {Decision.ACCEPT}
    for item in model.predict(images, reject=0.05):
        assert item.decision == (Decision.REJECT if item.uncertainty > 0.05 else Decision.ACCEPT)


def test_a_deterministic_file_has_the_same_api_and_no_model_uncertainty(model, deterministic, answer):
    assert deterministic.classes == model.classes
    prediction = deterministic.predict(answer.images, samples=1, reject=0.3)
    assert prediction.samples == 1
    np.testing.assert_array_equal(prediction.model_uncertainty, 0)
    np.testing.assert_array_equal(prediction.standard_error, 0)
    np.testing.assert_allclose(prediction.uncertainty, metrics.normalized_entropy(prediction.probabilities), atol=1e-5)
    assert_same(deterministic.predict(answer.images, seed=5), prediction)
    assert deterministic.logits(answer.images[:2]).shape == (1, 2, 10)
    with raises("argument.samples", UsageError):
        deterministic.predict(answer.images[:1], samples=25)


def test_accuracy_on_unseen_digits(answer):
    assert metrics.accuracy(answer.prediction.probabilities, answer.labels) >= 0.96


def test_calibration_lowers_the_nll_on_unseen_digits(model, answer):
    logits = model.logits(answer.images).astype(np.float64)
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    uncalibrated = (exponentials / exponentials.sum(-1, keepdims=True)).mean(0)
    assert metrics.nll(answer.prediction.probabilities, answer.labels) <= metrics.nll(uncalibrated, answer.labels)


@pytest.mark.parametrize(
    ("images", "code"),
    [
        (np.zeros((8, 8, 1), np.uint8), "argument.images"),
        (np.zeros((1, 9, 8, 1), np.uint8), "argument.images"),
        (np.zeros((1, 8, 8, 3), np.uint8), "argument.images"),
        (np.zeros((1, 8, 8, 1), np.float32), "argument.images"),
        (np.zeros((0, 8, 8, 1), np.uint8), "argument.images"),
        ([], "argument.images"),
        ([np.zeros((8, 8), np.float32)], "argument.image"),
        ([np.zeros((8, 8, 2), np.uint8)], "argument.image"),
        ([3], "argument.image"),
        (["missing.png"], "image.missing"),
    ],
)
def test_unusable_images_are_refused(model, images, code):
    for ask in (model.predict, model.logits):
        with raises(code, ImageError):
            ask(images)


@pytest.mark.parametrize("image", ["digit.png", b"png", Image.new("L", (8, 8))], ids=["path", "bytes", "image"])
def test_logits_are_those_of_a_list(model, image):
    with raises("argument.images", ImageError):
        model.logits(image)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"samples": 0}, "samples"),
        ({"samples": 4097}, "samples"),
        ({"seed": -1}, "seed"),
        ({"seed": 4096}, "seed"),
        ({"reject": 1.5}, "reject"),
        ({"reject": float("nan")}, "reject"),
        *(({name: wrong}, name) for name in ("samples", "seed") for wrong in (1.5, 2.0, "1", [1], True)),
        ({"seed": None}, "seed"),
        ({"reject": "1"}, "reject"),
        ({"adaptive": "0.1"}, "adaptive"),
    ],
)
@pytest.mark.filterwarnings("ignore::uce_edge.runtime.model.SamplesWarning")
def test_options_out_of_range_are_refused(model, answer, options, name):
    with raises(f"argument.{name}", UsageError):
        model.predict(answer.images[:1], **options)


@pytest.mark.parametrize("name", ["threads", "max_memory"])
@pytest.mark.parametrize("wrong", [0, 1.5, "1", [1], True])
def test_a_resource_that_is_no_count_is_refused(digits, name, wrong):
    with raises(f"argument.{name}", UsageError):
        Model(digits.model, "cpu", **{name: wrong})


def test_what_onnx_runtime_refuses_to_run_is_one_sentence(tmp_path):
    """The damage is in the graph: it loads, and fails when it is run."""
    path = port_cases.variant(tmp_path, graph=port_cases.unrunnable)
    model = Model(path, "cpu")
    with raises("model.failed", ModelFileError):
        model.predict(np.zeros((1, 8, 8, 1), np.uint8))


def test_missing_model_file_names_the_remedy(tmp_path):
    with raises("model.missing", ModelFileError):
        Model(tmp_path / "absent.onnx")


@pytest.mark.parametrize("device", [Device.CPU, "cpu"])
def test_cpu_is_always_there(digits, device):
    assert Model(digits.model, device, threads=1).provider == "CPUExecutionProvider"


def test_threads_do_not_change_the_answer(digits, model, answer):
    images = answer.images[:4]
    assert_same(
        Model(digits.model, "cpu", threads=2).predict(images), Model(digits.model, "cpu", threads=1).predict(images)
    )


def test_unknown_device_is_refused(digits):
    with raises("argument.device", UsageError):
        Model(digits.model, "gpu")


def test_cuda_without_a_cuda_build_names_the_remedy(digits, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with raises("device.missing"):
        Model(digits.model, "cuda")


@pytest.mark.parametrize(("device", "wheel"), [("tensorrt", '"uce-edge[gpu]"'), ("openvino", "onnxruntime-openvino")])
def test_a_provider_that_the_wheel_lacks_names_the_one_that_has_it(digits, device, wheel):
    if len(onnxruntime.get_available_providers()) > 2:
        pytest.skip("this build of ONNX Runtime has more than the CPU")
    with raises("device.missing") as caught:
        Model(digits.model, device)
    assert str(caught.value).endswith(f"pip install {wheel}")


def test_bound_inputs_give_the_same_answer(digits, answer):
    """The way inputs reach a card, on the processor's own memory: a card is not everywhere."""
    metadata = Model(digits.model, "cpu").metadata
    session = providers.open_session(str(digits.model), Device.CPU)
    plain, bound = (Calls(Runner(session, device), metadata, "digits.onnx") for device in (None, "cpu"))
    images = answer.images[:3]
    for samples in (25, 100):
        seeds = np.array(contract.pass_seeds(samples, 0), np.int32)
        one, other = plain.run(images, seeds), bound.run(images, seeds)
        assert all(np.array_equal(one[name], other[name]) for name in one)
        assert np.array_equal(
            plain.passes(contract.LOGITS, images, seeds), bound.passes(contract.LOGITS, images, seeds)
        )


def test_captured_calls_keep_their_memory_and_give_the_same_answer(digits, answer):
    """How CUDA graphs are fed: every shape has its own inputs and outputs, which later calls fill again."""
    metadata = Model(digits.model, "cpu").metadata
    session = providers.open_session(str(digits.model), Device.CPU)
    plain, captured = Runner(session), Runner(session, "cpu", captures=True)
    calls = [Calls(runner, metadata, "digits.onnx") for runner in (plain, captured)]
    before = answer.images.copy()
    for images, samples in (
        (answer.images[:1], 5),
        (answer.images[1:2], 5),
        (answer.images[:3], 5),
        (answer.images[:1], 7),
    ):
        seeds = np.array(contract.pass_seeds(samples, 0), np.int32)
        one, other = (each.run(images, seeds) for each in calls)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert len(captured._graphs) == 3
    for samples in range(8, 20):  # more shapes than are captured
        seeds = np.array(contract.pass_seeds(samples, 0), np.int32)
        one, other = (each.run(answer.images[:1], seeds) for each in calls)
        assert np.array_equal(one[contract.PROBABILITIES], other[contract.PROBABILITIES])
    assert len(captured._graphs) == 8
    assert np.array_equal(answer.images, before), "a call wrote into the caller's images"


def test_an_accelerator_is_also_tested_with_the_stored_passes(digits, monkeypatch):
    """A card that is right for the two passes of a probe and wrong for larger calls."""
    monkeypatch.setattr(Model, "provider", "CUDAExecutionProvider")
    real = Calls.passes

    def wrong(self, name, batch, seeds):
        return real(self, name, batch, seeds) + (0.1 if len(seeds) > 2 else 0)

    assert Model(digits.model, "cpu").self_test().passed
    monkeypatch.setattr(Calls, "passes", wrong)
    with raises("device.untrusted"):
        Model(digits.model, "cpu")


def test_a_budget_of_memory_splits_the_work_and_keeps_the_answer(digits, answer, monkeypatch):
    free = Model(digits.model, "cpu")
    each = free.metadata.costs.bytes_per_pass / 2**20
    sizes = []
    real = Runner.run

    def counted(self, outputs, feed):
        sizes.append(len(feed["image"]) * len(feed["seeds"]))
        return real(self, outputs, feed)

    whole = free.predict(answer.images[:5])
    monkeypatch.setattr(Runner, "run", counted)
    split = Model(digits.model, "cpu", max_memory=math.ceil(3 * each)).predict(answer.images[:5])
    assert max(sizes) * each <= math.ceil(3 * each)
    assert sum(sizes) == 5 * 25
    np.testing.assert_allclose(split.probabilities, whole.probabilities, atol=1e-6)
    np.testing.assert_allclose(split.uncertainty, whole.uncertainty, atol=1e-6)


def test_a_budget_that_no_pass_fits_in_names_the_least(digits, monkeypatch):
    costs = Costs(1, 1, bytes_per_pass=5 * 2**20)
    real = Metadata.from_properties
    monkeypatch.setattr(Metadata, "from_properties", lambda *a: dataclasses.replace(real(*a), costs=costs))
    with raises("argument.max_memory", UsageError):
        Model(digits.model, "cpu", max_memory=4)
    Model(digits.model, "cpu", max_memory=5)  # enough for one
    with raises("argument.max_memory", UsageError):
        Model(digits.model, "cpu", max_memory=0)


def test_an_uncertainty_that_is_not_a_number_is_rejected(tmp_path, answer):
    file = port_cases.variant(tmp_path, graph=port_cases.not_a_number)
    pixels = answer.images[:2]
    for options in ({}, {"adaptive": 0.1}):
        assert Model(file, "cpu").predict(pixels, reject=1.0, **options).decisions == [Decision.REJECT] * 2


def silent_fallback(real, *arguments, providers, **options):
    """The GPU wheel without CUDA libraries: asks for CUDA, gets the CPU, says nothing."""
    return real(*arguments, providers=[name for name in providers if name[0] != CUDA], **options)


def refused_start(real, *arguments, providers, **options):
    """The GPU wheel without a device: the session itself fails."""
    if CUDA in [name[0] for name in providers]:
        raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected")
    return real(*arguments, providers=providers, **options)


@pytest.fixture(params=[silent_fallback, refused_start])
def unusable_cuda(request, monkeypatch):
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *a, **k: request.param(real, *a, **k))


@pytest.mark.usefixtures("unusable_cuda")
def test_auto_says_that_listed_cuda_does_not_work_and_goes_on(digits, answer, capfd):
    with pytest.warns(DeviceWarning, match="^CUDA is not usable here; running on the CPU$"):
        model = Model(digits.model)
    assert model.provider == "CPUExecutionProvider"
    assert capfd.readouterr() == ("", "")
    assert_same(model.predict(answer.images[:1]), Model(digits.model, "cpu").predict(answer.images[:1]))


@pytest.mark.usefixtures("unusable_cuda")
def test_cuda_never_falls_back(digits):
    with raises("device.unusable"):
        Model(digits.model, "cuda")


@pytest.mark.usefixtures("unusable_cuda")
def test_broken_file_is_blamed_on_the_file_and_not_on_cuda(tmp_path, capfd):
    (tmp_path / "text.onnx").write_text("not a model")
    with raises("model.unloadable", ModelFileError):
        Model(tmp_path / "text.onnx", "cuda")
    assert capfd.readouterr().out == ""


def test_missing_onnxruntime_names_the_command(digits, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with raises("part.missing", MissingPartError):
        providers.open_session(str(digits.model))

"""Somebody else's network with labelled images: how it wants its pixels, no noise by default, what noise costs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.errors import raises
from helpers.nets import Net, export
from helpers.progress_lines import every_line, shown

from uce_edge.contract import Inference, NoiseKind, Precision, ResizeMode
from uce_edge.datasets import labelled
from uce_edge.datasets.splits import Split
from uce_edge.images.resize import Resize
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.model import Model
from uce_edge_export.options import ChannelOrder, Layout
from uce_edge_export.pipeline import export_third_party
from uce_edge_export.source import preprocessing, third_party, trials
from uce_edge_export.source.trials import Preprocessing, Way

COLOURS = {"blue": (30, 60, 200), "gray": (110, 110, 110), "green": (40, 160, 70), "red": (190, 40, 40)}
IMAGENET = Preprocessing("ImageNet", 255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture
def data(rng: np.random.Generator) -> Split:
    """Images of four classes, which differ in their colour."""
    labels = np.arange(120) % 4
    colours = np.array(list(COLOURS.values()))[labels] + rng.normal(0, 25, (120, 3))
    pixels = np.clip(rng.normal(colours[:, None, None], 30, (120, 8, 8, 3)), 0, 255).astype(np.uint8)
    return Split(pixels, labels)


def by_colour(way: Preprocessing, *, nhwc: bool = False) -> onnx.ModelProto:
    """A network that finds the nearest of the four colours, if it is fed in one way."""
    spots = (np.array(list(COLOURS.values())) / way.scale - np.array(way.mean)) / np.array(way.std)
    spots = spots[:, ::-1] if way.order is ChannelOrder.BGR else spots
    width = np.abs(spots).max()
    net = Net()
    x = net.Transpose("image", perm=[0, 3, 1, 2]) if nhwc else "image"
    same = np.zeros((6, 3, 1, 1), np.float32)
    same[:3, :, 0, 0], same[3:, :, 0, 0] = np.eye(3), -np.eye(3)
    halves = net.Relu(net.Conv(x, net.constant(same, "stem")))  # x = relu(x) - relu(-x)
    pooled = net.Flatten(net.GlobalAveragePool(halves))
    both = np.concatenate([spots, -spots], 1).T * 20 / width**2
    shift = -10 * (spots**2).sum(1) / width**2
    weight, bias = (net.constant(array.astype(np.float32), name) for array, name in ((both, "head"), (shift, "bias")))
    return net.model(net.Gemm(pooled, weight, bias), shape=("n", 8, 8, 3) if nhwc else ("n", 3, 8, 8))


def read(proto: onnx.ModelProto, folder: Path) -> tuple[third_party.ThirdParty, Path]:
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    return third_party.load(path), path


WAYS = [
    preprocessing.DEFAULT,
    Preprocessing("-1 to 1", 255.0, (0.5,), (0.5,)),
    Preprocessing("0 to 255", 1.0),
    IMAGENET,
    Preprocessing("ImageNet's mean, BGR", 1.0, (123.68, 116.779, 103.939), order=ChannelOrder.BGR),
    replace(IMAGENET, name="ImageNet, BGR", order=ChannelOrder.BGR),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_labelled_images_tell_how_a_network_wants_its_pixels(way: Preprocessing, data: Split, tmp_path: Path) -> None:
    nhwc = way.name in ("0 to 1", "ImageNet, BGR")
    source, path = read(by_colour(way, nhwc=nhwc), tmp_path)
    metadata = third_party.metadata(source, path, inference=Inference.DETERMINISTIC)
    fitted = preprocessing.fit_pixels(source, metadata, data, scaling_given=False, resize_given=False)
    taken = fitted.scaling.chosen
    assert taken is not None
    assert taken.way == way
    assert taken.accuracy > 0.95
    assert fitted.metadata.image == way.of(metadata.image)
    export_third_party(fitted.source, fitted.metadata, tmp_path / "m.onnx", [])
    assert (Model(tmp_path / "m.onnx", "cpu").predict(data.images).class_ids == data.labels).mean() == taken.accuracy


def test_a_way_that_is_not_clearly_better_than_the_default_is_not_taken() -> None:
    def fit(way: Preprocessing, losses: list[float]) -> trials.Fit:
        return trials.Fit(way, np.array(losses), np.ones(len(losses), bool))

    usual = [Way(preprocessing.DEFAULT), Way(IMAGENET)]
    default, near = fit(preprocessing.DEFAULT, [0.5, 0.7, 0.6, 0.4]), fit(IMAGENET, [0.6, 0.4, 0.3, 0.6])
    assert trials.choose([near, default], usual) == (default, (near,))
    assert trials.choose([fit(IMAGENET, [0.4, 0.6, 0.5, 0.31]), default], usual).chosen.way == IMAGENET


def test_trials_of_scalings_and_resizes_report_their_runs(
    data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    originals = np.empty(len(data), object)
    originals[:] = list(data.images.repeat(2, 1).repeat(2, 2))
    source, path = read(by_colour(IMAGENET), tmp_path)
    metadata = third_party.metadata(source, path, inference=Inference.DETERMINISTIC)
    photos, lines = replace(data, originals=originals), every_line(monkeypatch)
    fitted = preprocessing.fit_pixels(source, metadata, photos, scaling_given=False, resize_given=False)
    assert fitted.resizing is not None
    found = shown(lines, "trying ways to prepare pixels")
    scalings, resizes = preprocessing.usual_scalings(3), preprocessing.usual_resizes(metadata.image)
    assert f"160 of {32 * len(scalings)} images" in found
    # The first way is known from the scalings; blocks of 16 were resized one by one.
    assert f"16 of {64 * (len(resizes) - 1)} images" in found
    preprocessing.plain_report(fitted.source, fitted.metadata.image, data)
    assert "96 of 120 images" in shown(lines, "measuring without noise")


def test_a_resize_gives_the_same_answers_block_by_block(data: Split, tmp_path: Path) -> None:
    originals = np.empty(len(data), object)
    originals[:] = list(np.random.default_rng(3).integers(0, 256, (len(data), 11, 14, 3)).astype(np.uint8))
    source, path = read(by_colour(IMAGENET), tmp_path)
    spec = third_party.metadata(source, path, inference=Inference.DETERMINISTIC).image
    cut = Resize(ResizeMode.CROP, 9)
    in_blocks = trials.Trials(source.classifier, spec, replace(data, originals=originals))
    first = in_blocks.fit(Way(IMAGENET, cut), 40)
    more = in_blocks.fit(Way(IMAGENET, cut), 120)
    whole = labelled.resized(replace(data, originals=originals), replace(spec, resize=cut))
    at_once = trials.Trials(source.classifier, replace(spec, resize=cut), replace(whole, originals=None))
    np.testing.assert_array_equal(more.hits, at_once.fit(Way(IMAGENET, cut), 120).hits)
    np.testing.assert_array_equal(first.hits, more.hits[:40])


def test_the_comparisons_of_an_export_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = every_line(monkeypatch)
    export(by_colour(IMAGENET), tmp_path, samples=2)
    assert shown(lines, "comparing with the original")
    assert any(line.endswith("so far") for line in shown(lines, "checking parity"))


def test_images_that_are_read_again_are_counted(data: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = every_line(monkeypatch)
    originals = np.empty(len(data), object)
    originals[:] = list(data.images.repeat(20, 1).repeat(20, 2))
    labelled.resized(replace(data, originals=originals), ImageSpec(8, 8, 3, resize=Resize(ResizeMode.PAD)))
    assert "100 of 120 images" in shown(lines, "resizing images")


# The command line.


@pytest.fixture
def files(data: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """net.onnx, which wants ImageNet's numbers, and data.npz in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(by_colour(IMAGENET).SerializeToString())
    np.savez("data.npz", x_test=data.images, y_test=data.labels, class_names=np.array(list(COLOURS)))


@pytest.mark.usefixtures("files")
def test_labelled_images_alone_make_a_calibrated_file_without_noise(call) -> None:
    done = call("export", "--from", "net.onnx", "--data", "data.npz", "--out", "m.onnx")
    assert done.code == 0, done.err
    assert "Chosen: ImageNet (--scale 255 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225)" in done.err
    assert "The file has no noise" in done.err
    metadata = Model("m.onnx", "cpu").metadata
    assert metadata.inference is Inference.DETERMINISTIC
    assert metadata.image.mean == (0.485, 0.456, 0.406)
    assert metadata.calibration.outcome.accuracy_after > 0.95
    assert metadata.rule is not None


@pytest.mark.usefixtures("files")
def test_noise_that_was_asked_for_is_there_with_its_price(call) -> None:
    done = call("export", "--from", "net.onnx", "--data", "data.npz", "--p", "0.3", "--samples", "4", "--out", "m.onnx")
    assert done.code == 0, done.err
    assert Model("m.onnx", "cpu").metadata.noise is NoiseKind.TABLE_2
    # One pass: the stem once, and twice the head, which all passes share.
    stem, head = 6 * 64 * 3, 6 * 4
    assert f"noise: {(stem + 2 * head) / (stem + head):.1f} times the multiplications" in done.err
    assert "Without noise and with its own temperature: NLL" in done.err
    assert "The file has no noise" not in done.err


@pytest.mark.usefixtures("files")
def test_at_chance_the_pixels_are_named_first_and_what_was_given_is_kept(call) -> None:
    done = call("export", "--from", "net.onnx", "--data", "data.npz", "--mean", "9", "--p", "0.3", "--out", "m.onnx")
    assert done.code == 0, done.err
    assert "with the given --scale, --mean, --std and --channels, the network without noise is right for" in done.err
    assert "The best of these: --scale 255 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225" in done.err
    assert done.err.index("First check its input") < done.err.index("the noise is too strong")
    assert Model("m.onnx", "cpu").metadata.image.mean == (9.0,)


@pytest.mark.usefixtures("files")
def test_no_way_that_fits_is_said_to_be_a_matter_of_classes(call, data: Split) -> None:
    turned = np.random.default_rng(1).permutation(data.labels)
    np.savez("data.npz", x_test=data.images, y_test=turned, class_names=np.array(list(COLOURS)))
    done = call("export", "--from", "net.onnx", "--data", "data.npz", "--out", "m.onnx")
    assert done.code == 0, done.err
    assert "in the order of the class names (--classes)" in done.err
    assert "Chosen:" not in done.err
    assert Model("m.onnx", "cpu").metadata.image.mean == (0.0,)


@pytest.mark.usefixtures("files")
def test_int8_finds_its_ranges_on_the_labelled_images(call) -> None:
    done = call("export", "--from", "net.onnx", "--data", "data.npz", "--precision", "int8", "--out", "m.onnx")
    assert done.code == 0, done.err
    assert "int8: NLL" in done.err
    model = Model("m.onnx", "cpu")
    assert model.metadata.precision is Precision.INT8
    assert model.metadata.calibration.outcome.accuracy_after > 0.9
    refused = call("export", "--from", "net.onnx", "--precision", "int8", "--out", "n.onnx")
    assert "a file with --data" in refused.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--inference", "deterministic", "--sigma", "factored"), "leave --sigma factored out"),
        (("--inference", "moments", "--precision", "fp16"), "too small for float16"),
    ],
)
@pytest.mark.usefixtures("files")
def test_what_does_not_go_together_is_refused_before_the_images_are_used(call, options, words: str) -> None:
    done = call("export", "--from", "net.onnx", "--data", "data.npz", *options, "--out", "m.onnx")
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.usefixtures("files")
def test_blue_may_come_first(call) -> None:
    Path("net.onnx").write_bytes(by_colour(replace(IMAGENET, order=ChannelOrder.BGR)).SerializeToString())
    numbers = ("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225", "--channels", "bgr")
    done = call("export", "--from", "net.onnx", "--data", "data.npz", *numbers, "--out", "m.onnx")
    assert done.code == 0, done.err
    assert Model("m.onnx", "cpu").metadata.calibration.outcome.accuracy_after > 0.95


def test_a_gray_network_has_no_order_of_channels(tmp_path: Path) -> None:
    net = Net()
    source, _ = read(net.model(net.head(net.stem(channels=1)), shape=("n", 1, 8, 8)), tmp_path)
    with raises("argument.channels"):
        third_party.take_bgr(source)


# Why two seeds may give the same answer.


def _dead(net: Net) -> onnx.ModelProto:
    x = net.Conv(net.stem(), net.weight(6, 6, 1, 1, name="body"), net.constant(np.full(6, -1e4, np.float32)))
    return net.model(net.head(net.Relu(x)))


def _beside(net: Net) -> onnx.ModelProto:
    x = net.stem()
    nothing = net.Relu(net.Sub(x, net.constant(np.float32(1e4))))
    return net.model(net.head(net.Add(x, net.Conv(nothing, net.weight(6, 6, 1, 1, name="beside")))))


@pytest.mark.parametrize(
    ("make", "p", "cause"),
    [
        (lambda net: net.model(net.head(net.stem())), "1e-16", "noise-weak"),
        (_dead, "body=0.2", "network-constant"),
        (_beside, "beside=0.2", "noise-blocked"),
    ],
    ids=["weak", "dead", "beside"],
)
def test_two_seeds_with_the_same_answer_have_a_cause(make, p: str, cause: str, tmp_path: Path) -> None:
    with raises(f"parity.{cause}"):
        export(make(Net()), tmp_path, (p,), layout=Layout.AUTO)

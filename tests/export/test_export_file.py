"""`export_file` writes what `uce-edge export --from` writes, in memory and at once."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from conftest import Call
from helpers.errors import raises
from test_third_party_data import COLOURS, IMAGENET, by_colour

from uce_edge.contract import Inference, Precision
from uce_edge.rejection.promises import NoveltyPromise, Promise
from uce_edge.runtime.model import Model
from uce_edge_export import Options, SourceSpec, export_file
from uce_edge_export.export_result import AssumedClasses, MemberStarted, NoiseCost, NoNoise
from uce_edge_export.graph import assembly
from uce_edge_export.options import PostHoc
from uce_edge_export.pipeline import Built
from uce_edge_export.recalibration import Recalibrated
from uce_edge_export.source.preprocessing import Scaling


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rng: np.random.Generator) -> None:
    """Three networks and labelled images in the working directory."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        way = replace(IMAGENET, scale=255.0 + number)
        Path(f"{number}.onnx").write_bytes(by_colour(way).SerializeToString())
    labels = np.arange(600) % 4
    colours = np.array(list(COLOURS.values()))[labels] + rng.normal(0, 25, (600, 3))
    pixels = np.clip(rng.normal(colours[:, None, None], 30, (600, 8, 8, 3)), 0, 255).astype(np.uint8)
    np.savez("data.npz", x_test=pixels, y_test=labels, class_names=np.array(list(COLOURS)))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Sessions that are opened, graphs that are built, and model files that are written."""
    counts: Counter[str] = Counter()

    def count(owner: object, name: str, key: str) -> None:
        original = getattr(owner, name)

        def counting(*args: object, **options: object) -> object:
            counts[key] += key != "writes" or ".onnx" in str(args[0])
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counting)

    count(onnxruntime, "InferenceSession", "sessions")
    count(assembly, "contract_model", "graphs")
    count(Path, "write_bytes", "writes")
    return counts


CASES = {
    "promise": (["--target-error", "0.1"], {"promise": Promise(0.1)}),
    "noise": (["--p", "0.05", "--samples", "4"], {"p": ["0.05"], "samples": 4}),
    "level": (["--novelty-level", "0.05"], {"novelty": NoveltyPromise(0.05)}),
    "laplace": (["--posterior", "laplace", "--samples", "9"], {"posterior": PostHoc.LAPLACE, "samples": 9}),
    "baked": (["--bake-samples", "3"], {"samples": 3, "options": Options(bake=True)}),
    "int8": (["--precision", "int8"], {"precision": Precision.INT8}),
    "scaling": (["--mean", "0.5", "--std", "0.25"], {"spec": SourceSpec(mean=[0.5], std=[0.25])}),
}


@pytest.mark.parametrize("case", CASES)
def test_python_and_the_command_line_write_the_same_bytes(call, case: str) -> None:
    options, arguments = CASES[case]
    done = call("export", "--from", "0.onnx", "--data", "data.npz", *options, "--out", "cli.onnx")
    assert done.code == 0, done.err
    made = export_file("0.onnx", "python.onnx", data="data.npz", **arguments)
    assert Path("cli.onnx").read_bytes() == Path("python.onnx").read_bytes()
    assert made.metadata == Model("python.onnx", "cpu").metadata


@pytest.mark.parametrize("data", [None, "data.npz"])
def test_several_sources_become_the_ensemble_of_the_command_line(call, data: str | None) -> None:
    sources, given = ["0.onnx", "1.onnx", "2.onnx"], [] if data is None else ["--data", data]
    done = call("export", "--from", *sources, *given, "--p", "0.05", "--samples", "3", "--out", "cli.onnx")
    assert done.code == 0, done.err
    made = export_file(sources, "python.onnx", data=data, p=["0.05"], samples=3)
    assert Path("cli.onnx").read_bytes() == Path("python.onnx").read_bytes()
    assert made.metadata.members == 3
    assert [step.source.name for step in made.steps if isinstance(step, MemberStarted)] == sources
    assert (made.calibrated is None) == (data is None)


def test_the_steps_are_values_and_are_reported_as_they_are_done() -> None:
    seen: list[object] = []
    done = export_file("0.onnx", "m.onnx", data="data.npz", promise=Promise(0.1), report=seen.append)
    assert tuple(seen) == done.steps
    assert [type(step) for step in seen] == [AssumedClasses, NoNoise, Scaling, Built, Recalibrated]
    (scaling,) = done.scalings
    assert scaling.chosen is not None
    assert any(scaling.chosen is fit for fit in scaling.tried)
    assert done.metadata.image.mean == scaling.chosen.way.mean
    assert done.kind.inference is Inference.DETERMINISTIC
    assert done.calibrated is not None
    assert done.calibrated.refused is None
    assert done.calibrated.costs is not None
    assert done.p == ()


def test_a_promise_that_cannot_be_proved_is_a_value() -> None:
    done = export_file("0.onnx", "m.onnx", data="data.npz", promise=Promise(0.0101))
    assert done.calibrated is not None
    assert done.calibrated.refused is not None
    assert done.metadata.promise is None


def test_added_noise_has_a_cost() -> None:
    done = export_file("0.onnx", data="data.npz", p=["0.1"], samples=2)
    assert done.path == Path("0-uce.onnx")
    assert done.p == ("0.1",)
    cost = done.steps[-1]
    assert isinstance(cost, NoiseCost)
    assert cost.times is not None
    assert cost.times > 1


def test_noise_that_is_not_chosen_is_weak_and_in_the_tail(call: Call) -> None:
    """A network that was trained without noise bears no more, see docs/inference.md."""
    done = export_file("0.onnx", "m.onnx", inference=Inference.MC, spec=SourceSpec(scale=255.0))
    assert [0 < float(rate) <= 0.05 for rate in done.p] == [True]
    hint = call("export", "--from", "0.onnx", "--data", "data.npz", "--out", "plain.onnx").err
    (options,) = re.findall(r"For noise in the last layers,\sadd (--noisy tail --p [\d.]+)\. ", hint)
    assert options.endswith(f" {done.p[0]}")
    noisy = call("export", "--from", "0.onnx", "--data", "data.npz", *options.split(), "--samples", 4)
    assert noisy.code == 0, noisy.err


def test_an_export_builds_once_writes_once_and_opens_few_sessions(counted: Counter[str]) -> None:
    export_file("0.onnx", "m.onnx", data="data.npz", promise=Promise(0.1))
    # The original twice, the ways to scale, the built file, the calibrated one, novelty's features and scores, the
    # layers that it may look at, and the published graph.
    assert counted == {"sessions": 9, "graphs": 1, "writes": 1}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"promise": Promise(0.1)}, "export.needs-data"),
        ({"novelty": NoveltyPromise(0.05)}, "export.needs-data"),
        ({"posterior": PostHoc.LAPLACE}, "export.needs-data"),
        ({"group": "patient"}, "export.needs-data"),
        ({"posterior": PostHoc.LAPLACE, "p": ["0.1"], "data": "data.npz"}, "laplace.noise-given"),
        ({"out": "m.txt"}, "argument.out"),
    ],
)
def test_wrong_arguments_write_nothing(arguments: dict[str, object], code: str) -> None:
    before = sorted(Path().iterdir())
    with raises(code):
        export_file("0.onnx", **arguments)  # type: ignore[arg-type]
    assert sorted(Path().iterdir()) == before


def test_what_finished_files_state_cannot_be_given_again() -> None:
    for number in range(2):
        export_file(f"{number}.onnx", f"m{number}.onnx", spec=SourceSpec(scale=255.0))
    with raises("export.noise-given"):
        export_file(["m0.onnx", "m1.onnx"], "e.onnx", p=["0.1"])
    with raises("export.classes-given"):
        export_file(["m0.onnx", "m1.onnx"], "e.onnx", spec=SourceSpec(classes=list("abcd")))
    assert export_file(["m0.onnx", "2.onnx"], "e.onnx", spec=SourceSpec(scale=255.0)).metadata.members == 2
    with raises("source.finished"):
        export_file("m0.onnx", "e.onnx")
    with raises("argument.source"):
        export_file([], "e.onnx")

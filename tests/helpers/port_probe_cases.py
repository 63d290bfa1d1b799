"""What the command of every port must tell of the probe images in a file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.port_cases import GATED, MODEL, Port, answer, refusal, variant
from uce_edge import Model
from uce_edge.metadata import Metadata


def published(source: Path, folder: Path, change: Callable[[Metadata], Metadata] = lambda metadata: metadata) -> Path:
    """A golden file with digests and probe images, and its description; `change` is what it says of itself at last."""
    import onnx_ir as ir

    from uce_edge_export.publish.draft import Draft, publish

    path = folder / "published.onnx"
    with publish(ir.load(source), Model(source, "cpu").metadata, path):
        pass
    metadata = Model(path, "cpu").metadata
    draft = Draft(path.read_bytes(), metadata)
    draft.describe(change(metadata))
    path.write_bytes(draft.content())
    path.with_suffix(".json").write_text(draft.metadata.to_json(indent=2))
    return path


class ProbeTests:
    """A port passes by a fixture `port`."""

    @pytest.mark.parametrize("source", [MODEL, GATED], ids=lambda path: path.stem)
    def test_the_probe_images_are_answered_as_published(self, port: Port, tmp_path: Path, source: Path) -> None:
        said = answer(port, published(source, tmp_path), "--self-test")
        assert said["images"] == 2
        assert 0 <= said["difference"] < 1e-5

    @pytest.mark.parametrize("output", ["uncertainty", "probabilities"])
    def test_another_answer_is_told(self, port: Port, tmp_path: Path, output: str) -> None:
        def wrong(metadata: Metadata) -> Metadata:
            first, second = metadata.probe
            values = [value + 0.01 for value in second.outputs[output]]
            return replace(metadata, probe=(first, replace(second, outputs=second.outputs | {output: values})))

        path = published(MODEL, tmp_path, wrong)
        said = refusal(port, path, "--self-test")
        assert said.startswith(f"{path} answers its own probe images otherwise than when it was published: by 0.0")

    def test_a_file_without_them_says_so(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about.update(probe=[]))
        assert refusal(port, file, "--self-test").startswith(f"{file} has no probe images")

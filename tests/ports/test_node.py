"""The Node example on every golden, and what it refuses."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import GOLDEN, ROOT
from helpers.port_cases import CONTRACT, IMAGE, MODEL, Port, PortTests, check_contract, command, refusal, variant
from helpers.port_frame_cases import FrameTests
from helpers.port_gate_cases import GateTests
from helpers.port_probe_cases import ProbeTests, published

from uce_edge import Model
from uce_edge.integrity import protobuf
from uce_edge.models import bundled, kinds

FOLDER = ROOT / "examples" / "node"


@pytest.fixture(scope="module")
def port() -> Port:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) < 20:
        pytest.skip(f"node is {version.strip()}, and the example needs 20")
    if not (FOLDER / "node_modules" / "onnxruntime-node").is_dir():
        pytest.skip("onnxruntime-node is absent: run npm ci in examples/node")
    return command(node, FOLDER / "index.mjs")


@pytest.mark.usefixtures("port")
def test_the_module_spells_the_contract_as_python_does() -> None:
    script = """
        const port = await import(process.argv[1]);
        const { CONTRACT: contract, MAX_SAMPLES: max_samples, MAX_SEED: max_seed } = port;
        const edges = JSON.parse(process.argv[2]);
        const accepted = edges.accept.map((c) => !port.isUncertain(c.uncertainty ?? NaN, c.threshold));
        const { OUTPUTS: outputs, OPTIONAL: optional, INFERENCE: inference, REASONS: reasons } = port;
        const limits = { contract, max_samples, max_seed };
        console.log(JSON.stringify({ ...limits, outputs, optional, inference, reasons, accepted }));
    """
    node, module = str(shutil.which("node")), (FOLDER / "uce_edge.mjs").as_uri()
    words = [node, "--input-type=module", "--eval", script, module, json.dumps(CONTRACT)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    check_contract(json.loads(done.stdout))


@pytest.mark.usefixtures("port")
def test_a_call_holds_as_many_passes_as_in_python(tmp_path: Path) -> None:
    older = variant(tmp_path, lambda document: document.update(costs=None))
    (tmp_path / "wide").mkdir()
    wide = variant(tmp_path / "wide", lambda document: document["costs"].update(bytes_per_draw=5 * 2**20))
    files = [*sorted(GOLDEN.glob("*.onnx")), *(bundled(kind, "cifar10") for kind in kinds("cifar10")), older, wide]
    files = [file for file in files if Model(file, "cpu").metadata.takes_seeds]
    script = """
        const { readFileSync } = await import('node:fs');
        const { callSize } = await import(process.argv[1]);
        console.log(JSON.stringify(process.argv.slice(2).map((path) => callSize(JSON.parse(readFileSync(path))))));
    """
    descriptions = [str(file.with_suffix(".json")) for file in files]
    words = [str(shutil.which("node")), "--input-type=module", "--eval", script, (FOLDER / "merge.mjs").as_uri()]
    done = subprocess.run([*words, *descriptions], capture_output=True, text=True, check=True)
    sizes = [Model(file, "cpu", threads=1)._calls._passes_per_call(1) for file in files]
    assert json.loads(done.stdout) == sizes
    assert sizes[-1] == 5  # what the caches hold
    assert len(set(sizes)) > 1


class TestNode(PortTests, GateTests, ProbeTests, FrameTests):
    """All of it, and what only a reader of the description beside the file meets."""

    def test_a_model_without_its_description_is_refused(self, port: Port, tmp_path: Path) -> None:
        file = tmp_path / "alone.onnx"
        shutil.copy(MODEL, file)
        rule = f"has no description beside it: {tmp_path / 'alone.json'} is missing. Write it with: "
        remedy = f"uce-edge info {file} --json > {tmp_path / 'alone.json'}"
        assert refusal(port, file, IMAGE) == f"{file} {rule}{remedy}"

    def test_a_damaged_description_is_refused(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path)
        file.with_suffix(".json").write_text('{"contract": 1')
        said = refusal(port, file, IMAGE)
        assert said == f"{file.with_suffix('.json')} has damaged metadata: it is not JSON."

    def test_a_changed_model_or_description_is_refused(self, port: Port, tmp_path: Path) -> None:
        file = published(MODEL, tmp_path)
        description, model = file.with_suffix(".json"), file.read_bytes()
        text = description.read_text()
        for place in (10, len(model) // 2, model.rindex(b"imgsz")):
            changed = bytearray(model)
            changed[place] ^= 1
            file.write_bytes(changed)
            said = refusal(port, file, IMAGE)
            assert (
                said
                == f"{file} is not the file that {description} describes: it was changed, or belongs to another export."
            )
        file.write_bytes(model)
        description.write_text(text.replace('"samples": 25', '"samples": 24'))
        assert refusal(port, file, IMAGE) == f"{description} was changed after it was published."
        earlier = published(MODEL, tmp_path, lambda metadata: replace(metadata, samples=24)).with_suffix(".json")
        stale = earlier.read_text()
        published(MODEL, tmp_path)
        assert description.read_text() == text
        assert port(file, IMAGE).returncode == 0
        description.write_text(stale)
        assert refusal(port, file, IMAGE).startswith(f"{file} is not the file that {description} describes")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("change", ["nothing", "digest in a key", "long tag", "metadata twice"])
def test_digests_are_compared_by_the_rule_of_the_contract(tmp_path: Path, change: str) -> None:
    """Without a runtime: the module that compares stands alone."""
    model, description = tmp_path / "m.onnx", tmp_path / "m.json"
    content, text = bundled(name="cifar10").read_bytes(), bundled(name="cifar10").with_suffix(".json").read_text()
    if change == "digest in a key":
        text = text.replace('"rule":', f'"rule{json.loads(text)["digests"]["metadata"]}":')
    elif change == "long tag":
        fields = [(field.number, bytes(field.raw)) for field in protobuf.fields(memoryview(content))]
        content = b"".join(b"\xba\x80\x80\x80\x10" + raw[1:] if number == 7 else raw for number, raw in fields)
    elif change == "metadata twice":
        content += protobuf._entry("uce_edge", "{}")
    model.write_bytes(content)
    description.write_text(text)
    program = (
        f"import {{ checkDigests }} from {json.dumps((FOLDER / 'integrity.mjs').as_uri())};"
        "import { readFileSync } from 'node:fs'; const [model, path] = process.argv.slice(1);"
        "const text = readFileSync(path, 'utf8'); checkDigests(model, path, text, JSON.parse(text));"
    )
    words = ["node", "--input-type=module", "-e", program, str(model), str(description)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (change == "nothing"), done.stderr


def test_the_page_and_the_module_have_the_same_sets() -> None:
    page = ROOT / "examples" / "web" / "uce_edge_web" / "sets.js"
    assert page.read_bytes() == (FOLDER / "sets.mjs").read_bytes()

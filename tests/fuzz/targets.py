"""What is fuzzed: sound files to start from, and what is done with a damaged one."""

import hashlib
import io
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

from damage import damaged

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"


@dataclass(frozen=True)
class Target:
    """A reader of files."""

    corpus: Callable[[], list[bytes]]
    read: Callable[[bytes], str]
    """Says in a word what became of a file. A `UceEdgeError` is "refused"; anything else that is raised is a fault."""
    memory: int
    """Megabytes of address space that the process may have."""
    spared: Callable[[Sequence[bytes]], list[list[range]]] = lambda _: []
    damage: Callable[[Sequence[bytes], int, Sequence[Sequence[range]]], bytes] = damaged


def _files(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for name in names for path in sorted((HERE / "corpus").glob(name))]


def _image(data: bytes) -> str:
    from uce_edge.images import loader
    from uce_edge.metadata import ImageSpec

    loader.load(data, ImageSpec(8, 8, 3))
    loader.load(data, ImageSpec(8, 8, 1, "float32"))
    loader.picture(data, 16)
    return "read"


def _medical(data: bytes) -> str:
    from uce_edge.images import loader
    from uce_edge.images.gray_range import Range
    from uce_edge.metadata import ImageSpec

    name = "study.nii" if data[:2] == b"\x1f\x8b" or data[344:347] == b"n+1" else "study.dcm"
    loader.load(data, ImageSpec(8, 8, 3, range=Range(-1000, 400)), name)
    loader.load(data, ImageSpec(8, 8, 1, "float32", range=Range(0, 4095)), name)
    loader.picture(data, 16, name, Range(0, 4095))
    return "read"


def _goldens() -> list[bytes]:
    return [(GOLDEN / f"digits-{kind}.onnx").read_bytes() for kind in ("mc", "novelty", "minor-0")]


def _weights(corpus: Sequence[bytes]) -> list[list[range]]:
    """Where the large arrays of model files lie."""
    import onnx

    places = []
    for data in corpus:
        raw = [item.raw_data for item in onnx.load_from_string(data).graph.initializer if len(item.raw_data) > 512]
        starts = [(data.find(part), len(part)) for part in raw]
        places.append([range(start, start + length) for start, length in starts if start >= 0])
    return places


_IMAGE = b"P5 8 8 255\n" + bytes(range(0, 256, 4))


def _model(data: bytes) -> str:
    """An answer is finite and names a class of the file; or it is an error in a sentence."""
    from uce_edge import Model

    with tempfile.TemporaryDirectory() as folder:
        path, image = Path(folder) / "model.onnx", Path(folder) / "image.pgm"
        path.write_bytes(data)
        image.write_bytes(_IMAGE)
        model = Model(path, "cpu", threads=1)
        (answer,) = model.answers([image])
        json.dumps(answer.as_dict(), allow_nan=False)
        if answer.prediction is None:
            return "no finite answer"
        assert answer.prediction.label in model.classes
    return "answered"


def _ort_files() -> list[bytes]:
    from uce_edge_export import ort_format

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes((GOLDEN / "digits-mc.onnx").read_bytes())
        return [ort_format.convert(path).read_bytes()]


def _third_party() -> list[bytes]:
    from helpers import nets

    net = nets.Net(13)
    x = net.Relu(net.norm(net.conv(net.stem(), 6, 6), 6))
    x = net.MaxPool(net.Add(x, net.conv(x, 6, 6)), kernel_shape=[2, 2])
    whole = net.model(net.Softmax(net.head(net.Dropout(x)), axis=1))
    return [proto.SerializeToString() for proto in (nets.simple(nets.Net()), nets.wide(), whole)]


def _rewired(corpus: Sequence[bytes], number: int, spared: Sequence[Sequence[range]]) -> bytes:
    import onnx
    from helpers.onnx_files import rewired

    dice = random.Random(number)
    if dice.random() < 0.2:
        return damaged(corpus, number, spared)
    model = onnx.load_from_string(dice.choice(corpus))
    for _ in range(dice.choice([1, 1, 2, 3])):
        if model.graph.node and model.graph.initializer:
            rewired(model, dice)
    return model.SerializeToString()


def _export(data: bytes) -> str:
    """A file that is written answers; one that is not leaves nothing."""
    from uce_edge_export.pipeline import export_third_party
    from uce_edge_export.source import third_party

    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "net.onnx", Path(folder) / "out" / "m.onnx"
        path.write_bytes(data)
        try:
            found = third_party.load(path)
            export_third_party(found, third_party.metadata(found, path), out, ["0.2"])
        except BaseException:
            assert not out.parent.exists() or not list(out.parent.iterdir())
            raise
        assert out.is_file()
    return "exported"


def _npz_corpus() -> list[bytes]:
    import numpy as np

    pixels, labels = np.arange(6 * 5 * 4, dtype=np.uint8).reshape(6, 5, 4), np.arange(6) % 3
    plain = {"x": pixels, "y": labels}
    parts = {"train_images": pixels, "train_labels": labels, "test_images": pixels, "test_labels": labels}
    named = plain | {"class_names": np.array(["a", "b", "c"])}
    corpus = []
    for save, arrays in ((np.savez, plain), (np.savez_compressed, parts), (np.savez, named)):
        with io.BytesIO() as file:
            save(file, **arrays)
            corpus.append(file.getvalue())
    return corpus


def _npz(data: bytes) -> str:
    from uce_edge.datasets.formats.npz import FORMAT
    from uce_edge.datasets.sources import ReaderOptions

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        path.write_bytes(data)
        source = FORMAT.read(path, ReaderOptions())
        for pixels, labels in source.parts.values():
            assert len(pixels) == len(labels) > 0
            assert 0 <= labels.min() <= labels.max() < len(source.class_names)
    return "read"


def _run(data: bytes) -> str:
    from uce_edge_train.runs import Run

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.json").write_bytes(data)
        run = Run.load(folder)
        assert Run.from_document(json.loads(run.to_json())) == run
    return "read"


def _names(data: bytes) -> str:
    from uce_edge.cli.shared_options import parse_names

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "names.txt"
        path.write_bytes(data)
        names = parse_names("classes", str(path))
        assert names is not None
        assert all(name == name.strip() != "" for name in names)
    return "read"


def _logs() -> list[bytes]:
    """As they are written, and as older versions wrote them: without hashes, which let nothing else be tried."""
    from uce_edge import Model
    from uce_edge.audit.decision_log import Audit
    from uce_edge.runtime.request import Request

    with tempfile.TemporaryDirectory() as folder:
        image, log = Path(folder) / "image.pgm", Path(folder) / "log.jsonl"
        image.write_bytes(_IMAGE)
        model = Model(GOLDEN / "digits-mc.onnx", "cpu", threads=1)
        asked = Request(samples=2, reject=0.3)
        audit = Audit(log, model, asked)
        for answer in model.answers([image, image], samples=2, reject=0.3, keep=True):
            audit.add(answer)
        audit.close()
        written = log.read_bytes()
    lines = [json.loads(line) for line in written.splitlines()]
    seals = ("line", "previous", "line_sha256")
    bare = [{name: value for name, value in line.items() if name not in seals} for line in lines]
    older = [{name: value for name, value in line.items() if name != "asked"} for line in bare]
    return [written, *("".join(json.dumps(line) + "\n" for line in all_).encode() for all_ in (bare, older, bare))]


def _log(data: bytes) -> str:
    from uce_edge.audit.model_files import ModelFiles
    from uce_edge.audit.replay import replay

    with tempfile.TemporaryDirectory() as folder:
        log, images = Path(folder) / "log.jsonl", Path(folder) / "images"
        images.mkdir()
        (images / "image.pgm").write_bytes(_IMAGE)
        log.write_bytes(data)
        findings = list(replay(log, images, ModelFiles([GOLDEN / "digits-mc.onnx"])))
        json.dumps([finding.as_dict() for finding in findings], allow_nan=False)
        outcomes = {str(finding.outcome) for finding in findings}
    return "the same" if outcomes == {"same"} else "changed"


def _states() -> list[bytes]:
    """Of a monitor that is quiet, and of one after an alarm."""
    from uce_edge.monitor import Monitor
    from uce_edge.monitor.state import Bins, StoredReference

    bins = {name: Bins((0.1, 0.2, 0.5), (9, 9, 9, 9)) for name in ("uncertainty", "novelty_score")}
    monitor = Monitor.start(StoredReference(bins, 25, 0, ""), "0" * 64)
    quiet = monitor.state.to_json().encode()
    for _ in range(60):
        monitor.add_scores({"uncertainty": 1.0, "novelty_score": 1.0}, "2026-01-01T00:00:00")
    assert monitor.alarm is not None
    return [monitor.state.to_json().encode(), quiet]


def _state(data: bytes) -> str:
    """What is loaded can go on, be shown and be kept."""
    from uce_edge.monitor import Monitor
    from uce_edge.monitor.evidence_plot import evidence_plot

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.json"
        path.write_bytes(data)
        monitor = Monitor.load(path)
        monitor.add_scores({"uncertainty": 0.3, "model_uncertainty": 0.3, "novelty_score": 0.3})
        assert monitor.report().sentence.isprintable()
        evidence_plot(monitor.state)
        monitor.save(path)
        Monitor.load(path)
    return "read"


def _tensor_files() -> list[bytes]:
    """The weights of a small network as torch writes them, in both of its formats, and as safetensors."""
    import torch
    from safetensors.torch import save

    weights = _network().state_dict()
    corpus = [save(weights)]
    for zipped in (True, False):
        with io.BytesIO() as file:
            torch.save(weights, file, _use_new_zipfile_serialization=zipped)
            corpus.append(file.getvalue())
    return corpus


def _network() -> "nn.Module":
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))


def _tensor_file(data: bytes) -> str:
    """What is read can be fitted to a network."""
    from uce_edge_train.networks import pretrained

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        path.write_bytes(data)
        start = pretrained.start_from(path)
        tensors = pretrained._tensors(data, start.file)
        pretrained.fit(_network(), tensors)
    return "read"


def _manifests() -> list[bytes]:
    rows = [(f"{number}.pgm", "ab"[number % 2], f"g{number // 2}") for number in range(20)]
    tables = [mark.join(("path", "label", "group")) + "\n" for mark in ",;\t"]
    tables = [head + "".join(mark.join(row) + "\n" for row in rows) for head, mark in zip(tables, ",;\t", strict=True)]
    objects = "".join(json.dumps({"path": path, "label": label}) + "\n" for path, label, _ in rows)
    return [text.encode() for text in (*tables, objects)]


def _manifest(data: bytes) -> str:
    from uce_edge.datasets import splits

    kind = ".jsonl" if data[:1] == b"{" else ".tsv" if b"\t" in data[:12] else ".csv"
    with tempfile.TemporaryDirectory() as folder:
        for number in range(20):
            (Path(folder) / f"{number}.pgm").write_bytes(_IMAGE[:-1] + bytes([number]))  # copies share a split
        path = Path(folder) / f"list{kind}"
        path.write_bytes(data)
        dataset = splits.load(str(path))
        assert all(name.isprintable() for name in dataset.class_names)
    return "read"


def _continued(data: bytes) -> str:
    """A log is continued behind its whole lines; anything else stays as it is, byte for byte."""
    from uce_edge.audit import hash_chain
    from uce_edge.audit.decision_log import Audit
    from uce_edge.errors import UceEdgeError
    from uce_edge.runtime.answers import Answer
    from uce_edge.runtime.model import Model

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        log.write_bytes(data)
        try:
            audit = Audit(log, Model(GOLDEN / "digits-mc.onnx", "cpu"))
        except UceEdgeError:
            assert log.read_bytes() == data
            raise
        audit.add(Answer("x\n#z=1,z=2", None, "nothing"))
        audit.close()
        *_, last = hash_chain.read([log])
        written = log.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        assert written.startswith(whole)
        assert last.document["path"] == "x\n#z=1,z=2"
        assert hashlib.sha256(last.text.rpartition(b', "line_sha256"')[0]).hexdigest() == hash_chain.digest(last.text)
    return "continued" if written.startswith(data) else "mended"


def _hostile() -> list[bytes]:
    """Names that drive terminals, break lines, compute in spreadsheets or look like slices."""
    names = (
        "\x1b[31mred\x1b]0;own\x07", "new\nline\r\n", "rlo\u202egnp", "=HYPERLINK(1)", "x#z=1,z=2", "scan.dcm#7",
        "\x9b2J\x85\u2028", "<script>", "\U000e0041\ufeff", "猫 é 👩\u200d🚀", "-1", "@SUM(A1)", "a,\"b\"", "\t=1",
    )  # fmt: skip
    return [name.encode() for name in names]


def _name(data: bytes) -> str:
    import csv

    from uce_edge._util.printable import cell, shown

    name = data.decode(errors="surrogateescape")
    line = shown(name)
    assert all(letter == shown(letter) for letter in line)
    assert not set(line) & set(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2028]))
    with io.StringIO(newline="") as table:
        csv.writer(table).writerow([cell(name), 1.5])
        ((text, number),) = csv.reader(io.StringIO(table.getvalue(), newline=""))
    assert number == "1.5"
    assert text.strip()[:1] not in ("=", "@")
    return "as it is" if text == name else "shown"


TARGETS = {
    "images": Target(_files("images/*"), _image, 3000),
    "medical": Target(_files("medical/*"), _medical, 3000),
    "models": Target(_goldens, _model, 4000, _weights),
    "ort": Target(_ort_files, _model, 4000),
    "third-party": Target(_third_party, _export, 6000, damage=_rewired),
    "archives": Target(_npz_corpus, _npz, 1500),
    "runs": Target(_files("runs/*.json"), _run, 6000),
    "logs": Target(_logs, _log, 4000),
    "states": Target(_states, _state, 1500),
    "tensors": Target(_tensor_files, _tensor_file, 8000),
    "manifests": Target(_manifests, _manifest, 1500),
    "continued": Target(_logs, _continued, 4000),
    "hostile": Target(_hostile, _name, 1000),
    "names": Target(_files("names/*.txt"), _names, 1000),
}

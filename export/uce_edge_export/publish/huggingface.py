"""A Hugging Face model repository: file, description, card."""

import json
import re
from pathlib import Path
from typing import Any

from uce_edge._util.printable import shown
from uce_edge.contract import Inference
from uce_edge.metadata import Metadata
from uce_edge.output.wording import METRICS
from uce_edge.runtime.model import Model
from uce_edge_export.publish import folders

OPTION = "--hub"
LICENCES = (
    "mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "openrail", "unlicense",
)  # fmt: skip
"""Identifiers that the hub knows, as far as they are usual here."""
UNKNOWN = "unknown"
_TAGS = ("onnx", "image-classification", "uncertainty", "calibration")


def write_hub(model: str | Path, folder: str | Path, promise: str | None = None) -> str:
    """Write model.onnx, model.json and README.md.

    Args:
        model: A model file; it is copied as it is.
        folder: Where; it may be a clone of the repository.
        promise: The rule of `--reject auto`, in sentences.

    Returns:
        The licence that the card names: `UNKNOWN` where the file names none that the hub knows.

    Raises:
        UsageError: The folder has files of these names with other content.
    """
    model, folder = Path(model), Path(folder)
    loaded = Model(model, "cpu")
    metadata = loaded.metadata
    files = {
        "model.onnx": loaded.content(),
        "model.json": (metadata.to_json(indent=2) + "\n").encode(),
        "README.md": card(model.stem, metadata, promise).encode(),
    }
    folders.write(folder, files, OPTION)
    return licence(metadata)


def licence(metadata: Metadata) -> str:
    """The hub's identifier of the first licence of a file."""
    words = re.findall(r"[a-z0-9.\-]*[a-z0-9]", str(metadata.card.get("licence", "")).lower())
    return next((word for word in words[:1] if word in LICENCES), UNKNOWN)


def card(name: str, metadata: Metadata, promise: str | None = None) -> str:
    """The README.md: YAML header and usage."""
    spec = metadata.image
    passes = "one pass" if metadata.inference is Inference.DETERMINISTIC else f"{metadata.samples} passes by default"
    given = ", ".join(map(shown, metadata.classes[:20])) + (", ..." if len(metadata.classes) > 20 else "")
    parts = [
        f"---\n{_yaml(header(name, metadata))}---",
        f"# {name}",
        "An image classifier that says how sure it is: a label, calibrated probabilities and an uncertainty in [0, 1] "
        "that follows the real error rate. It is one ONNX file, made with uce-edge.",
        f"**Classes.** {given}",
        f"**Images.** {spec.height} x {spec.width} pixels, {spec.channels} channels; larger ones are shrunk. "
        f"**Inference.** {metadata.inference}, {passes}.",
        _RUN,
        *([] if promise is None else [f"## What it promises\n\n{promise}"]),
        *([] if not metadata.metrics else [f"## How good it is\n\n{_scores(metadata)}"]),
        *([] if not metadata.card else [f"## What to know\n\n{_bullets(metadata.card)}"]),
    ]
    return "\n\n".join(parts) + "\n"


def header(name: str, metadata: Metadata) -> dict[str, Any]:
    """The YAML header: licence, tags, library, task, metrics."""
    known: dict[str, Any] = {
        "license": licence(metadata),
        "library_name": "uce-edge",
        "pipeline_tag": "image-classification",
        "tags": [*_TAGS, *(["bayesian"] if metadata.inference is not Inference.DETERMINISTIC else [])],
    }
    scores = {key: score.value for key, score in metadata.metrics.items() if score.value is not None}
    if not scores:
        return known
    source = str(metadata.card.get("data", "held-out images"))
    dataset = source.partition(":")[0].strip() or "held-out images"
    slug = re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-") or "images"
    results = {
        "task": {"type": "image-classification", "name": "Image classification"},
        "dataset": {"type": slug, "name": dataset, "split": "test"},
        "metrics": [{"type": key, "name": _title(key), "value": value} for key, value in scores.items()],
    }
    return known | {"metrics": list(scores), "model-index": [{"name": name, "results": [results]}]}


_RUN = """## Run it

```console
pip install "uce-edge[cpu]"
hf download USER/REPOSITORY model.onnx --local-dir .
uce-edge predict --model model.onnx photo.png --reject 0.3
uce-edge info model.onnx
```

```python
import uce_edge

model = uce_edge.load("model.onnx")
prediction = model.predict(["photo.png"], reject=0.3)
print(prediction[0].label, prediction[0].uncertainty, prediction[0].decision)
```

Any ONNX Runtime runs the file too: `model.json` describes it, and the tensors are `image` (raw pixels) and, where the
file takes it, `seeds` (one Monte Carlo pass per entry: 0, 1, ...)."""


def _scores(metadata: Metadata) -> str:
    rows = ["| metric | value | 95 % interval | a perfectly calibrated twin |", "| --- | --- | --- | --- |"]
    for key, score in metadata.metrics.items():
        interval = "" if score.low is None or score.high is None else f"{score.low:.4f} to {score.high:.4f}"
        rows.append(f"| {_title(key)} | {_number(score.value)} | {interval} | {_number(score.twin)} |")
    return "\n".join(rows)


def _bullets(entries: dict[str, Any]) -> str:
    lines = []
    for key, value in entries.items():
        items = [shown(str(item)) for item in (value if isinstance(value, list) else [value])]
        lines.append(f"**{shown(key.capitalize())}.**" + (f" {items[0]}" if len(items) == 1 else ""))
        lines += [f"- {item}" for item in items] if len(items) > 1 else []
        lines.append("")
    return "\n".join(lines).rstrip()


def _title(key: str) -> str:
    return METRICS[key].title if key in METRICS else key


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _yaml(value: Any, indent: str = "") -> str:
    """Write YAML: nested blocks, JSON strings, numbers without exponents."""
    lines = []
    entries = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in entries:
        start = f"{indent}- " if key is None else f"{indent}{key}: "
        if isinstance(item, dict | list):
            inner = _yaml(item, indent + "  ")
            # The first entry of a table in a list stands behind the dash.
            lines.append(start + inner[len(indent) + 2 :] if key is None else f"{start.rstrip()}\n{inner}")
        else:
            lines.append(f"{start}{item:.6f}\n" if isinstance(item, float) else f"{start}{_text(item)}\n")
    return "".join(lines)


def _text(text: str) -> str:
    """A plain word as it is; anything else in quotes."""
    reserved = ("true", "false", "yes", "no", "on", "off", "null")
    plain = re.fullmatch(r"[a-z]{2,}(-[a-z0-9.]+)*", text) and text not in reserved
    return text if plain else json.dumps(text, ensure_ascii=False)

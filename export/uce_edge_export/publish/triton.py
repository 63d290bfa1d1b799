"""A model repository for NVIDIA Triton.

Triton's own guess would be wrong. It takes the first dimension of every tensor for the batch when all of them are
open, and those of a file with seeds are: `seeds` would be cut into batches. So inputs and outputs are declared.
"""

import re
from pathlib import Path

from uce_edge import contract
from uce_edge._util.printable import shown
from uce_edge.contract import Output, Per
from uce_edge.errors import UsageError, expected
from uce_edge.integrity.self_test import Pattern, image
from uce_edge.metadata import Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.publish import folders
from uce_edge_export.transform.baked_seeds import baked_content

OPTION = "--triton"
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_TYPES = {"uint8": "TYPE_UINT8", "int32": "TYPE_INT32", "float32": "TYPE_FP32", "bool": "TYPE_BOOL"}
_LABELS, _WARM_UP = "labels.txt", "probe"
_LARGEST_BATCH = 32
_MEMORY = 2**30
"""Bytes that the values of one call may take, about: all passes of all images of a batch are in one."""


def write_repository(model: str | Path, folder: str | Path, name: str | None = None) -> Path:
    """Write NAME/config.pbtxt and NAME/1/model.onnx into a model repository.

    Args:
        model: A model file. If it takes seeds, its own number of passes is baked in.
        folder: The repository; it may have other models.
        name: Of the model in Triton; default: the name of the file.

    Returns:
        The folder of the model.

    Raises:
        UsageError: The repository has another model of this name.
    """
    model, folder = Path(model), Path(folder)
    name = name or model.stem
    if not _NAME.fullmatch(name) or name.startswith("."):
        rule = "of letters, digits, dots and dashes, 64 at most"
        raise UsageError(expected("the name of the model", rule, name, "Give the file another name with --out"))
    metadata = Model(model, "cpu").metadata
    content, description = baked_content(model)
    labels = "".join(f"{shown(label)}\n" for label in metadata.classes)
    files = {
        "1/model.onnx": content,
        "1/model.json": description,
        _LABELS: labels.encode(),
        f"warmup/{_WARM_UP}": image(Pattern.WEYL, metadata.image).tobytes(),
        "README.md": readme(name, metadata).encode(),
        "config.pbtxt": config(name, metadata).encode(),
    }
    folders.write(folder / name, files, OPTION)
    return folder / name


def max_batch(metadata: Metadata) -> int:
    """The largest batch whose passes fit into a gigabyte."""
    costs = metadata.costs
    if costs is None or costs.bytes_per_pass is None:
        return 8
    each = costs.bytes_per_pass * metadata.samples
    if costs.runs_once:
        each = costs.bytes_per_pass + (costs.bytes_per_draw or 0) * metadata.samples
    return max(1, min(_LARGEST_BATCH, _MEMORY // each))


def config(name: str, metadata: Metadata) -> str:
    """The model configuration: Triton's ModelConfig message as text."""
    spec = metadata.image
    size = f"[ {spec.height}, {spec.width}, {spec.channels} ]"
    outputs = [output for output in contract.outputs_of(metadata.outputs) if output.per is Per.IMAGE]
    declared = ",\n".join(_output(output, len(metadata.classes)) for output in outputs)
    return f"""# Written by uce-edge. dims leave the batch out: Triton puts it in front.
name: "{name}"
backend: "onnxruntime"
default_model_filename: "model.onnx"
max_batch_size: {max_batch(metadata)}
input [
  {{ name: "{contract.IMAGE}" data_type: {_TYPES[spec.dtype]} dims: {size} }}
]
output [
{declared}
]
dynamic_batching {{ }}
model_warmup [
  {{
    name: "{_WARM_UP}"
    batch_size: 1
    inputs {{
      key: "{contract.IMAGE}"
      value {{ data_type: {_TYPES[spec.dtype]} dims: {size} input_data_file: "{_WARM_UP}" }}
    }}
  }}
]
"""


def _output(output: Output, classes: int) -> str:
    start = f'  {{ name: "{output.name}" data_type: {_TYPES[output.dtype]} dims:'
    if output.by_class:
        return f'{start} [ {classes} ] label_filename: "{_LABELS}" }}'
    if output.by_place:
        return f"{start} [ -1, -1 ] }}"
    # One number per image: the graph gives [batch], and Triton wants dims that are not empty.
    return f"{start} [ 1 ] reshape {{ shape: [ ] }} }}"


def readme(name: str, metadata: Metadata) -> str:
    """How to start Triton with the repository and send requests."""
    spec = metadata.image
    passes = f" Every call runs the {metadata.samples} passes that are in the file." if metadata.samples > 1 else ""
    most = max_batch(metadata)
    taken = f"images of {spec.height} x {spec.width} pixels with {spec.channels} channels ({spec.dtype})"
    return f"""# {name}

A model for NVIDIA Triton, written by uce-edge. It takes {taken} and gives a label,
calibrated probabilities and an uncertainty.{passes}

    docker run --rm -p 8000:8000 -v /path/to/this/repository:/models nvcr.io/nvidia/tritonserver:YY.MM-py3 \\
        tritonserver --model-repository /models

```python
import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient("127.0.0.1:8000")
pixels = np.zeros((1, {spec.height}, {spec.width}, {spec.channels}), np.{spec.dtype})  # your images
image = triton.InferInput("{contract.IMAGE}", pixels.shape, "{_TYPES[spec.dtype].removeprefix("TYPE_")}")
image.set_data_from_numpy(pixels)
result = client.infer("{name}", [image])
label = result.as_numpy("{contract.CLASS_ID}").reshape(-1)  # a line of labels.txt, counted from 0
uncertainty = result.as_numpy("{contract.UNCERTAINTY}").reshape(-1)
accepted = {_accepted(metadata)}
```

`uce-edge verify 1/model.onnx` checks that the file is as it was written. A call takes {most} images at most
(`max_batch_size` in config.pbtxt), whose passes take a gigabyte of memory at most, about.
"""


def _accepted(metadata: Metadata) -> str:
    """The client's rule: the file's, or a user's threshold."""
    if metadata.rule is None:
        return "uncertainty <= np.float32(0.3)  # your threshold: the file stores no rule"
    promise = metadata.promise
    error = "" if promise is None or promise.target_error is None else f": at most {promise.target_error:.3g} are wrong"
    return f'result.as_numpy("{contract.DECISION}").reshape(-1) == 0  # as --reject auto{error}'

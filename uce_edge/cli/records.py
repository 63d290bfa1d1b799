"""One record per image, the same for tables, JSON, pictures and logs."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from uce_edge.errors import ImageError

if TYPE_CHECKING:
    from uce_edge.model import Model

FIELDS = (
    "label", "class_id", "confidence", "top", "uncertainty", "model_uncertainty", "standard_error",
    "error_probability", "threshold", "decision", "samples", "seed",
)  # fmt: skip
CHUNK = 32  # images that are decoded before the model runs


@dataclass(frozen=True)
class Request:
    """How images are asked about."""

    samples: int | None = None
    seed: int = 0
    reject: "float | Literal['auto'] | None" = None
    adaptive: float | None = None
    top: int = 3
    """The likeliest classes that a record lists."""


def each_record(model: "Model", paths: list[str], request: Request) -> Iterator[dict[str, Any]]:
    """One record per path, in order; a bad image is a record too."""
    return (record for record, _ in each_answer(model, paths, request, keep=False))


def each_answer(
    model: "Model", paths: list[str], request: Request, *, keep: bool
) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    """As `each_record`; with `keep`, every record comes with the bytes that it is about."""
    import numpy as np

    from uce_edge.images import load, read

    threshold = model.threshold(request.reject)
    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        errors: dict[int, str] = {}
        contents: dict[int, bytes] = {}
        pixels = []
        for index, path in enumerate(chunk):
            try:
                if keep or path == "-":
                    contents[index] = sys.stdin.buffer.read() if path == "-" else read(path)
                    name = "The image data" if path == "-" else path
                    pixels.append(load(contents[index], model.metadata.image, name))
                else:
                    pixels.append(load(path, model.metadata.image))
            except ImageError as error:
                errors[index] = str(error)
        said = (
            model.predict(np.stack(pixels), request.samples, request.seed, request.reject, request.adaptive)
            if pixels
            else ()
        )
        results = iter(said)
        for index, path in enumerate(chunk):
            if index in errors:
                record = {"path": path, "status": "error"} | dict.fromkeys(FIELDS)
                record |= {"threshold": threshold, "error": errors[index]}
            else:
                answer = next(results)
                values = answer.as_dict() | {"top": answer.top(model.classes, request.top), "threshold": threshold}
                record = {"path": path, "status": "ok"} | {name: values[name] for name in FIELDS} | {"error": None}
            yield record, contents.get(index)

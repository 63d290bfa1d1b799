"""The bundled models.

A file NAME-KIND.onnx in this folder is a model for one kind of inference.

`imagenet`, the default, knows a thousand kinds of things in photos. `uce-edge models` says what each model is for, and
its card in the docs how it was made, how good it is and where it fails.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.contract import Inference
from uce_edge.errors import ModelFileError, UsageError, argument, expected

if TYPE_CHECKING:
    from uce_edge.runtime.device_choice import Device
    from uce_edge.runtime.model import Model

__all__ = ["DEFAULT_NAME", "bundled", "files", "find", "kinds", "left_out", "load", "names"]

DEFAULT_NAME = "imagenet"
_PREFERRED = Inference.MOMENTS
"""Of a model with several files: the fastest, which is not worse (see the cards)."""
_LEFT_OUT = ("xray",)
"""Models of the repository that the wheel leaves out, for its size; see pyproject.toml."""
_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The bundled models; the default comes first."""
    there = {path.stem.rpartition("-")[0] for path in _FOLDER.glob("*-*.onnx")}
    return tuple(sorted(there, key=lambda name: (name != DEFAULT_NAME, name)))


def left_out() -> tuple[str, ...]:
    """Models of the repository that this installation lacks."""
    return tuple(name for name in _LEFT_OUT if name not in names())


def kinds(name: str) -> tuple[Inference, ...]:
    """The kinds of inference of a model, the default first."""
    there = [kind for kind in Inference if _file(name, kind).is_file()]
    return tuple(sorted(there, key=lambda kind: kind is not _PREFERRED))


def files() -> list[Path]:
    """All bundled model files."""
    return [_file(name, kind) for name in names() for kind in kinds(name)]


def bundled(inference: Inference | str | None = None, name: str = DEFAULT_NAME) -> Path:
    """The file of a bundled model.

    Args:
        inference: A kind of inference, one of `kinds(name)`; None for the default.
        name: The model, one of `names()`.
    """
    there = kinds(name)
    if not there:
        raise UsageError(expected("`model`", f"one of {', '.join(names())}", name, "Or name a file: photos.onnx"))
    if inference is not None and inference not in there:
        rule = f"{' or '.join(sorted(there))} for {name}, the bundled model"
        raise UsageError(expected("`inference`", rule, str(inference), "Leave it out for the default"))
    return _file(name, inference or there[0])


def find(model: "str | Path | None", inference: Inference | str | None = None) -> Path:
    """Find the file of a model.

    Args:
        model: A path; or the name of a bundled model, unless there is a file of that name; None for the default.
        inference: Which file of a bundled model.

    Raises:
        UsageError: A file was given with a kind of inference, or the kind does not exist.
        ModelFileError: A word is neither a file nor a name.
    """
    if model is None:
        return bundled(inference)
    path = Path(model)
    # Not Path.is_file, which raises for a name that is too long.
    if path.suffix or path.name != str(model) or os.path.isfile(path):  # noqa: PTH113
        if inference is not None:
            raise UsageError(
                f"A file has the inference it was exported with: {argument('inference')} goes without "
                f"{argument('model', path)}.",
                "argument.inference",
            )
        return path
    if path.name in names():
        return bundled(inference, path.name)
    if os.path.isdir(path):  # noqa: PTH112
        return path  # opening it reports how to export a training run
    if path.name in _LEFT_OUT:
        raise ModelFileError(
            f"The model {path.name} is too large for the package. Get its file from the folder uce_edge/models of the "
            f"repository, and name it: {argument('model', f'{path.name}-{Inference.MC}.onnx')}",
            "model.left-out",
        )
    raise ModelFileError(
        f"There is no model file {model}, and no bundled model of that name: there are {', '.join(names())}. "
        "Check its spelling; one of your own is made with: uce-edge export",
        "model.missing",
    )


def _file(name: str, kind: Inference | str) -> Path:
    return _FOLDER / f"{name}-{kind}.onnx"


def load(
    model: "str | Path | None" = None,
    device: "Device | str" = "auto",
    *,
    inference: Inference | str | None = None,
    threads: int | None = None,
    spin: bool = True,
    max_memory: int | None = None,
    verify: bool = True,
) -> "Model":
    """Load a model file, or a bundled model.

    Args:
        model: A path; or the name of a bundled model ("cifar10"); None for the default.
        device: Where to run it, as in `Model`.
        inference: Which file of a bundled model ("mc"); None for its default.
        threads: As in `Model`.
        spin: As in `Model`.
        max_memory: As in `Model`.
        verify: As in `Model`.

    Example:
        >>> import uce_edge
        >>> uce_edge.load().classes[281]
        'tabby cat'
    """
    from uce_edge.runtime.model import Model

    path = find(model, inference)
    return Model(path, device, threads=threads, spin=spin, max_memory=max_memory, verify=verify)

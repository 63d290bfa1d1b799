"""Initial weights from files of torchvision, timm or this project."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from uce_edge._util.atomic_files import read_regular
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import Sketch
from uce_edge_train.choices import Architecture, Stem
from uce_edge_train.loop.checkpoint import CHECKPOINT
from uce_edge_train.networks import architectures
from uce_edge_train.networks.backbones import HF, TIMM
from uce_edge_train.networks.hub_names import canonical, hub_names
from uce_edge_train.networks.initial_weights import Start
from uce_edge_train.networks.parameter_groups import first_of, head_of
from uce_edge_train.networks.tensor_files import TensorFileError, is_plain, read_any
from uce_edge_train.runs import DESCRIPTION, WEIGHTS, Run

_ENOUGH = 0.5
_SHOWN = 3  # names in a message
_WRAPPED = ("state_dict", "model_state_dict", "model", "state_dict_ema", "model_ema")
_PREFIXES = ("module.", "_orig_mod.", "model.", "network.", "net.", "backbone.")
_COUNTER = "num_batches_tracked"  # older files lack it, and nothing depends on it: taken, not counted
_EXAMPLE = "As in --init weights.safetensors, or --init runs/photos"


@dataclass(frozen=True)
class Fitted:
    """Tensors of a file that fit a network."""

    tensors: dict[str, Tensor]
    """By the network's names, in its shapes."""
    notes: tuple[str, ...]
    """Changes that were made to fit, as sentences."""
    missing: tuple[str, ...]
    """Names of the network that start at random, without the head."""
    unused: tuple[str, ...]
    """Names of the file that do not fit, without the head."""
    share: float
    """Of the network's numbers below the head, those that are taken."""
    likeness: float
    """Of the numbers below the head on both sides together, those that are taken."""

    @property
    def is_enough(self) -> bool:
        """Whether these are weights of this architecture.

        Some names and shapes match by chance.
        """
        return self.likeness >= _ENOUGH

    def summary(self) -> str:
        """A summary of matched and unmatched tensors."""
        sentences = [f"{len(self.tensors):,} tensors are taken, {self.share:.1%} of the weights below the head."]
        sentences += self.notes
        if self.missing:
            sentences.append(f"The file lacks {_listed(self.missing)}, which start at random.")
        if self.unused:
            sentences.append(f"The network has no place for {_listed(self.unused)} of the file.")
        return " ".join(sentences)


def start_from(path: str | Path) -> Start:
    """Describe the weights of a file or run.

    Raises:
        UsageError: There is no such file.
    """
    file = _file(path)
    run = _run_beside(file)
    return Start(str(path), _sha256(_content(file)), () if run is None else run.recipe.seen)


def begin(model: nn.Module, start: Start, arch: str) -> str:
    """Load initial weights in place; returns a summary.

    Raises:
        UsageError: The file is not the one that the recipe means, or holds weights of another architecture.
    """
    sha256, tensors = _weights(start.file)
    if sha256 != start.sha256:
        raise UsageError(
            f"{start.file} is not the file that the recipe was made with: its SHA-256 differs.", "weights.changed"
        )
    fitted = fit(model, tensors)
    if not fitted.is_enough:
        raise UsageError(_another(tensors, start.file, arch, fitted), "weights.mismatch")
    broken = [name for name, value in fitted.tensors.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise UsageError(
            f"{start.file} holds numbers that are not finite, in {_listed(broken)}. Take another file.",
            "weights.not-finite",
            tensors=broken,
        )
    model.load_state_dict(fitted.tensors, strict=False)
    return f"Starts from {start.file}: {fitted.summary()}"


def _weights(file: str) -> tuple[str, Mapping[str, Tensor]]:
    """SHA-256 and tensors of a file, or of a network of a hub."""
    if file.startswith((TIMM, HF)):
        from uce_edge_train.networks import hub_backbones

        tensors = hub_backbones.load(file).tensors
        return hub_backbones.digest(tensors), tensors
    content = _content(_file(file))
    return _sha256(content), _tensors(content, file)


def trained_on(start: Start | None) -> Sketch | None:
    """Training images of the initial weights, if known."""
    run = None if start is None or start.file.startswith((TIMM, HF)) else _run_beside(_file(start.file))
    return None if run is None else run.trained_on


def rate_of(path: str | Path) -> float | None:
    """The mean dropout rate of the run at a path; None if it is no run with Gaussian dropout."""
    run = _run_beside(_file(path))
    rates = [] if run is None else list((run.tuned_rates or run.rates).values())
    return sum(rates) / len(rates) if rates else None


def fit(model: nn.Module, tensors: Mapping[str, Tensor]) -> Fitted:
    """Match the tensors of a file to a network."""
    own: dict[str, Tensor] = model.state_dict()
    head, first = head_of(model), first_of(model)
    sources = _sources(model, own, tensors)
    found = {name: tensors[source] for name, source in sources.items()}
    notes = [_head_note(found.get(f"{head}.weight"), own.get(f"{head}.weight"))]
    reset: set[str] = set()
    start = f"{first}.weight"
    if start in found and found[start].shape != own[start].shape:
        found[start], note = _first_layer(found[start], own[start])
        notes.append(note)
        if found[start].shape != own[start].shape:
            reset = _with_norm(model, first)  # the statistics are those of another first layer
    taken = {
        name: value.to(own[name].dtype)
        for name, value in found.items()
        if name not in reset
        and value.shape == own[name].shape
        and value.is_floating_point() == own[name].is_floating_point()
    }
    if f"{head}.weight" not in taken:
        taken.pop(f"{head}.bias", None)
    below = {
        name: value.numel()
        for name, value in own.items()
        if not (name.startswith(f"{head}.") or name.endswith(_COUNTER))
    }
    taken_below = sum(size for name, size in below.items() if name in taken)
    explained = {source for name, source in sources.items() if name in taken or name in reset or name not in below}
    unused = sorted(name for name in tensors if name not in explained and not name.endswith(_COUNTER))
    everything = sum(below.values()) + sum(tensors[name].numel() for name in unused)
    return Fitted(
        tensors=taken,
        notes=tuple(filter(None, notes)),
        missing=tuple(name for name in below if name not in taken and name not in reset),
        unused=tuple(unused),
        share=taken_below / sum(below.values()),
        likeness=taken_below / everything,
    )


def _sources(model: nn.Module, own: Collection[str], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The file's names of the network's tensors."""
    theirs, called = hub_names(model), {canonical(name): name for name in tensors}
    sources = {name: name if name in tensors else called.get(canonical(theirs[name])) for name in own}
    return {name: source for name, source in sources.items() if source is not None}


def _head_note(found: Tensor | None, own: Tensor | None) -> str:
    if found is None or own is None or not found.ndim:
        return "The head is new: the file has none."
    if found.shape == own.shape:
        return ""
    return f"The head is new: the file has {len(found):,} classes, the network {len(own):,}."


def _first_layer(found: Tensor, own: Tensor) -> tuple[Tensor, str]:
    """Adapt the first kernel to another number of channels.

    Returns the kernel unchanged where it cannot be adapted, and a note.
    """
    there, here = "x".join(map(str, found.shape[2:])), "x".join(map(str, own.shape[2:]))
    if found.ndim != own.ndim or there != here or len(found) != len(own):
        sizes = f"{there} in the file, {here} in the network"
        return found, f"The first layer is new: its kernels are {sizes} (see --stem)."
    channels, needed = found.shape[1], own.shape[1]
    if needed == 1:
        return found.sum(1, keepdim=True), f"The first layer takes 1 channel: the kernels for {channels} are summed."
    if channels == 1:  # gray images in all channels give what they gave
        spread = (found / needed).expand(own.shape)
        return spread, f"The first layer takes {needed} channels: each gets 1/{needed} of the kernel for one channel."
    return found, f"The first layer is new: it takes {channels} channels in the file, {needed} in the network."


def _with_norm(model: nn.Module, first: str) -> set[str]:
    """Tensors of the first layer and its batch-norm."""
    names = [first]
    norm = next((name for name, module in model.named_modules() if isinstance(module, _NormBase)), None)
    names += [norm] if norm else []
    return {name for name in model.state_dict() if name.rpartition(".")[0] in names}


def _another(tensors: Mapping[str, Tensor], file: str, arch: str, fitted: Fitted) -> str:
    """The reason of a mismatch, with the likely architecture."""
    reason = (
        f"{file} holds weights of another architecture than {arch}: both have {fitted.likeness:.0%} of their weights "
        f"below the head in common, and half is needed. Not found: {_listed(fitted.missing)}. Left over: "
        f"{_listed(fitted.unused)}."
    )
    likely = [(attempt.likeness, words) for words, attempt in _attempts(tensors) if attempt.is_enough]
    return f"{reason} They look like {max(likely)[1]}." if likely else reason


def _attempts(tensors: Mapping[str, Tensor]) -> list[tuple[str, Fitted]]:
    attempts = []
    for arch in Architecture:
        for stem in Stem if arch.has_stems else (Stem.CIFAR,):
            words = f"--arch {arch} --stem {stem}" if arch.has_stems else f"--arch {arch}"
            with torch.device("meta"):
                attempts.append((words, fit(architectures.build(arch, 2, 3, stem), tensors)))
    return attempts


def _file(path: str | Path) -> Path:
    """The file of weights at or in a path."""
    path = Path(path)
    if not path.is_dir():
        return path
    found = [path / name for name in (WEIGHTS, CHECKPOINT) if (path / name).is_file()]
    if not found:
        raise UsageError(expected("`init`", "a file of weights, or the folder of a run", str(path), _EXAMPLE))
    return found[0]


def _run_beside(file: Path) -> Run | None:
    is_run = file.name in (WEIGHTS, CHECKPOINT) and (file.parent / DESCRIPTION).is_file()
    return Run.load(file.parent) if is_run else None


def _content(file: Path) -> bytes:
    try:
        return read_regular(file)
    except OSError as error:
        raise UsageError(
            expected("`init`", f"a file that can be read ({error.strerror})", str(file), _EXAMPLE)
        ) from None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tensors(content: bytes, file: str) -> dict[str, Tensor]:
    """Tensors of a file by name, without wrappers and prefixes."""
    remedy = "Save its state_dict: torch.save(model.state_dict(), 'weights.pt')"
    try:
        document = read_any(content)
    except TensorFileError as error:
        raise UceEdgeError(
            f"{file} is neither safetensors nor a torch file of weights ({error}). {remedy}", "weights.unreadable"
        ) from None
    for name in _WRAPPED:
        if isinstance(document, dict) and isinstance(document.get(name), dict):
            document = document[name]
    items = document.items() if isinstance(document, dict) else ()
    tensors: dict[str, Tensor] = {name: value for name, value in items if isinstance(name, str) and is_plain(value)}
    for chosen in ("best.model.", "now.model."):  # an unfinished training of this project
        if any(name.startswith(chosen) for name in tensors):
            return {name.removeprefix(chosen): value for name, value in tensors.items() if name.startswith(chosen)}
    if not tensors:
        raise UceEdgeError(f"{file} holds no tensors by name. {remedy}", "weights.empty")
    return _without_prefix(tensors)


def _without_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    while prefix := next((start for start in _PREFIXES if all(name.startswith(start) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _listed(names: Sequence[str]) -> str:
    """The number of names, and the first of them."""
    if not names:
        return "nothing"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{len(names):,} tensor{'s' * (len(names) > 1)} ({', '.join(names[:_SHOWN])}{more})"

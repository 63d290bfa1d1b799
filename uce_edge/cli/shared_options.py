"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from uce_edge import contract, models
from uce_edge._util.field_rules import RecordError
from uce_edge.contract import Inference, SetScore
from uce_edge.datasets.named import names
from uce_edge.errors import UsageError, expected
from uce_edge.runtime.device_choice import Device

if TYPE_CHECKING:
    from uce_edge.calibration.label_sets import SetPromise
    from uce_edge.images.gray_range import Choice
    from uce_edge.images.resize import Resize
    from uce_edge.rejection.promises import NoveltyPromise, Promise, RejectBy


class SetsBy(StrEnum):
    """Whom the promise of --sets is about."""

    CLASS = "class"
    """The images of every class."""


def variable(option: str) -> str:
    """The environment variable of an option: UCE_EDGE_MAX_MEMORY for --max-memory."""
    return f"UCE_EDGE_{option.upper()}"


_MODEL = (
    "A model file made by `uce-edge export`, or the name of a bundled model (see `uce-edge models`). Default: "
    f"{models.DEFAULT_NAME}."
)
_REJECT = (
    "Reject images whose uncertainty is above this threshold (0 to 1). auto: apply the rule stored in the model, which "
    "may also reject out-of-distribution images."
)


def reject_option(text: str = _REJECT) -> Any:
    """The option --reject, with the help text of a command."""
    return typer.Option("--reject", metavar="FLOAT|auto", help=text, envvar=variable("reject"))


def noisy_option(panel: str) -> Any:
    """The option --noisy, in the panel of a command."""
    return typer.Option(
        "--noisy",
        metavar="all|tail|last:N|no-depthwise|PATTERN",
        help="The layers with noise. tail: the last convolution and what is behind it; the rest runs once per image. "
        "last:6: the last six layers. no-depthwise: all but depthwise layers. PATTERN: layers by name, as in "
        "'blocks.1[0-5].*'. Can be repeated. Default: all after the first layer, or those of the run.",
        rich_help_panel=panel,
    )


ModelOption = Annotated[Path | None, typer.Option(help=_MODEL, envvar=variable("model"))]
ModelArgument = Annotated[Path | None, typer.Argument(help=_MODEL, envvar=variable("model"))]
NamedModelOption = Annotated[Path | None, typer.Option(help=_MODEL)]
"""For a command that finds the model by itself, without the environment variable."""
InferenceOption = Annotated[
    Inference | None,
    typer.Option(help="For a bundled model with several files: the one of this kind (see `uce-edge models`)."),
]
RejectOption = Annotated[str | None, reject_option()]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        help="Monte Carlo passes per image. Default: the number stored in the model.", envvar=variable("samples")
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(help="Seed of the passes (0 to 4095). The same seed gives the same answer.", envvar=variable("seed")),
]


def _check_device(value: str) -> str:
    """Refuse a wrong device as the parser does, which names its variable."""
    from uce_edge.runtime import device_choice

    try:
        device_choice.parse(value)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None
    return value


DeviceOption = Annotated[
    str,
    typer.Option(
        callback=_check_device,
        metavar="|".join(Device),
        help="Where the model runs. auto: CUDA if it works, else the CPU. Any other device: an error if it does not "
        "work. cuda:1 is the second card.",
        envvar=variable("device"),
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option(help="Threads of ONNX Runtime. Default: all cores.", envvar=variable("threads"))
]
MemoryOption = Annotated[
    int | None,
    typer.Option(
        help="Approximate memory in megabytes for the images and passes that run together. Default: 256.",
        envvar=variable("max_memory"),
    ),
]
NoVerifyOption = Annotated[
    bool,
    typer.Option(
        "--no-verify", help="Use the model file even if it was changed after it was published. Prints a warning."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DataOption = Annotated[
    str,
    typer.Option(
        help=f"Labelled images: {', '.join(names())}, a folder with one sub-folder per class, a manifest (.csv, .tsv, "
        ".jsonl or .parquet with the columns path and label, optionally class_id, group and split), a folder with such "
        "a labels.csv, or an .npz file."
    ),
]
_GROUP = (
    "Give a column of the manifest, or a regular expression with one capture group that is matched with the file names."
)
GroupOption = Annotated[
    str | None,
    typer.Option(
        help=f"Keep images that belong together, such as those of a patient, in one split. {_GROUP} A promised error "
        "counts one image per group."
    ),
]
TestGroupOption = Annotated[
    str | None,
    typer.Option(
        help=f"Which images belong together, such as those of a patient. {_GROUP} Give the --group of the training, so "
        "that the test images are those that it held out. Default: what the file stores."
    ),
]
NoveltyLevelOption = Annotated[
    float | None,
    typer.Option(
        "--novelty-level",
        "--foreign",
        help="The largest share of familiar images that may be rejected as out of distribution (0 to 1). Default: "
        "0.03, or up to 0.05 if the images cannot prove less.",
    ),
]
NoveltyFeaturesOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|last|trunk|spread|LAYER",
        help="What the novelty gate looks at: the input of the last weight layer (last), inputs of the frozen trunk's "
        "layers in a pretrained network (trunk), of layers of the whole network (spread), or of LAYER: a number (from "
        "0), a name or a pattern; several are separated by commas. Default: auto, which is trunk for a run that has "
        "one; last or spread for --from, by images made by rule; what a model file looks at already; or else last.",
    ),
]
ClassPriorOption = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS=SHARE,...|IMAGES",
        help="The shares of the classes where the file will run, if not as in --data. Classes that are left out "
        "divide the rest as in --data. Or unlabelled images (a dataset, a folder, an .npz file) to estimate them "
        "from.",
    ),
]
SetsOption = Annotated[
    float | None,
    typer.Option(
        help="Also give every image a set of labels, such as `cat or dog`. This is the largest share of the sets that "
        "may lack the true label (0 to 1).",
    ),
]
SetsScoreOption = Annotated[
    SetScore | None,
    typer.Option(
        help="How --sets ranks labels. lac: by probability, the smallest sets. aps: by the sum of the larger "
        "probabilities, which adapts to hard images. raps: aps with a penalty, for many classes. Default: lac."
    ),
]
SetsByOption = Annotated[
    SetsBy | None,
    typer.Option(
        help="class: the promise of --sets holds for the images of every class. Default: for all images together."
    ),
]
OodOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Out-of-distribution images, which the model should reject: a dataset's name, a folder, an .npz file, far "
        "(made by rule: pink noise, checkerboards, colours, charts, thermal pictures and shuffled own images), or "
        "far-choice (the kinds that `calibrate` shows). Can be repeated."
    ),
]
RootOption = Annotated[Path | None, typer.Option(help="The folder of the public datasets. Default: $UCE_EDGE_DATA.")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Download a public dataset that is missing.")]
SizeOption = Annotated[
    str | None,
    typer.Option(help="Resize the images to HEIGHTxWIDTH pixels, if --data names image files. Default: 32x32."),
]

RANGE = "auto|full|12bit|LOW..HIGH"
RangeOption = Annotated[
    str | None,
    typer.Option(
        "--range",
        metavar=RANGE,
        help="For gray images of more than 8 bits: the values that are shown as black and as white. The model stores "
        "them. Default: auto, which chooses them by the image files of --data.",
    ),
]


RESIZE = "MODE[:PART...]"
_RESIZES = (
    "stretch, crop:SIZE (the shorter side becomes SIZE, then the middle is cut out), or pad (the whole image, with "
    "black or pad:FILL beside it). Add :bicubic or :lanczos for another filter."
)
ResizeOption = Annotated[
    str | None,
    typer.Option(
        metavar=RESIZE,
        help=f"How images get the size of --size: {_RESIZES} The model stores it. Default: stretch.",
    ),
]
SourceResizeOption = Annotated[
    str | None,
    typer.Option(
        metavar=RESIZE,
        help=f"How images get the size that the network takes: {_RESIZES} Default: stretch, or what fits the images of "
        "--data.",
        rich_help_panel="Third-party models",
    ),
]


def parse_resize(text: str | None) -> "Resize | None":
    """Parse --resize."""
    from uce_edge.images.resize import parse

    return None if text is None else parse(text)


def parse_range(text: str | None) -> "Choice":
    """Parse --range."""
    from uce_edge.images.gray_range import parse

    return "auto" if text is None else parse(text)


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse HEIGHTxWIDTH."""
    if text is None:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) > 0 and int(width) > 0):
        raise UsageError(expected("`size`", "HEIGHTxWIDTH", text, "For example: --size 224x224"))
    return int(height), int(width)


def parse_time(text: str) -> float:
    """Parse a time: 90s, 10m or 2h, in seconds."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        seconds = float(text[:-1]) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(expected("`budget`", "a time in s, m or h", text, "For example: --budget 10m"))
    return seconds


def parse_numbers(argument: str, text: str) -> list[float]:
    """Parse numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        rule, remedy = "numbers separated by commas", f"For example: --{argument} 0.5,0.5,0.5"
        raise UsageError(expected(f"`{argument}`", rule, text, remedy)) from None


def parse_names(argument: str, text: str | None) -> list[str] | None:
    """Parse names separated by commas, or read a file with one per line."""
    if text is None:
        return None
    try:
        lines = Path(text).read_text(encoding="utf-8-sig").splitlines()  # editors of Windows write a byte order mark
    except UnicodeDecodeError:
        rule = "names, or a text file in UTF-8"
        raise UsageError(expected(f"`{argument}`", rule, text, "Save it as UTF-8")) from None
    except (OSError, ValueError):  # not a file, so these are the names
        return [name.strip() for name in text.split(",")]
    return [line.strip() for line in lines if line.strip()]


TARGETS = "ERROR|CLASS=ERROR,..."


def parse_promise(text: str, confidence: float = 0.95, score: "RejectBy | None" = None) -> "Promise":
    """Parse --target-error: one error, or one per class: `glioma=0.02,other=0.1`."""
    from uce_edge.rejection.promises import OTHER, Promise, RejectBy

    example = f"For example: --target-error 0.05, or --target-error cat=0.02,{OTHER}=0.1"
    rule = "a number, or CLASS=NUMBER pairs separated by commas"
    errors: dict[str, float] = {}
    try:
        if "=" not in text:
            return Promise(float(text), confidence, score or RejectBy.UNCERTAINTY)
        for part in text.split(","):
            name, _, error = part.rpartition("=")
            name = name.strip()
            if not name or name in errors:
                raise UsageError(expected("`target_error`", "one error for each class", text, example))
            errors[name] = float(error)
    except ValueError:
        raise UsageError(expected("`target_error`", rule, text, example)) from None
    if score not in (None, RejectBy.UNCERTAINTY):
        raise UsageError(
            f"--target-error with one error per class needs --score uncertainty, but got {score}. Leave --score out, "
            "or give one error for all classes.",
            "usage.score-per-class",
        )
    try:
        return Promise.of_classes(errors, confidence)
    except RecordError as error:
        raise UsageError(expected(f"`{error.key}`", error.rule, error.value, example)) from None


def parse_sets(alpha: float | None, score: SetScore | None, by: SetsBy | None) -> "SetPromise | None":
    """The prediction sets that --sets, --sets-score and --sets-by mean."""
    from uce_edge.calibration.label_sets import SetPromise

    if alpha is None:
        if score is not None or by is not None:
            name = "--sets-by" if score is None else "--sets-score"
            raise UsageError(f"{name} needs prediction sets: add --sets 0.05", "usage.needs-sets")
        return None
    try:
        return SetPromise(alpha, score or SetScore.LAC, by is SetsBy.CLASS)
    except RecordError as error:
        raise UsageError(expected("`sets`", error.rule, error.value, "For example: --sets 0.05")) from None


def parse_novelty(
    level: float | None, confidence: float | None = None, features: str | None = None
) -> "NoveltyPromise":
    """Parse --novelty-level, its confidence, and --novelty-features."""
    from uce_edge.rejection.promises import AUTO_FEATURES, NoveltyPromise

    try:
        return NoveltyPromise(level, 0.95 if confidence is None else confidence, features or AUTO_FEATURES)
    except RecordError as error:
        if error.key != "level":
            raise
        remedy = "For example: --novelty-level 0.03"
        raise UsageError(expected("`novelty_level`", error.rule, error.value, remedy)) from None


def parse_threshold(text: str | None) -> "float | Literal['auto'] | None":
    """Parse --reject."""
    from uce_edge.rejection.rule import check_threshold

    if text is None or text == "auto":
        return "auto" if text else None
    try:
        return check_threshold(float(text))
    except ValueError:
        raise UsageError(expected("`reject`", "between 0 and 1, or auto", text, "For example: --reject 0.3")) from None


def check_request(model: Path | None, samples: int | None, seed: int, inference: Inference | None = None) -> Path:
    """Check the passes, and find the model file."""
    contract.pass_seeds(samples if samples is not None else 1, seed)
    return choose_model(model, inference)


def choose_model(model: Path | None, inference: Inference | None = None) -> Path:
    """Find a model file by path or bundled name; None for the default."""
    return models.find(model, inference)

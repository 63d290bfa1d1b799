"""The model contract, version 2: names, choices and limits.

This module is the one place that spells them; exporter, runtime and tools import from here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from uce_edge._util.field_rules import between, checked, strictly_between
from uce_edge.errors import argument

VERSION = 2
"""What this version writes. It also reads contract 1, through `uce_edge.contract_1`."""
MINOR = 0
"""A reader takes every minor: it only adds what an older reader may ignore."""
KEY = "uce_edge"

IMAGE = "image"
SEEDS = "seeds"
PROBABILITIES = "probabilities"
CLASS_ID = "class_id"
UNCERTAINTY = "uncertainty"
MODEL_UNCERTAINTY = "model_uncertainty"
STANDARD_ERROR = "standard_error"
ERROR_PROBABILITY = "error_probability"
PASS_PROBABILITIES = "pass_probabilities"
LOGITS = "logits"
NOVELTY = "novelty"
NOVELTY_SCORE = "novelty_score"
DECISION = "decision"
IN_SET = "in_set"
HEATMAP = "heatmap"
HEATMAP_SPREAD = "heatmap_spread"

LIMITS = "decision.limits"
"""The initializer [classes] that the score is compared with."""
CUTOFF = "decision.cutoff"
"""The initializer [] that the novelty is compared with."""
BY_CONFIDENCE = "decision.by_confidence"
"""The initializer [] that is true where the score is 1 - confidence."""
SET_LIMITS = "in_set.limits"
"""The initializer [classes] that the scores of the labels are compared with."""
SET_PENALTY = "in_set.penalty"
"""The initializer [] that every rank behind the free ones adds to a score."""
SET_FREE = "in_set.free"
"""The initializer [] that counts the ranks without a penalty."""


class Per(StrEnum):
    """What an output has one entry for."""

    IMAGE = "image"
    """Every image."""
    PASS = "pass"
    """Every image in every pass."""


class Merge(StrEnum):
    """How to merge an output over several calls."""

    COMPUTED = "computed"
    """Computed anew from the pass probabilities of all calls."""
    CONCATENATED = "concatenated"
    """One call after the other, along the passes."""
    SAME = "same"
    """Every call gives the same: any one will do."""
    POOLED = "pooled"
    """Mean and deviation of all passes whose calls predict the class of the answer."""


@dataclass(frozen=True)
class Output:
    """One output of the graph."""

    name: str
    per: Per
    merge: Merge
    dtype: str = "float32"
    by_class: bool = False
    """Whether its last dimension is the classes."""
    by_place: bool = False
    """Whether its last dimensions are the height and the width of a feature map."""
    required: bool = True
    """Whether every file has it; one that a file may lack is listed in its metadata."""
    since: int = 1
    """The first contract that knows it."""
    probed: bool = False
    """Whether a self-test compares it: a number that rounding changes a little, and not a label or a count."""

    @property
    def is_number(self) -> bool:
        """Whether an answer has it as one floating-point number."""
        return self.per is Per.IMAGE and not (self.by_class or self.by_place) and self.dtype == "float32"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of its dimensions.

        `samples` counts seeds times members, and members alone without seeds.
        """
        samples = ("samples",) if self.per is Per.PASS else ()
        places = ("map_height", "map_width") if self.by_place else ()
        return (*samples, "batch", *(("classes",) if self.by_class else ()), *places)


OUTPUTS = (
    Output(PROBABILITIES, Per.IMAGE, Merge.COMPUTED, by_class=True, probed=True),
    Output(CLASS_ID, Per.IMAGE, Merge.COMPUTED, dtype="int32"),
    Output(UNCERTAINTY, Per.IMAGE, Merge.COMPUTED, probed=True),
    Output(MODEL_UNCERTAINTY, Per.IMAGE, Merge.COMPUTED, probed=True),
    Output(STANDARD_ERROR, Per.IMAGE, Merge.COMPUTED, probed=True),
    Output(ERROR_PROBABILITY, Per.IMAGE, Merge.COMPUTED, probed=True),
    Output(PASS_PROBABILITIES, Per.PASS, Merge.CONCATENATED, by_class=True),
    Output(LOGITS, Per.PASS, Merge.CONCATENATED, by_class=True),
    Output(DECISION, Per.IMAGE, Merge.COMPUTED, dtype="int32", since=2),
    Output(NOVELTY, Per.IMAGE, Merge.SAME, required=False),
    Output(NOVELTY_SCORE, Per.IMAGE, Merge.SAME, required=False, probed=True),
    Output(IN_SET, Per.IMAGE, Merge.COMPUTED, dtype="bool", by_class=True, required=False, since=2),
    Output(HEATMAP, Per.IMAGE, Merge.POOLED, by_place=True, required=False, since=2),
    Output(HEATMAP_SPREAD, Per.IMAGE, Merge.POOLED, by_place=True, required=False, since=2),
)
"""All outputs, in the order of the graph. JSON keys, columns and the self-test follow this table."""

NUMBERS = tuple(output.name for output in OUTPUTS if output.is_number)
"""The outputs that an answer has as one number, in the order of its keys."""

MAPS = tuple(output.name for output in OUTPUTS if output.by_place)
"""The outputs with a value for every place."""


def outputs_of(
    optional: Collection[str], version: int = VERSION, table: Sequence[Output] = OUTPUTS
) -> tuple[Output, ...]:
    """The outputs of a file that are known here.

    Args:
        optional: What the file lists under `outputs`; names that are not known here are ignored.
        version: The contract of the file.
        table: What is known.
    """
    return tuple(output for output in table if output.since <= version and (output.required or output.name in optional))


VARIANCE_SCALE = "calibration.variance_scale"
"""The initializer that scales the variance of what a moments graph draws."""

SEED_SPACE = 2**24
MAX_SAMPLES = 4096
MAX_SEED = SEED_SPACE // MAX_SAMPLES - 1


class Inference(StrEnum):
    """How the graph turns an image into a distribution."""

    MC = "mc"
    """Exact Monte Carlo: one stochastic pass per seed."""
    MOMENTS = "moments"
    """One pass with mean and variance of every unit; only the last layers are sampled, once per seed."""
    DETERMINISTIC = "deterministic"
    """The same weights without noise: one pass, no model uncertainty."""


class Posterior(StrEnum):
    """What the passes of a file differ in."""

    NONE = "none"
    """Nothing: one deterministic network."""
    DROPOUT = "dropout"
    """Noise inside the network, drawn anew in every pass."""
    LAPLACE = "laplace"
    """The weights of the last layer, drawn around the trained ones."""
    ENSEMBLE = "ensemble"
    """Several trained networks; each may have noise of its own."""


class PriorFrom(StrEnum):
    """What chose the prior precision of a Laplace posterior."""

    MARGINAL_LIKELIHOOD = "marginal-likelihood"
    """The images that the network was trained on."""
    HELD_OUT_NLL = "held-out-nll"
    """Images that neither the network nor the curvature has seen."""


class Precision(StrEnum):
    """The number format of the network.

    Noise and calibration are always float32.
    """

    FP32 = "fp32"
    """float32."""
    FP16 = "fp16"
    """float16, for graphics cards."""
    FP16_WEIGHTS = "fp16-weights"
    """Weights stored in float16, and computed with in float32: half the size."""
    INT8 = "int8"
    """8-bit integers in the weight layers, for processors."""


class NoiseKind(StrEnum):
    """Where the noise of the passes comes from."""

    TABLE = "table"
    """A constant table read by a hash of the seed: fast, portable, and every pass can be replayed. Asks for the newest
    kind of table; in a file it is the first kind, of 1021 rows, which this version reads and no longer writes."""
    TABLE_2 = "table-2"
    """The table of 4096 rows, of which any two columns are independent."""
    RANDN = "randn"
    """The runtime's own RandomNormalLike: `seeds` only sets the number of passes, and none can be replayed."""
    INPUT = "input"
    """Extra graph inputs `noise.0`, `noise.1`, ... [samples, outputs of the layer], for experiments and checks."""
    NONE = "none"
    """No noise: a deterministic model."""

    @property
    def replays(self) -> bool:
        """Whether the seeds alone say what a pass draws."""
        return self in (NoiseKind.TABLE, NoiseKind.TABLE_2)

    @property
    def written(self) -> "NoiseKind":
        """The kind that this version writes for it."""
        return NoiseKind.TABLE_2 if self.replays else self


class PerturbationKind(StrEnum):
    """What the noise does to a layer."""

    GAUSSIAN = "gaussian"
    """Gaussian dropout: the output is drawn around its mean, with the variance of dropout on the input."""
    FACTORED = "gaussian-factored"
    """The same with a variance from the marginals of the squared weights."""
    CHANNEL = "gaussian-channel"
    """Gaussian dropout of channels: every channel of a convolution's input is multiplied by one number."""
    BERNOULLI = "bernoulli"
    """Dropout: every value is kept and divided by 1 - p, or 0."""
    BERNOULLI_CHANNEL = "bernoulli-channel"
    """The same for whole channels."""
    ALPHA = "bernoulli-alpha"
    """Alpha dropout: every value is kept or replaced by a constant, and all are scaled and shifted."""
    ALPHA_CHANNEL = "bernoulli-channel-alpha"
    """The same for whole channels."""


class Sigma(StrEnum):
    """How the standard deviation of a Gaussian layer is computed."""

    EXACT = "exact"
    """sqrt(alpha * layer(x^2, W^2)): a second layer of the same size."""
    FACTORED = "factored"
    """From the marginals of W^2 over outputs, inputs and taps: one map with one channel."""
    CHANNEL = "channel"
    """No standard deviation: every channel of a convolution's input is multiplied by one number. Exact elsewhere."""


MAX_SIDE = 65_535
"""The most pixels on a side, as in JPEG: of an image that is read, and of a resized one."""


class ResizeMode(StrEnum):
    """How an image gets the size that a model takes."""

    STRETCH = "stretch"
    """Both sides become those of the model."""
    CROP = "crop"
    """The shorter side becomes `size`, and the middle is cut out."""
    PAD = "pad"
    """The whole image fits, and the rest is filled."""


class ResizeFilter(StrEnum):
    """The filter of a resize; all average when they shrink."""

    BILINEAR = "bilinear"
    """Triangle, 1 pixel to each side."""
    BICUBIC = "bicubic"
    """Cubic with a = -0.5, 2 pixels to each side."""
    LANCZOS = "lanczos"
    """Windowed sinc, 3 pixels to each side."""


class RuleScore(StrEnum):
    """The score that a reject rule compares."""

    UNCERTAINTY = "uncertainty"
    """The output of that name."""
    CONFIDENCE = "confidence"
    """1 - the largest of the probabilities."""


class SetScore(StrEnum):
    """The score of a label that prediction sets compare."""

    LAC = "lac"
    """1 - its probability: the smallest sets on average."""
    APS = "aps"
    """The sum of the larger probabilities: larger sets for harder images."""
    RAPS = "raps"
    """The same with a penalty for unlikely ranks, for many classes."""


class Method(StrEnum):
    """The calibration map between the logits and the softmax."""

    NONE = "none"
    """Logits as they are."""
    TEMPERATURE = "temperature"
    """One scalar for all logits."""
    VECTOR = "vector"
    """One factor per class."""
    AUX = "aux"
    """A small residual network on the logits."""


_Samples = Annotated[int, between(1, MAX_SAMPLES)]
_Seed = Annotated[int, between(0, MAX_SEED)]
_Probability = Annotated[float, strictly_between(0, 1)]


def pass_seeds(samples: int, seed: int) -> range:
    """The seeds of `--samples N --seed S`.

    The first N of the 4096 passes that S owns.
    """
    samples = checked("samples", _Samples, samples, f"25 is a good start: {argument('samples', 25)}")
    first = MAX_SAMPLES * checked("seed", _Seed, seed, f"Any fixed value will do: {argument('seed', 0)}")
    return range(first, first + samples)


def check_adaptive(error: float) -> None:
    """Refuse a probability of another outcome outside (0, 1)."""
    checked("adaptive", _Probability, error, f"For example: {argument('adaptive', 0.1)}")

"""Options of training.

This module does not import torch: the command line imports it.
"""

from enum import StrEnum


class Architecture(StrEnum):
    """The networks that have a name."""

    RESNET8 = "resnet8"
    """The thin CIFAR network of three blocks, as in MLPerf Tiny: about 78,000 weights."""
    CONVNET5 = "convnet5"
    """Three strided convolutions and two linear layers, 1.0 million weights: it memorises small training sets."""
    RESNET9 = "resnet9"
    """The shallow CIFAR network of the bundled `cifar10`: about 262,000 weights."""
    RESNET20 = "resnet20"
    """The thin CIFAR network of nine blocks: about 272,000 weights."""
    RESNET18 = "resnet18"
    """18 layers, 11.7 million weights in ImageNet form."""
    RESNET34 = "resnet34"
    """34 layers, 21.8 million weights: the paper's network for CIFAR-10 and SVHN."""
    RESNET50 = "resnet50"
    """50 layers, 25.6 million weights."""
    RESNET101 = "resnet101"
    """101 layers, 44.5 million weights: the paper's network for CIFAR-100."""
    DENSENET121 = "densenet121"
    """121 layers, 8.0 million weights: the paper's other network for CIFAR-10 and SVHN."""
    DENSENET169 = "densenet169"
    """169 layers, 14.1 million weights: the paper's other network for CIFAR-100."""
    EFFICIENTNET_LITE0 = "efficientnet-lite0"
    """Depthwise layers for edge devices, 224x224 pixels: 4.7 million weights."""
    EFFICIENTNET_LITE1 = "efficientnet-lite1"
    """The same, deeper, 240x240 pixels: 5.4 million weights."""
    EFFICIENTNET_LITE2 = "efficientnet-lite2"
    """The same, deeper and wider, 260x260 pixels: 6.1 million weights."""
    MOBILENETV3_SMALL = "mobilenetv3-small"
    """Depthwise layers and squeeze-and-excitation, 224x224 pixels: 2.5 million weights."""
    VIT_TINY = "vit-tiny"
    """The smallest vision transformer, 224x224 pixels: 5.7 million weights."""

    @property
    def side(self) -> int:
        """Height and width of the images that it is made for."""
        return _SIDES.get(self, 32)

    @property
    def has_stems(self) -> bool:
        """Whether it comes in the forms of `Stem`."""
        return self not in _SIDES and self is not Architecture.CONVNET5


_SIDES = {
    Architecture.EFFICIENTNET_LITE0: 224,
    Architecture.EFFICIENTNET_LITE1: 240,
    Architecture.EFFICIENTNET_LITE2: 260,
    Architecture.MOBILENETV3_SMALL: 224,
    Architecture.VIT_TINY: 224,
}


class Stem(StrEnum):
    """The first layers of a network."""

    CIFAR = "cifar"
    """One 3x3 convolution that keeps the resolution, for small images."""
    IMAGENET = "imagenet"
    """A 7x7 convolution with stride 2 and max-pooling, for large images."""


class Mixing(StrEnum):
    """Augmentation that mixes or changes training images."""

    NONE = "none"
    """Nothing."""
    AUGMIX = "augmix"
    """Changed copies of themselves: turned, sheared, moved, posterised, solarised, equalised."""
    PIXMIX = "pixmix"
    """Such copies, and generated pictures: fractals, clouds and mosaics."""
    TRIVIAL = "trivial"
    """One of 14 operations of random strength instead, brightness and contrast among them."""


class Optimiser(StrEnum):
    """The optimiser."""

    ADAMW = "adamw"
    """Adam with decoupled weight decay."""
    SGD = "sgd"
    """Stochastic gradient descent with Nesterov momentum 0.9."""


class Schedule(StrEnum):
    """The learning-rate schedule."""

    ONE_CYCLE = "one-cycle"
    """Up during the first 30 % of the steps, then down to nothing."""
    COSINE = "cosine"
    """Down along a half cosine from the first step on."""
    PLATEAU = "plateau"
    """A tenth whenever the training NLL has not improved for 10 epochs, as in the authors' code."""


class Arithmetic(StrEnum):
    """Precision of the forward pass.

    Weights, loss and the dropout variance stay float32.
    """

    FLOAT32 = "float32"
    """Plain."""
    BFLOAT16 = "bfloat16"
    """Mixed precision on processors and cards that have it."""
    FLOAT16 = "float16"
    """Mixed precision with loss scaling; CUDA only."""


class Dropout(StrEnum):
    """The dropout family."""

    GAUSSIAN = "gaussian"
    """Gaussian dropout in every weight layer after the first."""
    BERNOULLI = "bernoulli"
    """Bernoulli dropout on the inputs of the same layers."""
    NONE = "none"
    """No added dropout; the network may have its own."""


class Unfreeze(StrEnum):
    """Which layers of a pretrained network are trained."""

    NONE = "none"
    """The last layer alone."""
    TAIL = "tail"
    """The layers after the last reduction of the resolution; those before it run once, and their output is stored."""
    ALL = "all"
    """The tail first, then all layers, which is kept if the held-out NLL is lower."""


class Rates(StrEnum):
    """Which dropout rates are learned."""

    FIXED = "fixed"
    """They stay as they are."""
    FITTED = "fitted"
    """One rate for the network: the largest that does no harm to the selection images."""
    MODEL = "model"
    """One rate for the whole network is learned."""
    LAYER = "layer"
    """Every layer learns a rate of its own."""


class TrainDevice(StrEnum):
    """The device of training."""

    AUTO = "auto"
    """CUDA, or MPS, or the processor: the first that is there."""
    CPU = "cpu"
    """The processor."""
    CUDA = "cuda"
    """An NVIDIA card; under torchrun every process takes its own."""
    MPS = "mps"
    """Apple's graphics processor."""


class Experiment(StrEnum):
    """An experiment of the paper."""

    TABLE1 = "table1"
    """Classwise ECE and UCE of every calibration method."""
    RELIABILITY = "reliability"
    """Reliability diagrams of confidence and uncertainty."""
    REJECTION = "rejection"
    """The error that is left when uncertain images are rejected."""
    OOD = "ood"
    """Uncertainty of images from another distribution."""
    DROPOUT = "dropout"
    """A layer's output under Bernoulli and Gaussian dropout; trains nothing."""
    SCORECARD = "scorecard"
    """The paper's eight claims, each with a verdict."""
    ALL = "all"
    """All of them."""


class Scale(StrEnum):
    """The size of a reproduction."""

    MEMORISE = "memorise"
    """A small network that memorises few images, as the paper's networks do: two datasets and five seeds in about an
    hour on two cores."""
    PAPER = "paper"
    """The paper's networks and the schedule of its authors: days on a graphics card."""
    LAPTOP = "laptop"
    """A small network and a short schedule: an hour on two cores."""

"""The figures of the paper's Table 1, in percent."""

from uce_edge_train.reproduce.trained_networks import Row

COLUMNS = (Row.UNCALIBRATED, Row.PENALTY, Row.TEMPERATURE, Row.VECTOR, Row.PAPER_AUX)

PUBLISHED: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "cifar10": {
        "ResNet-34": ((4.46, 4.03), (8.29, 19.8), (1.95, 3.68), (2.09, 3.73), (2.10, 2.38)),
        "DenseNet-121": ((10.1, 9.52), (8.49, 18.5), (3.05, 5.72), (3.15, 6.09), (2.98, 4.55)),
    },
    "cifar100": {
        "ResNet-101": ((20.5, 23.2), (14.6, 19.4), (10.8, 11.5), (10.7, 11.4), (32.9, 35.3)),
        "DenseNet-169": ((32.4, 37.1), (15.6, 20.6), (12.9, 13.9), (12.8, 13.8), (48.9, 52.6)),
    },
    "svhn": {
        "ResNet-34": ((2.37, 2.07), (9.11, 22.3), (1.47, 3.47), (1.44, 3.43), (1.34, 1.85)),
        "DenseNet-121": ((2.91, 2.47), (7.53, 19.7), (2.06, 5.08), (1.96, 4.88), (1.51, 2.46)),
    },
}
"""cECE and cUCE of Monte Carlo predictions by dataset and network, in the order of `COLUMNS`."""

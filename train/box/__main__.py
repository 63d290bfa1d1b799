"""Make the bundled models and write their cards.

    python train/box commands imagenet    # what to run, in order; the same for waste, xray, cifar10 and pneumonia
    python train/box card imagenet        # measure the files, write the card, and put it into the files
    python train/box imagenet-noise       # does noise in its last layer pay?
    python train/box imagenet-check       # the file beside PyTorch, and what its scores are worth
    python train/box imagenet-names       # give its classes the names of imagenet.py; answers do not change
    python train/box choice runs/a runs/b # compare recipes on calibration images alone
    python train/box rates runs/a runs/b  # compare rates of dropout on them
    python train/box seal                 # give all files digests and probe images again; nothing else changes

The datasets lie under $UCE_EDGE_DATA: imagenet_val_2k/ and trashnet/ and chest_xray/ with their photos, cifar10.npz,
CIFAR-100's and MNIST's test images, pneumoniamnist.npz.
"""

import sys

from card import write_card
from choice import compare_rates, compare_recipes
from imagenet import make_network, make_photos
from imagenet_check import check_network
from imagenet_noise import measure_noise
from recipes import BOX, make_pneumonia
from seal import rename_classes, seal

STEPS = {
    "imagenet-photos": make_photos,
    "imagenet-network": make_network,
    "imagenet-noise": measure_noise,
    "imagenet-check": check_network,
    "imagenet-names": rename_classes,
    "pneumonia-data": make_pneumonia,
    "seal": seal,
}


def main(step: str = "", *names: str) -> None:
    """Run one step."""
    name = names[0] if names else ""
    if step in STEPS:
        STEPS[step]()
    elif step == "choice" and names:
        compare_recipes(names)
    elif step == "rates" and names:
        compare_rates(names)
    elif step == "card" and name in BOX:
        write_card(BOX[name])
    elif step == "commands" and name in BOX:
        print("\n".join(BOX[name].commands))
    else:
        raise SystemExit(__doc__)


main(*sys.argv[1:])

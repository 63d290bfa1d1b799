"""The published EfficientNet-Lite0 as a model file, and the photos that calibrate and test it."""

import csv
import os
from pathlib import Path

import numpy as np
import torch
from recipes import PHOTOS, PLAIN

from uce_edge._util.atomic_files import replacing
from uce_edge.contract import Inference, NoiseKind, Precision
from uce_edge.metadata import Metadata
from uce_edge_export.options import Options
from uce_edge_train.export import export_module
from uce_edge_train.networks import architectures
from uce_edge_train.networks.backbones import BACKBONES

_BACKBONE = "efficientnet-lite0"
_FOLDER = "imagenet_val_2k"
_OTHERS = {"xrays": "chest_xray", "waste": "trashnet"}
_CLASSES = 1_000
_EACH = 500
"""Out-of-distribution images of every set."""
NAMES = {
    7: "rooster", 15: "American robin", 20: "dipper (bird)", 21: "kite (bird)", 27: "red eft (newt)",
    33: "loggerhead turtle", 41: "whiptail lizard", 67: "diamondback rattlesnake", 68: "sidewinder rattlesnake",
    78: "tick (arachnid)", 87: "African grey parrot", 97: "drake (duck)", 101: "tusker (elephant)", 134: "crane (bird)",
    157: "papillon (dog)", 161: "basset hound", 164: "bluetick coonhound", 168: "redbone coonhound",
    191: "Airedale terrier", 192: "cairn terrier", 195: "Boston terrier", 204: "Lhasa Apso", 216: "clumber spaniel",
    227: "kelpie (dog)", 242: "boxer (dog)", 260: "chow chow", 263: "Pembroke corgi", 264: "Cardigan corgi",
    268: "Mexican hairless dog", 281: "tabby cat", 296: "polar bear", 308: "fly (insect)", 312: "cricket (insect)",
    313: "stick insect", 321: "red admiral (butterfly)", 322: "ringlet (butterfly)", 323: "monarch (butterfly)",
    326: "lycaenid (butterfly)", 332: "Angora rabbit", 339: "sorrel horse", 348: "ram (sheep)",
    383: "ring-tailed lemur", 387: "red panda", 391: "coho salmon", 392: "rock beauty (fish)", 397: "pufferfish",
    408: "amphibious vehicle", 412: "trash can", 428: "wheelbarrow", 436: "station wagon", 437: "lighthouse",
    439: "bearskin hat", 456: "bow (weapon)", 458: "brass plaque", 474: "cardigan (jacket)", 492: "chest (box)",
    513: "cornet (horn)", 517: "crane (machine)", 542: "drumstick (of a drum)", 553: "filing cabinet",
    589: "hair dryer", 606: "iron (for clothes)", 608: "jeans", 612: "rickshaw", 628: "ocean liner",
    630: "loafer (shoe)", 638: "maillot (swimsuit)", 639: "one-piece swimsuit", 666: "mortar (bowl)",
    673: "computer mouse", 677: "nail (metal)", 680: "baby bottle nipple", 681: "notebook computer", 687: "pipe organ",
    697: "pajamas", 714: "guitar pick", 724: "pirate ship", 725: "pitcher (jug)", 726: "plane (tool)",
    737: "soda bottle", 738: "flower pot", 744: "projectile (missile)", 746: "hockey puck", 751: "race car",
    769: "ruler", 778: "scale (for weighing)", 782: "CRT screen", 800: "slot machine", 836: "dark glasses",
    844: "electric switch", 847: "tank (vehicle)", 850: "teddy bear", 881: "upright piano", 882: "vacuum cleaner",
    897: "washing machine", 908: "aircraft wing", 913: "shipwreck", 916: "website", 927: "trifle (dessert)",
    936: "cabbage", 970: "mountain", 981: "baseball player", 982: "bridegroom", 989: "rose hip", 990: "buckeye (nut)",
    998: "ear of corn", 999: "toilet paper",
}  # fmt: skip
"""Names of classes whose own names are ambiguous alone, or rare."""


def make_photos() -> None:
    """List photos to fit, to test and to reject; of every class, the first fits and the other tests."""
    data = Path(os.environ["UCE_EDGE_DATA"]).resolve()
    parts: dict[str, list[list[str]]] = {"fit": [], "test": []}
    seen: set[str] = set()
    for row in _rows():
        part = "test" if row["wnid"] in seen else "fit"
        seen.add(row["wnid"])
        parts[part].append([str(data / _FOLDER / row["path"]), _name(row)])
    PHOTOS.mkdir(parents=True, exist_ok=True)
    for name, folder in _OTHERS.items():
        found = sorted((data / folder).glob("*/*.jp*g"))
        parts[name] = [[str(found[index]), name] for index in _some(len(found))]
    for part, lines in parts.items():
        with replacing(PHOTOS / f"{part}.csv") as temporary, temporary.open("w", newline="") as file:
            csv.writer(file).writerows([["path", "label"], *lines])
        print(f"{PHOTOS / part}.csv: {len(lines):,} photos")
    with np.load(data / "cifar100_test.npz") as archive, replacing(PHOTOS / "cifar100.npz") as temporary:
        some = _some(len(archive["x"]))
        with temporary.open("wb") as stream:
            np.savez_compressed(stream, x=archive["x"][some], y=archive["y"][some])


def make_network() -> None:
    """Write the published network, without noise and calibration."""
    backbone = BACKBONES[_BACKBONE]
    classes = {int(row["class_id"]): _name(row) for row in _rows()}
    metadata = Metadata(
        tuple(classes[number] for number in sorted(classes)),
        backbone.image,
        inference=Inference.DETERMINISTIC,
        noise=NoiseKind.NONE,
        precision=Precision.FP16_WEIGHTS,
        architecture=_BACKBONE,
        samples=1,
        pretrained=backbone.start().published,
    )
    PLAIN.parent.mkdir(parents=True, exist_ok=True)
    export_module(published_network(), metadata, PLAIN, options=Options(heatmap=True))
    print(f"{PLAIN}: {PLAIN.stat().st_size / 1e6:.1f} MB")


def published_network() -> torch.nn.Module:
    """The network with its published weights, in float32."""
    network = architectures.build(_BACKBONE, _CLASSES, 3)
    published = torch.load(BACKBONES[_BACKBONE].start().file, map_location="cpu", weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), published.values(), strict=True)))
    return network.eval()


def _some(images: int) -> list[int]:
    return sorted(np.random.default_rng(0).permutation(images)[:_EACH].tolist())


def _rows() -> list[dict[str, str]]:
    with (Path(os.environ["UCE_EDGE_DATA"]) / _FOLDER / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _name(row: dict[str, str]) -> str:
    return NAMES.get(int(row["class_id"]), row["label"].replace("_", " "))

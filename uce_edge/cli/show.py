"""Answers for people: a card for one image, a table for many."""

import sys
from typing import Any

import typer

_BAR = 30
_COLOURS = {"accept": typer.colors.GREEN, "reject": typer.colors.YELLOW}
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def card(record: dict[str, Any], threshold: float | None) -> None:
    """One image: its likeliest classes as bars, how sure, and what to do with it."""
    typer.secho(record["path"], bold=True)
    if record["status"] == "error":
        typer.secho(f"  {record['error']}", fg=typer.colors.RED)
        return
    colour = _COLOURS.get(record["decision"])
    width = max(len(one["label"]) for one in record["top"])
    for number, one in enumerate(record["top"]):
        drawn = typer.style(f"{_bar(one['probability']):<{_BAR}}", fg=colour if number == 0 else None)
        typer.echo(f"  {one['label']:<{width}}  {drawn} {one['probability']:>6.1%}")
    typer.echo(f"  uncertainty {_spread(record)}, wrong about {odds(record['error_probability'])}")
    if threshold is not None:
        typer.secho(f"  {record['decision']}: {reason(record, threshold)}", fg=colour)


def table(records: list[dict[str, Any]], last: str, threshold: float | None = None, *, passes: bool = False) -> None:
    """Many images: what each is, how sure, and one more field, such as what to do with it; and the passes it took."""
    width = max([len(record["path"]) for record in records] + [5])
    names = max([len(str(record["label"])) for record in records] + [5])
    head = f"{'image':<{width}}  {'label':<{names}}  confidence  uncertainty    wrong about  "
    head += f"{'passes  ' if passes else ''}{last.replace('_', ' ')}"
    typer.secho(head, bold=True)
    for record in records:
        if record["status"] == "error":
            typer.secho(f"{record['path']:<{width}}  {record['error']}", fg=typer.colors.RED)
            continue
        value = record[last]
        shown = f"{value:.3f}" if isinstance(value, float) else value or "-"
        if value == "reject" and threshold is not None:
            shown += f": above {threshold:.4g}"
        line = f"{record['path']:<{width}}  {record['label']:<{names}}  {record['confidence']:>10.1%}"
        line += f"  {_spread(record)}  {odds(record['error_probability']):<11}  "
        line += f"{record['samples']:>6}  " if passes else ""
        typer.echo(line + typer.style(shown, fg=_COLOURS.get(str(value))))


def row(record: dict[str, Any]) -> None:
    """One image of a stream: a line of its own, at once."""
    if record["status"] == "error":
        typer.secho(f"{record['path']}  {record['error']}", fg=typer.colors.RED)
    else:
        shown = typer.style(record["decision"] or "", fg=_COLOURS.get(record["decision"]))
        answer = f"{record['label']}  {record['confidence']:.1%}  {_spread(record)}"
        typer.echo(f"{record['path']}  {answer}  wrong about {odds(record['error_probability'])}  {shown}")
    sys.stdout.flush()


def reason(record: dict[str, Any], threshold: float) -> str:
    """Why an image is accepted or rejected."""
    rule = "is above" if record["decision"] == "reject" else "is at most"
    return f"its uncertainty {rule} {threshold:.4g}"


def odds(probability: float) -> str:
    """A probability of error as people say it: 1 in 12."""
    if probability < 0.001:
        return "< 1 in 1000"
    return f"1 in {1 / probability:.0f}" if probability < 0.4 else f"{probability:.0%}"


def _spread(record: dict[str, Any]) -> str:
    return f"{record['uncertainty']:.3f} ± {record['standard_error']:.3f}"


def _bar(share: float) -> str:
    """A bar of at most `_BAR` characters, in eighths where the terminal has them."""
    eighths = round(share * _BAR * 8)
    drawn = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    try:
        drawn.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#" * round(share * _BAR)
    return drawn

"""Answers on stdout: a card for one image, a table for many, a row of a stream, JSON for programs."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from uce_edge.answers import Answer
    from uce_edge.prediction import ImagePrediction

_BAR = 30
_COLOURS = {"accept": typer.colors.GREEN, "reject": typer.colors.YELLOW}
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def json_list(answers: Sequence["Answer"]) -> None:
    """All answers as one JSON document."""
    typer.echo(json.dumps([answer.as_dict() for answer in answers], indent=2, allow_nan=False))


def json_line(answer: "Answer") -> None:
    """One answer as a line of JSON, at once."""
    typer.echo(json.dumps(answer.as_dict(), allow_nan=False))
    sys.stdout.flush()


def card(answer: "Answer") -> None:
    """One image: its likeliest classes as bars, how sure, and what to do with it."""
    typer.secho(answer.path, bold=True)
    if answer.prediction is None:
        typer.secho(f"  {answer.error}", fg=typer.colors.RED)
        return
    colour = _colour(answer)
    width = max(len(likely.label) for likely in answer.top)
    for number, (label, probability) in enumerate(answer.top):
        drawn = typer.style(f"{_bar(probability):<{_BAR}}", fg=colour if number == 0 else None)
        typer.echo(f"  {label:<{width}}  {drawn} {probability:>6.1%}")
    prediction = answer.prediction
    typer.echo(f"  uncertainty {_spread(prediction)}, wrong about {odds(prediction.error_probability)}")
    if answer.decision is not None:
        typer.secho(f"  {answer.decision}: {answer.why}", fg=colour)


def decisions(answers: Sequence["Answer"], *, passes: bool = False) -> None:
    """Many images: what each is, how sure, and what to do with it; and the passes it took, where they differ."""
    extra = {"passes": lambda answer, prediction: f"{prediction.passes:>6}"} if passes else {}
    _table(answers, extra | {"decision": lambda answer, _: typer.style(_decision(answer), fg=_colour(answer))})


def disagreements(answers: Sequence["Answer"]) -> None:
    """Many images: what each is, how sure, and how far the passes disagree."""
    _table(answers, {"model uncertainty": lambda _, prediction: f"{prediction.model_uncertainty:.3f}"})


def row(answer: "Answer") -> None:
    """One image of a stream: a line of its own, at once."""
    prediction = answer.prediction
    if prediction is None:
        typer.secho(f"{answer.path}  {answer.error}", fg=typer.colors.RED)
    else:
        shown = typer.style("" if answer.decision is None else _decision(answer), fg=_colour(answer))
        sure = f"{prediction.label}  {prediction.confidence:.1%}  {_spread(prediction)}"
        typer.echo(f"{answer.path}  {sure}  wrong about {odds(prediction.error_probability)}  {shown}")
    sys.stdout.flush()


def odds(probability: float) -> str:
    """A probability of error as people say it: 1 in 12."""
    if probability < 0.001:
        return "< 1 in 1000"
    return f"1 in {1 / probability:.0f}" if probability < 0.4 else f"{probability:.0%}"


def _table(answers: Sequence["Answer"], columns: dict[str, Callable[["Answer", "ImagePrediction"], str]]) -> None:
    """What all tables tell of an image, and some more columns."""
    width = max([len(answer.path) for answer in answers] + [5])
    names = max([len(answer.prediction.label) for answer in answers if answer.prediction is not None] + [5])
    head = f"{'image':<{width}}  {'label':<{names}}  confidence  uncertainty    wrong about  {'  '.join(columns)}"
    typer.secho(head, bold=True)
    for answer in answers:
        prediction = answer.prediction
        if prediction is None:
            typer.secho(f"{answer.path:<{width}}  {answer.error}", fg=typer.colors.RED)
            continue
        line = f"{answer.path:<{width}}  {prediction.label:<{names}}  {prediction.confidence:>10.1%}"
        line += f"  {_spread(prediction)}  {odds(prediction.error_probability):<11}  "
        typer.echo(line + "  ".join(tell(answer, prediction) for tell in columns.values()))


def _decision(answer: "Answer") -> str:
    if answer.decision == "reject":
        return f"reject: {answer.why.replace('its uncertainty is ', '').replace('its confidence is ', 'confidence ')}"
    return answer.decision or "-"


def _colour(answer: "Answer") -> str | None:
    return _COLOURS.get(str(answer.decision))


def _spread(prediction: "ImagePrediction") -> str:
    return f"{prediction.uncertainty:.3f} ± {prediction.standard_error:.3f}"


def _bar(share: float) -> str:
    """A bar of at most `_BAR` characters, in eighths where the terminal has them."""
    eighths = round(share * _BAR * 8)
    drawn = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    try:
        drawn.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#" * round(share * _BAR)
    return drawn

"""Answers as text: a card for one image, a table, or a row of a stream."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from uce_edge.calibration.label_sets import in_words
from uce_edge.cli.messages import echo, pad, styled, width
from uce_edge.output.wording import MISSING, odds, spread, wrong_about

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer
    from uce_edge.runtime.prediction import ImagePrediction

_BAR = 30
_COLOURS = {"accept": typer.colors.GREEN, "reject": typer.colors.YELLOW}
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def card(answer: "Answer") -> None:
    """Print one answer: the likeliest classes as bars, uncertainty and decision."""
    echo(answer.path, bold=True)
    if answer.prediction is None:
        echo(f"  {answer.error}", fg=typer.colors.RED)
        return
    colour = _colour(answer)
    widest = max(width(likely.label) for likely in answer.top)
    for number, (label, probability) in enumerate(answer.top):
        drawn = styled(f"{_bar(probability):<{_BAR}}", fg=colour if number == 0 else None)
        echo(f"  {pad(label, widest)}  ", drawn, f" {probability:>6.1%}")
    prediction = answer.prediction
    echo(f"  uncertainty {spread(prediction)}, {wrong_about(prediction)}")
    if prediction.label_set is not None:
        echo(f"  set: {in_words(prediction.label_set)}")
    if answer.decision is not None:
        echo(f"  {answer.decision}: {answer.why}", fg=colour)


def decisions(answers: Sequence["Answer"], *, passes: bool = False) -> None:
    """Print a table of answers with their decisions, optionally with passes."""
    extra = {"passes": lambda answer, prediction: f"{prediction.passes:>6}"} if passes else {}
    _table(answers, extra | {"decision": lambda answer, _: styled(_decision(answer), fg=_colour(answer))})


def disagreements(answers: Sequence["Answer"]) -> None:
    """Print a table of answers with their model uncertainty."""
    _table(answers, {"model uncertainty": lambda _, prediction: f"{prediction.model_uncertainty:.3f}"})


def row(answer: "Answer") -> None:
    """Print one answer of a stream at once."""
    prediction = answer.prediction
    if prediction is None:
        echo(f"{answer.path}  {answer.error}", fg=typer.colors.RED)
    else:
        decision = styled("" if answer.decision is None else _decision(answer), fg=_colour(answer))
        certainty = f"{prediction.says}  {prediction.confidence:.1%}  {spread(prediction)}"
        echo(f"{answer.path}  {certainty}  {wrong_about(prediction)}  ", decision)
    sys.stdout.flush()


def _table(answers: Sequence["Answer"], columns: dict[str, Callable[["Answer", "ImagePrediction"], str]]) -> None:
    """Print a table with the common columns and further ones."""
    widest = max([width(answer.path) for answer in answers] + [5])
    names = max([width(answer.prediction.says) for answer in answers if answer.prediction is not None] + [5])
    head = f"{'image':<{widest}}  {'label':<{names}}  confidence  uncertainty    wrong about  {'  '.join(columns)}"
    echo(head, bold=True)
    for answer in answers:
        prediction = answer.prediction
        if prediction is None:
            echo(f"{pad(answer.path, widest)}  {answer.error}", fg=typer.colors.RED)
            continue
        line = f"{pad(answer.path, widest)}  {pad(prediction.says, names)}  {prediction.confidence:>10.1%}"
        wrong = MISSING if prediction.out_of_distribution else odds(prediction.error_probability)
        line += f"  {spread(prediction):<13}  {wrong:<11}"
        cells = [text(answer, prediction) for text in columns.values()]
        echo(line, *(part for cell in cells for part in ("  ", cell)))


def _decision(answer: "Answer") -> str:
    prediction = answer.prediction
    if prediction is None or answer.decision != "reject":
        return answer.decision or "-"
    from uce_edge.rejection.description import why

    return f"reject: {why(prediction.rule, prediction.class_id, prediction.label, prediction.reason, brief=True)}"


def _colour(answer: "Answer") -> str | None:
    return _COLOURS.get(str(answer.decision))


def _bar(share: float) -> str:
    """Draw a bar of at most `_BAR` characters, in eighths if the terminal can."""
    eighths = round(share * _BAR * 8)
    drawn = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    try:
        drawn.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#" * round(share * _BAR)
    return drawn

"""Convert answers to a pandas DataFrame."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from uce_edge.errors import MissingPartError
from uce_edge.runtime.answers import Answer
from uce_edge.runtime.prediction import ImagePrediction

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["to_pandas"]


def to_pandas(answers: Iterable[Answer | ImagePrediction]) -> "DataFrame":
    """A table with one row per image.

    Args:
        answers: The results of `Model.predict` or `Model.answers`. The columns are those of `ImagePrediction.as_dict`
            with the path, or of `Answer.as_row`.

    Example:
        >>> table = to_pandas(model.answers(["three.png", "broken.png"]))
        >>> list(table["path"]), list(table["status"])
        (['three.png', 'broken.png'], ['ok', 'error'])
    """
    try:
        import pandas
    except ImportError:
        raise MissingPartError("A table", "pandas", "pandas") from None
    listed = list(answers)
    top = max((len(answer.top) for answer in listed if isinstance(answer, Answer)), default=0)
    return pandas.DataFrame([_row(answer, top) for answer in listed])


def _row(answer: Answer | ImagePrediction, top: int) -> dict[str, Any]:
    return answer.as_row(top) if isinstance(answer, Answer) else {"path": answer.path} | answer.as_dict()

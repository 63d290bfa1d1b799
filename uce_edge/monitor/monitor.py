"""A drift monitor without labels, with a bounded false alarm probability."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from uce_edge._util.atomic_files import read_regular, replacing
from uce_edge._util.field_rules import RecordError
from uce_edge._util.records import DocumentError, parse
from uce_edge.contract import UNCERTAINTY
from uce_edge.errors import UceEdgeError, UsageError, argument, expected
from uce_edge.monitor import betting
from uce_edge.monitor.accuracy import Estimate, RunningWindow, outcomes_of
from uce_edge.monitor.reference import from_prediction
from uce_edge.monitor.state import (
    STATISTICS,
    WINDOW,
    WORDS,
    Alarm,
    Bet,
    LabelCheck,
    Point,
    State,
    StoredReference,
    Track,
    Window,
)
from uce_edge.runtime.answers import Answer
from uce_edge.runtime.prediction import ImagePrediction, Prediction

if TYPE_CHECKING:
    from uce_edge.runtime.model import Model

ALPHA = 0.01
"""The default probability of ever raising a false alarm."""
_POINTS = 200  # the most points of the history
_LARGEST = 700.0  # exp of more overflows
_MOST = 1 << 24  # bytes: a hundred times the size of a state file


class Monitor:
    """Raises an alarm when images no longer look like those of the calibration.

    It bets on every answer against the hypothesis of no drift. The wealth of the bets is the evidence.

    Example:
        >>> from uce_edge.datasets import splits
        >>> reference = model.predict(splits.load("digits").splits["calibration"].images)
        >>> monitor = Monitor.of(model, usual=reference)
        >>> for answer in model.answers(["three.png"] * 8):  # repeats of one image are drift
        ...     raised = monitor.add(answer)
        >>> monitor.report().sentence
        'No alarm in 8 images: the evidence for a change is ..., and an alarm takes 100.'
    """

    def __init__(self, state: State) -> None:
        """Continue from a state. Use `of`, `start` or `load` to make a monitor."""
        self._state = state
        self._tracks = {name: _Running(STATISTICS.index(name), track) for name, track in state.tracks.items()}
        self._history = list(state.history)
        self._window = None if state.window is None else RunningWindow(state.window)

    @classmethod
    def of(
        cls,
        model: "Model",
        alpha: float = ALPHA,
        *,
        usual: Prediction | None = None,
        every: int = 1,
        seed: int = 0,
        window: int = WINDOW,
    ) -> "Monitor":
        """Make a monitor of a model file.

        Args:
            model: The loaded file.
            alpha: The largest probability of ever raising a false alarm.
            usual: The model's predictions for at least 200 in-distribution images; None for the stored reference.
            every: Use only every Nth answer, such as for the frames of a video, which are not independent.
            seed: Seed of the random numbers that break ties between equal scores.
            window: The accuracy is estimated for so many last answers.
        """
        stored = model.metadata.monitor if usual is None else from_prediction(usual)
        if stored is None:
            raise UsageError(
                f"{model.path} does not store a reference for the monitor. Calibrate it again (uce-edge calibrate "
                "MODEL.onnx --data labelled/ --monitor), or name in-distribution images: uce-edge monitor --state "
                "state.json --model MODEL.onnx --reference FOLDER",
                "monitor.no-reference",
                path=model.path,
            )
        counted = model.metadata.held_out
        same = counted is not None and (counted.samples, counted.seed) == (stored.samples, stored.seed)
        outcomes = outcomes_of(model.metadata) if same else None
        last = None if outcomes is None else Window(outcomes, window)
        return cls.start(stored, model.sha256, alpha, every=every, seed=seed, window=last)

    @classmethod
    def start(
        cls,
        reference: StoredReference,
        model: str = "",
        alpha: float = ALPHA,
        *,
        every: int = 1,
        seed: int = 0,
        window: Window | None = None,
    ) -> "Monitor":
        """Make a monitor from a reference; `model` is the SHA-256 of the model file.

        Without a window it does not estimate the accuracy.
        """
        if not 0 < alpha < 1:
            rule = "strictly between 0 and 1"
            raise UsageError(
                expected("`alpha`", rule, alpha, "For example 0.01: one monitor in a hundred ever raises a false alarm")
            )
        nothing = (Bet(betting.NOTHING, 0.0, 0, ""),) * betting.BETS
        return cls(
            State(
                model=model,
                alpha=alpha,
                every=every,
                seed=seed,
                samples=reference.samples,
                pass_seed=reference.seed,
                started=_now(),
                reference=reference.images,
                tracks={name: Track(b.edges, b.counts, nothing) for name, b in reference.statistics.items()},
                window=window,
            )
        )

    @classmethod
    def load(cls, path: str | Path) -> "Monitor":
        """Continue from a file of `save`."""
        remedy = State.REMEDY
        try:
            state = State.from_document(parse(read_regular(path, _MOST)))
        except OSError as error:
            raise UceEdgeError(
                f"Cannot read the monitor's state {path}: {error.strerror}. {remedy}", "monitor.unreadable", path=path
            ) from None
        except DocumentError as error:
            raise UceEdgeError(
                f"{path} is no state of a monitor ({error}). {remedy}", "monitor.not-a-state", path=path
            ) from None
        except RecordError as error:
            raise UceEdgeError(
                f"{path} is no state of a monitor. {error.told(remedy)}", "monitor.not-a-state", path=path
            ) from None
        if any(len(track.bets) != betting.BETS for track in state.tracks.values()):
            raise UceEdgeError(
                f"{path} is the state of another version's monitor. {remedy}", "monitor.not-a-state", path=path
            )
        return cls(state)

    def save(self, path: str | Path, option: str = "--path") -> None:
        """Write the state to a file. If writing fails, the old file is kept."""
        with replacing(path, option) as temporary:
            temporary.write_text(self.state.to_json(), encoding="utf-8")

    @property
    def state(self) -> State:
        """The state that `save` writes."""
        return replace(
            self._state,
            tracks={name: running.track() for name, running in self._tracks.items()},
            history=tuple(self._history),
            window=None if self._window is None else self._window.window(),
        )

    @property
    def alarm(self) -> Alarm | None:
        """The first alarm; None without one."""
        return self._state.alarm

    @property
    def log_evidence(self) -> float:
        """The current log evidence: the largest statistic, less log(statistics)."""
        return max(self._logs().values())

    def add(self, answer: Answer | ImagePrediction, time: datetime | str | None = None) -> bool:
        """Add one answer to the evidence. An answer without a prediction is ignored.

        Args:
            answer: An answer, or a prediction for one image, with the passes and the seed of the reference.
            time: The time of the answer; None for now.

        Returns:
            Whether this answer raised the alarm. An alarm is raised only once.
        """
        prediction = answer.prediction if isinstance(answer, Answer) else answer
        if prediction is None:
            return False
        if (prediction.passes, prediction.seed) != (self._state.samples, self._state.pass_seed):
            raise UsageError(
                f"The reference has {self._state.samples} passes and seed {self._state.pass_seed}; this answer has "
                f"{prediction.passes} passes and seed {prediction.seed}. "
                f"Leave {argument('samples')}, {argument('seed')} and {argument('adaptive')} out.",
                "monitor.another-request",
            )
        return self.add_scores(prediction.as_dict(), time)

    def add_scores(self, scores: Mapping[str, Any], time: datetime | str | None = None) -> bool:
        """As `add`, with the scores, the decision and its reason by their names in JSON."""
        state = self._state
        values = {name: scores.get(name) for name in self._tracks}
        unfit = [name for name, value in values.items() if value is None or not math.isfinite(value)]
        if unfit:
            raise UsageError(expected(f"`{unfit[0]}`", "a number", values[unfit[0]], "Ask the model of the reference"))
        when = time if isinstance(time, str) else (time.isoformat() if time else _now())
        images = state.images + 1
        self._state = state = replace(state, images=images, updated=when)
        if (images - 1) % state.every:
            return False
        step = state.bets + 1
        for name, running in self._tracks.items():
            value = values[name]
            assert value is not None
            running.add(value, step, state.seed, when)
        if self._window is not None and UNCERTAINTY in scores:
            self._window.add(scores)
        logs = self._logs(step)
        evidence = max(logs.values())
        self._state = state = replace(state, bets=step, peak=max(state.peak, evidence))
        self._remember(Point(images, when, logs))
        if state.alarm is not None or evidence < -math.log(state.alpha):
            return False
        name = max(logs, key=logs.__getitem__)
        leading = self._tracks[name]
        best = leading.best()
        self._state = replace(
            state,
            alarm=Alarm(
                image=images,
                time=when,
                evidence=evidence,
                statistic=name,
                rises=best < betting.BETS // 2,
                since_image=(int(leading.starts[best]) - 1) * state.every + 1,
                since=leading.times[best],
            ),
        )
        return True

    def read_until(self, line: str) -> None:
        """Store the hash of the last line that was read from a log."""
        self._state = replace(self._state, log_line=line)

    def shuffle(self) -> None:
        """Declare a random order of answers, which hides when drift began."""
        self._state = replace(self._state, shuffled=True)

    def checked(self, labels: LabelCheck) -> None:
        """Store the test of a promised error."""
        self._state = replace(self._state, labels=labels)

    def report(self) -> "Report":
        """The current evidence, in numbers and words."""
        state, last = self._state, self._window
        return Report(
            images=state.images,
            bets=state.bets,
            alpha=state.alpha,
            evidence=math.exp(min(self.log_evidence, _LARGEST)) if state.bets else 1.0,
            peak=math.exp(min(state.peak, _LARGEST)),
            alarm=state.alarm,
            shuffled=state.shuffled,
            estimate=None if last is None else last.estimate(state.alpha, alarm=state.alarm is not None),
        )

    def _logs(self, step: int | None = None) -> dict[str, float]:
        step = self._state.bets if step is None else step
        # Each statistic has an equal part of alpha (a union bound): see docs/science.md.
        price = math.log(len(self._tracks))
        return {
            name: float(betting.log_evidence(running.wealth, step)) - price for name, running in self._tracks.items()
        }

    def _remember(self, point: Point) -> None:
        state = self._state
        if state.bets % state.stride:
            return
        self._history.append(point)
        if len(self._history) >= _POINTS:
            self._history = self._history[1::2]
            self._state = replace(state, stride=2 * state.stride)


class _Running:
    """One statistic while it runs: arrays instead of records."""

    def __init__(self, number: int, track: Track) -> None:
        self._number, self._edges = number, track.edges
        self._counts = np.array(track.counts, np.int64)
        self.wealth = np.array([bet.wealth for bet in track.bets])
        self._runs = np.array([bet.run for bet in track.bets])
        self.starts = np.array([bet.start for bet in track.bets], np.int64)
        self.times = [bet.time for bet in track.bets]

    def add(self, score: float, step: int, seed: int, time: str) -> None:
        place = int(betting.bins(self._edges, score))
        p, rest = betting.p_values(self._counts, place, betting.uniform(seed, step, self._number))
        gains = betting.log_gains(p, rest)
        self._counts[place] += 1
        self.wealth = betting.bet(self.wealth, gains, step)
        begins = self._runs <= 0  # all gains are lost: the likeliest start is now
        self._runs = np.where(begins, 0, self._runs) + gains
        self.starts = np.where(begins, step, self.starts)
        self.times = [time if new else old for new, old in zip(begins, self.times, strict=True)]

    def best(self) -> int:
        """The bet with the largest wealth."""
        return int(self.wealth.argmax())

    def track(self) -> Track:
        bets = zip(self.wealth.tolist(), self._runs.tolist(), self.starts.tolist(), self.times, strict=True)
        return Track(self._edges, tuple(self._counts.tolist()), tuple(Bet(*bet) for bet in bets))


@dataclass(frozen=True)
class Report:
    """The report of a monitor."""

    images: int
    """The number of answers."""
    bets: int
    """The number of answers it bet on."""
    alpha: float
    evidence: float
    """The current evidence; 1/alpha raises an alarm."""
    peak: float
    """The largest evidence so far. Without drift it ever reaches this value with a probability of at most 1/peak."""
    alarm: Alarm | None
    shuffled: bool = False
    estimate: Estimate | None = None
    """The accuracy of the last answers; None without answers, or for a file without counts over held-out images."""

    @property
    def estimated(self) -> str:
        """The estimated accuracy in words, or why there is none."""
        if self.estimate is not None:
            return self.estimate.sentence
        if self.bets == 0:
            return "No estimate of the accuracy yet: there are no answers."
        return (
            "No estimate of the accuracy: the model file has no counts over held-out images, or the state is of an "
            "older version. Calibrate the file with --monitor, and start with another --state."
        )

    @property
    def sentence(self) -> str:
        """The report in words."""
        if self.alarm is None:
            return (
                f"No alarm in {self.images:,} images: the evidence for a change is {_short(self.evidence)}, at most "
                f"{_short(self.peak)} so far, and an alarm takes {_short(1 / self.alpha)}."
            )
        alarm = self.alarm
        since = f"since about image {alarm.since_image:,} ({alarm.since})"
        way = "rises" if alarm.rises else "falls"
        when = "somewhere in the shuffled archive" if self.shuffled else since
        return (
            f"ALARM at image {alarm.image:,} ({alarm.time}): the images are not like those of the calibration, {when}. "
            f"The {WORDS[alarm.statistic]} {way}. The largest evidence is {_short(self.peak)}: if nothing had changed, "
            f"at most one stream in {_short(self.peak)} would ever get there."
        )


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

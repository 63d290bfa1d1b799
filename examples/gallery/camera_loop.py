"""A camera loop for a robot that acts only on accepted frames.

python examples/gallery/camera_loop.py                         # a synthetic camera; its lens gets dirty on the way
python examples/gallery/camera_loop.py recorded/ --fps 30      # a folder of images, 30 a second
python examples/gallery/camera_loop.py 0 --usual usual-day/    # a camera, or a video file, by OpenCV

stdout has one line per frame: a label to act on, "stop: out-of-distribution", or "ask: uncertain". stderr has the
monitor's alarm and, at the end or after Ctrl-C, the latency and the dropped frames.
"""

import argparse
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

import uce_edge
from uce_edge.images.corruptions import corrupt
from uce_edge.images.loader import collect
from uce_edge.runtime.prediction import ImageLike, Reason

Frame = tuple[int, ImageLike]
"""The number of a frame, from 1, and its picture. Dropped frames leave gaps in the numbers."""
Pictures = Generator[ImageLike, None, None]
Pixels = npt.NDArray[np.uint8]

PICTURES = Path(__file__).resolve().parent.parent / "images"
USUAL = 200  # frames of the reference: the monitor needs at least as many
DEMO = 400  # frames of the synthetic camera
REMEMBERED = 10_000  # latencies: the robot may run for months


# What the robot does with an answer. This is the part to change.


def action(prediction: uce_edge.ImagePrediction) -> str:
    """The label of an accepted frame, or what to do instead of acting."""
    if not math.isfinite(prediction.uncertainty):
        return "stop: no answer"
    match prediction.reason:
        case Reason.OUT_OF_DISTRIBUTION | Reason.BOTH:  # there, the uncertainty means nothing
            return "stop: out-of-distribution"
        case Reason.UNCERTAIN:
            return "ask: uncertain"
    return prediction.label


# Where frames come from.


def synthetic(every: int, dirty_from: float = math.inf, seed: int = 0) -> Generator[Pixels, None, None]:
    """A camera that moves over one picture of `examples/images` after the other, each for `every` frames.

    Args:
        every: Frames of one scene.
        dirty_from: The frame from which the lens is dirty.
        seed: Of the order of the scenes and their light.
    """
    rng, number = np.random.default_rng(seed), 0
    pictures = [small(path) for path in collect([str(PICTURES)])]
    while True:
        scene = pictures[rng.integers(len(pictures))].astype(np.float64) * rng.uniform(0.8, 1.2)
        height, width = scene.shape[:2]
        wide = np.pad(np.clip(scene, 0, 255).astype(np.uint8), ((4, 4), (4, 4), (0, 0)), mode="reflect")
        top, left = rng.integers(16, size=2)
        for step in range(every):
            y, x = abs((top + step) % 16 - 8), abs((left + step) % 16 - 8)  # there and back again
            frame, number = wide[y : y + height, x : x + width], number + 1
            yield corrupt(frame[None], "blur", 5, seed=number)[0] if number >= dirty_from else frame


def small(path: str) -> Pixels:
    """A picture as a camera of 320x320 pixels sees it, at most."""
    with Image.open(path) as picture:
        picture.thumbnail((320, 320))
        return np.asarray(picture.convert("RGB"))


def recorded(folder: Path) -> Generator[str, None, None]:
    """The images of a folder, by name."""
    yield from collect([str(folder)])


def opencv(source: str) -> Generator[Pixels, None, None]:
    """A camera by its number, or a video file, or an address that OpenCV can open."""
    try:
        import cv2  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise uce_edge.UceEdgeError(
            f"{source} needs OpenCV, which is not installed. Run: pip install opencv-python-headless. "
            "A folder of images needs nothing else."
        ) from None
    capture = cv2.VideoCapture(int(source) if source.isdigit() else source)
    try:
        if not capture.isOpened():
            raise uce_edge.UceEdgeError(f"OpenCV cannot open {source}. Check the camera's number or the file.")
        while True:
            there, frame = capture.read()
            if not there:
                return
            yield np.ascontiguousarray(frame[..., ::-1])  # OpenCV puts blue first, models take red first
    finally:
        capture.release()


class Camera:
    """Films in a thread and keeps the newest frame alone, so that memory is bounded and an answer is never old."""

    def __init__(self, pictures: Pictures, fps: float = 0, *, live: bool = False) -> None:
        """Begin to film.

        Args:
            pictures: The source.
            fps: Frames a second; 0 for as many as the source gives.
            live: Whether the source does not wait, as a real camera. Frames that nobody took in time are dropped.
        """
        self.dropped = 0
        """Frames that came while the robot was busy."""
        self._waits = not (live or fps)
        self._pictures, self._period = pictures, 1 / fps if fps else 0.0
        self._changed, self._ended = threading.Condition(), False
        self._newest: Frame | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._film, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Frame]:
        """The newest frame, again and again, until the source ends."""
        while True:
            with self._changed:
                # In short waits: on Windows, Ctrl-C does not end a long one.
                while not self._changed.wait_for(lambda: self._newest is not None or self._ended, timeout=0.2):
                    pass
                taken, self._newest = self._newest, None
                self._changed.notify_all()
            if taken is None:
                if self._error is not None:
                    raise self._error
                return
            yield taken

    def close(self) -> None:
        """Stop filming."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(timeout=2)

    def _film(self) -> None:
        due = time.monotonic()
        try:
            with closing(self._pictures) as pictures:
                for number, picture in enumerate(pictures, 1):
                    time.sleep(max(0.0, due - time.monotonic()))
                    due += self._period
                    with self._changed:
                        if self._waits:
                            self._changed.wait_for(lambda: self._newest is None or self._ended)
                        if self._ended:
                            return
                        self.dropped += self._newest is not None
                        self._newest = number, picture
                        self._changed.notify_all()
        except Exception as error:  # raised again by the thread that takes the frames
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


# Has the world changed?


def watch(model: uce_edge.Model, usual: Sequence[ImageLike] | None, every: int) -> uce_edge.Monitor | None:
    """A monitor that bets on every so many frames: neighbours show the same scene, and are no independent images.

    Args:
        model: What answers.
        usual: Frames of a usual day, far apart; None to compare with what the file stores.
        every: Frames until the scene is another one.

    Returns:
        The monitor; None where nobody says what is usual.
    """
    if usual is None and model.metadata.monitor is None:
        return None
    if usual is not None and len(usual) < USUAL:
        raise uce_edge.UsageError(f"--usual has {len(usual)} images, and it takes {USUAL} to say what is usual.")
    return uce_edge.Monitor.of(model, usual=None if usual is None else model.predict(usual), every=every)


# The loop.


class Loop:
    """One model, one answer per frame, and a few numbers about them."""

    def __init__(self, model: uce_edge.Model, monitor: uce_edge.Monitor | None) -> None:
        self._model, self._monitor = model, monitor
        self._outcomes: Counter[str] = Counter()
        self._milliseconds: deque[float] = deque(maxlen=REMEMBERED)
        model.predict([np.zeros((8, 8, 3), np.uint8)], reject="auto")  # the first call is slow, and is nobody's frame

    def answer(self, picture: ImageLike) -> str:
        """What to do about a frame; a bad one is an answer, too."""
        started = time.perf_counter()
        try:
            prediction = self._model.predict([picture], reject="auto")[0]
            done = action(prediction)
        except uce_edge.ImageError:
            prediction, done = None, "stop: unreadable"
        self._milliseconds.append(1e3 * (time.perf_counter() - started))
        self._outcomes[done if done.startswith(("stop: ", "ask: ")) else "accepted"] += 1
        if prediction is not None and math.isfinite(prediction.uncertainty) and self._monitor is not None:
            raised = self._monitor.add(prediction)
            if raised:
                say(self._monitor.report().sentence)
        return done

    def summary(self, dropped: int) -> str:
        """Outcomes, latency and dropped frames, for a person."""
        if not self._milliseconds:
            return "No frame was answered."
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self._outcomes.most_common())
        middle, late = np.percentile(self._milliseconds, [50, 99])
        return (
            f"{self._outcomes.total()} frames: {outcomes}.\n"
            f"Latency: p50 {middle:.1f} ms, p99 {late:.1f} ms. Dropped frames: {dropped}."
        )


def say(text: str) -> None:
    """Tell a person."""
    print(text, file=sys.stderr, flush=True)


def source(name: str | None, every: int, frames: int | None) -> tuple[Pictures, bool]:
    """The pictures that a word names, and whether they come by themselves, as those of a real camera do."""
    if name is None:
        return synthetic(every, dirty_from=math.inf if frames is None else frames // 2), False
    if Path(name).is_dir():
        return recorded(Path(name)), False
    live = name.isdigit() or "://" in name
    if not live and not Path(name).is_file():
        raise uce_edge.UsageError(f"There is no folder or video {name}. Check the name.")
    return opencv(name), live


def run(words: argparse.Namespace) -> int:
    """Answer frame after frame until the source ends or Ctrl-C is pressed; gives the exit code."""
    if not words.fps >= 0:
        raise uce_edge.UsageError(f"--fps is {words.fps:g}, and must be at least 0.")
    model = uce_edge.load(words.model, threads=words.threads)
    frames = DEMO if words.source is None and words.frames is None else words.frames
    pictures, live = source(words.source, words.every, frames)
    usual: Sequence[ImageLike] | None = None if words.usual is None else collect([str(words.usual)])
    if words.source is None and usual is None:
        usual = list(islice(synthetic(1, seed=1), USUAL))  # one frame of each of many other scenes
    monitor = watch(model, usual, words.every)
    if monitor is None:
        say("No monitor: the file stores no usual answers. Name a folder of usual frames with --usual.")
    loop, code = Loop(model, monitor), 0
    with closing(Camera(pictures, words.fps, live=live)) as camera:
        try:
            for number, picture in islice(camera, frames):
                print(f"{number:>6}  {loop.answer(picture)}", flush=True)
        except KeyboardInterrupt:
            say("Stopped by Ctrl-C.")
            code = 130
    say(loop.summary(camera.dropped))
    if monitor is not None and monitor.alarm is None:
        say(monitor.report().sentence)
    return code


def whole(word: str) -> int:
    """A number from 1 on."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, but got {word}")
    return int(word)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", help="a folder, a camera's number or a video; default: a synthetic camera")
    parser.add_argument("--model", help="a file, or the name of a bundled model; default: imagenet")
    parser.add_argument("--usual", type=Path, help=f"a folder with {USUAL} frames or more of a usual day, far apart")
    parser.add_argument("--every", type=whole, default=5, help="frames until the scene is another one; default: 5")
    parser.add_argument(
        "--frames", type=whole, help=f"stop after so many; default: {DEMO} of the synthetic one, or all"
    )
    parser.add_argument("--fps", type=float, default=0, help="frames a second; default: as fast as they are answered")
    parser.add_argument("--threads", type=whole, default=1, help="of the model; the robot has other work; default: 1")
    try:
        return run(parser.parse_args(arguments))
    except uce_edge.UceEdgeError as error:
        say(f"error: {error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

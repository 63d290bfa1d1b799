"""The report: one file that fetches nothing, shows every chart, and cannot be broken by what a class is called."""

import dataclasses
import html
import json
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers import port_cases

from uce_edge.evaluation import evaluate
from uce_edge.evaluation.latency import Latency
from uce_edge.metadata import ImageSpec
from uce_edge.metrics import Calibration, CalibrationTest
from uce_edge.output import wording
from uce_edge.output.report import charts, page, summary
from uce_edge.output.report.markup import Markup, element, join
from uce_edge.output.report.svg import SERIES, Frame, ceiling, ticks
from uce_edge.output.report.thumbnails import data_uri
from uce_edge.rejection.promises import ErrorPromise
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.model import Model

HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>&amp; 50 % </title></style>"""
CHARTS = [
    "reliability-confidence", "reliability-uncertainty", "thresholds", "risk-coverage", "mixture", "histograms",
    "shift-noise", "shift-blur", "shift-brightness", "shift-contrast", "shift-jpeg", "shift-pixelate", "latency",
]  # fmt: skip
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """A page as a browser reads it: elements, attributes and text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def having(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]


@pytest.fixture(scope="module")
def evaluated(digits):
    """Everything a report can show, with a class that has a hostile name."""
    model = Model(digits.model, "cpu")
    model.metadata = dataclasses.replace(
        model.metadata,
        classes=(*"01234567", HOSTILE, "9"),
        architecture=HOSTILE,
        rule=RejectRule(
            limits=(0.1234,),
            promise=ErrorPromise(0.02, 0.95, 0.019, 0.01, 0.8, 80, 100, samples=25, seed=0, data="abc"),
        ),
    )
    test = digits.dataset.splits["test"]
    images = test.images.copy()
    images[::3, :, 4:] = 0
    outside = np.random.default_rng(1).integers(0, 256, (30, 8, 8, 1)).astype(np.uint8)
    return evaluate(
        model, images, test.labels, data=HOSTILE, outside={HOSTILE: outside}, reject=0.3, corrupt=8, timed=True,
        resamples=10, notes=[HOSTILE],
    )  # fmt: skip


@pytest.fixture(scope="module")
def text(evaluated) -> str:
    return page.render(evaluated)


@pytest.fixture(scope="module")
def parsed(text) -> Page:
    return Page(text)


def test_every_element_is_closed_and_every_id_is_the_only_one(parsed):
    assert parsed.open == []
    assert len(set(parsed.ids())) == len(parsed.ids())


def test_nothing_is_fetched_and_nothing_runs(text, parsed):
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", re.sub(r"base64,[\w+/=]+", "", text))
    assert parsed.having("script") == parsed.having("link") == parsed.having("iframe") == []
    for _, attributes in parsed.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert attributes.get("href", "#").startswith("#")
    policy = next(meta["content"] for meta in parsed.having("meta") if meta.get("http-equiv"))
    assert "default-src 'none'" in policy


def test_a_hostile_class_name_is_shown_as_it_is(parsed):
    shown = HOSTILE.replace(" %", "\N{NO-BREAK SPACE}%")
    places = {tag for tag, words in parsed.text if shown in words}
    assert {"title", "h1", "li", "b", "p", "dd"} <= places
    assert any(HOSTILE in (image["alt"] or "") for image in parsed.having("img"))
    assert all(set(image) <= {"src", "alt", "class"} for image in parsed.having("img"))


def test_every_chart_is_there_and_says_what_it_is(text, parsed):
    drawings = {svg["id"]: svg for svg in parsed.having("svg") if svg.get("role") == "img"}
    assert list(drawings) == [f"chart-{name}" for name in CHARTS]
    for name, svg in drawings.items():
        assert svg["aria-labelledby"] == f"{name}-title {name}-desc"
        drawn = re.search(rf'<svg [^>]*id="{name}".*?</svg>', text, re.DOTALL)[0]
        assert re.search(rf'<title id="{name}-title">[^<]+</title><desc id="{name}-desc">[^<]+</desc>', drawn)
        labels = re.findall(r'class="label">([^<]+)<', drawn)
        assert len(labels) >= 2, name
        assert "nan" not in drawn.lower()
    assert all(svg.get("role") == "img" or svg.get("aria-hidden") == "true" for svg in parsed.having("svg"))


def test_colours_are_those_of_the_style_sheet_and_never_alone(text):
    body = text[text.index("<body>") :]
    assert not re.search(r'(fill|stroke|color|background)[=:]\s*"?(#|rgb|red|blue)', body)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    for light, dark in (("prefers-color-scheme: dark", "--c1"), ("@media print", "break-inside")):
        assert light in style
        assert dark in style
    assert len({series.dash for series in SERIES}) == len({series.marker for series in SERIES}) == len(SERIES)


def test_the_navigation_leads_somewhere(parsed):
    ids = parsed.ids()
    links = [link["href"][1:] for link in parsed.having("a")]
    assert links == ["metrics", "classes", "reliability", "rejection", "ood", "shift", "images", "latency", "card"]
    assert set(links) <= set(ids)


def test_the_classes_are_a_table_with_intervals_and_a_matrix(evaluated, text, parsed):
    rows = re.findall(r"<tr>(.*?)</tr>", re.search(r'<section id="classes">.*?</section>', text, re.DOTALL)[0])
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    rates, matrix = cells[1:11], cells[12:]
    assert cells[0][3:] == ["sensitivity", "specificity", "PPV", "NPV"]
    for row, one in zip(rates, evaluated.classes.rates, strict=True):
        assert row[1] == f"{one.images}"
        shown = wording.percent(one.ppv.value), wording.interval(one.ppv.low, one.ppv.high, wording.SHARE)
        assert [part.replace("\N{NO-BREAK SPACE}", " ") for part in re.findall(r">([^<]+)<", row[5])] == list(shown)
    counted = [[int(cell.replace("·", "0")) for cell in row[1:]] for row in matrix]
    assert counted == evaluated.classes.confusion.tolist()
    assert any(HOSTILE in (cell.get("title") or "") for cell in parsed.having("td"))


def test_images_have_their_file_names_where_they_are_known(evaluated):
    assert "Images are numbered from 0" in page.render(evaluated)
    named = [dataclasses.replace(one, name=f"{HOSTILE}{one.index}.png") for one in evaluated.most_uncertain]
    shown = page.render(dataclasses.replace(evaluated, most_uncertain=tuple(named), confidently_wrong=()))
    spoken = [words for tag, words in Page(shown).text if tag == "span"]
    assert {one.name.replace(" %", "\N{NO-BREAK SPACE}%") for one in named} <= set(spoken)
    assert "Images are numbered from 0" not in shown


def test_the_answer_comes_first_in_words(evaluated, text):
    found = evaluated.rejection[0].measured
    sentence = (
        f"At uncertainty ≤ 0.30 it accepts {wording.percent(found.coverage)} of the images and is wrong on at most "
        f"{wording.at_most(found.error_bound)} of them (95 % bound)."
    )
    assert summary.headline(evaluated) == sentence
    assert text.index(sentence.replace(" %", "\N{NO-BREAK SPACE}%")) < text.index("<table")


def test_what_is_not_measured_is_not_shown(evaluated):
    plain = dataclasses.replace(evaluated, ood=(), shift=None, latency=None, notes=())
    found = Page(page.render(plain))
    assert [svg["id"][6:] for svg in found.having("svg") if svg.get("role")] == CHARTS[:4]
    assert [link["href"] for link in found.having("a")] == [
        "#metrics",
        "#classes",
        "#reliability",
        "#rejection",
        "#images",
        "#card",
    ]
    single = dataclasses.replace(evaluated, latency=Latency((1,), (2.0,), (3.0,), "CPU"))
    assert "chart-latency" not in [svg.get("id") for svg in Page(page.render(single)).having("svg")]


def test_the_same_evaluation_gives_the_same_page(evaluated, text):
    assert page.render(evaluated) == text


def test_a_thousand_classes_stay_readable(evaluated):
    names = tuple(f"class number {index}" for index in range(1000))
    many = dataclasses.replace(evaluated, metadata=dataclasses.replace(evaluated.metadata, classes=names))
    assert "and 970 more" in page.render(many)


def test_a_promise_is_compared_with_what_was_found(evaluated):
    better, worse = (dataclasses.replace(evaluated.kept, error=error) for error in (0.01, 0.03))
    assert "promises an error of at most 2.0 %" in summary.promise(better)
    assert "these images agree" in summary.promise(better)
    assert "these images have more" in summary.promise(worse)
    nothing = dataclasses.replace(evaluated.kept, error=None)
    assert "None of these images is accepted" in summary.promise(nothing)


@pytest.mark.parametrize("verdict", Calibration)
def test_findings_follow_from_the_two_sided_test_and_not_from_the_uce(evaluated, verdict):
    """A UCE below its twin's is no praise."""
    uce = dataclasses.replace(evaluated.metrics["uce"], value=0.01, twin=0.2, twin_spread=0.01)
    test = CalibrationTest(verdict, 0.001, error=0.17, expected=0.12)
    judged = {kind: dataclasses.replace(one, test=test) for kind, one in evaluated.reliability.items()}
    changed = dataclasses.replace(evaluated, metrics=evaluated.metrics | {"uce": uce}, reliability=judged)
    told = dict(summary.findings(changed))
    for about in ("Confidence", "Uncertainty"):
        assert "error 17.0 %, expected by its probabilities 12.0 %" in told[about]
        assert ("consistent with calibration" in told[about]) == (verdict is Calibration.CONSISTENT)
        assert ("is overconfident" in told[about]) == (verdict is Calibration.OVERCONFIDENT)
        assert ("is underconfident" in told[about]) == (verdict is Calibration.UNDERCONFIDENT)
    assert ("▲" in page.render(changed).partition("T-UCE</th>")[2][:400]) == (verdict is not Calibration.CONSISTENT)


def test_the_last_line_writes_the_same_report_again(digits, call, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "__kwdefaults__", evaluate.__kwdefaults__ | {"resamples": 5})
    monkeypatch.chdir(tmp_path)
    test = digits.dataset.splits["test"]
    shutil.copy(digits.model, "digits.onnx")
    np.savez("test.npz", x=test.images[:60], y=test.labels[:60])
    asked = [
        "digits.onnx", "--data", "test.npz", "--ood", "test.npz", "--reject", "0.123456789", "--corrupt",
        "--corrupt-images", "7", "--samples", "3", "--seed", "2", "--no-latency", "--report", "first.html",
    ]  # fmt: skip
    assert call("evaluate", *asked).code == 0
    first = Path("first.html").read_text(encoding="utf-8")
    program, *again = shlex.split(html.unescape(re.search(r"<footer>.*<code>(.*)</code>", first)[1]))
    assert program == "uce-edge"
    assert call(*again).code == 0
    assert Path("report.html").read_text(encoding="utf-8") == first


def test_a_file_with_baked_passes_is_reported_with_their_number(digits, tmp_path):
    test = digits.dataset.splits["test"]
    both = [
        evaluate(Model(path, "cpu"), test.images[:80], test.labels[:80], timed=True, resamples=5)
        for path in (port_cases.MODEL, port_cases.baked(tmp_path))
    ]
    plain, fixed = both
    assert fixed.samples == 25
    assert fixed.latency.passes == (25,)
    assert set(fixed.risk_coverage) == {"uncertainty", "confidence", "model_uncertainty"}
    assert fixed.metrics["uce"].value == pytest.approx(plain.metrics["uce"].value, rel=1e-5)
    shown = page.render(fixed)
    assert "25 passes, seed 0" in shown
    assert re.search(r"One image takes [\d.]+ ms at N = 25\.", shown)
    assert "at N = 1." not in shown


def test_a_file_with_baked_passes_is_calibrated_promised_and_reported(call, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "__kwdefaults__", evaluate.__kwdefaults__ | {"resamples": 5})
    new, report = tmp_path / "new.onnx", tmp_path / "r.html"
    fitted = call("calibrate", port_cases.baked(tmp_path), "--data", "digits", "--target-error", 0.1, "--out", new)
    assert fitted.code == 0, fitted.err
    told = call("evaluate", new, "--data", "digits", "--json", "--report", report)
    assert told.code == 0, told.err
    document, shown = json.loads(told.out), report.read_text(encoding="utf-8")
    assert document["samples"] == 25
    assert document["latency"]["passes"] == [25]
    assert document["rejection"][0]["origin"] == "stored"
    assert not any("promise does not hold" in note for note in document["notes"])
    assert "25 passes, seed 0" in shown
    assert "promises an error of at most 10.0" in shown
    assert "fitted at N = 25" in shown


# The pieces.


def test_everything_that_is_not_markup_is_escaped():
    assert element("td", "<b>", Markup("<i>"), None, False, 0, class_="a\"b'") == (
        '<td class="a&quot;b&#x27;">&lt;b&gt;<i>0</td>'
    )
    assert (
        element("line", x1=1.0, x2=2.345, stroke_width=3, id=None) == '<line x1="1" x2="2.35" stroke-width="3"></line>'
    )
    assert element("img", src="a") == '<img src="a">'
    assert join(["<", Markup("<"), "5 %"]) == "&lt;<5\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.03, [0, 0.01, 0.02, 0.03]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-0.4, 0.4, [-0.4, -0.2, 0, 0.2, 0.4]),
    ],
)
def test_ticks_are_round(low, high, wanted):
    assert ticks(low, high) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("values", "wanted"), [([0.034], 0.04), ([1], 1), ([], 1), ([0, float("nan")], 1), ([101], 120)]
)
def test_an_axis_ends_at_a_round_number(values, wanted):
    assert ceiling(values) == pytest.approx(wanted)


def test_a_line_is_interrupted_where_there_is_no_number():
    frame = Frame(0, 0, 100, 100)
    drawn = frame.line([(0, 0), (0.5, float("nan")), (0.6, 1), (1, 1)], SERIES[1])
    assert 'd="M0.0 100.0M60.0 0.0L100.0 0.0"' in drawn
    assert 'stroke-dasharray="7 4"' in drawn
    assert frame.area([(0, float("nan"))], [(0, 0)], "band") == ""


def test_a_bar_with_a_single_image_can_be_seen():
    frame = Frame(0, 0, 100, 100, y_range=(-1, 1))
    up, down = (frame.bar(0, 0.1, 0, share, "bar") for share in (1e-6, -1e-6))
    assert 'y="49" width="8.8" height="1"' in up
    assert 'y="50" width="8.8" height="1"' in down
    assert 'height="0"' in frame.bar(0, 0.1, 0, 0, "bar")


@pytest.mark.parametrize(
    ("value", "plain", "bound"),
    [
        (0.0214, "2.1 %", "2.2 %"),
        (0.02, "2.0 %", "2.0 %"),
        (0.0, "0.0 %", "0.00 %"),
        (0.0001, "< 0.1 %", "0.01 %"),
        (0.9999, "> 99.9 %", "100.0 %"),
        (1.0, "100.0 %", "100.0 %"),
        (None, "–", "–"),
    ],
)
def test_shares_are_not_rounded_to_more_than_was_shown(value, plain, bound):
    assert wording.percent(value) == plain
    assert wording.at_most(value) == bound


def test_numbers_in_words():
    ece, nll = wording.METRICS["ece"], wording.METRICS["nll"]
    assert wording.score(0.0214, ece) == "2.1 %"
    assert wording.score(-0.0214, ece, signed=True) == "−2.1 %"
    assert wording.score(-0.0001, ece, signed=True) == "0.0 %"
    assert wording.score(0.5, nll, signed=True) == "+0.500"
    assert wording.interval(0.01, 0.02, ece) == "1.0 to 2.0 %"
    assert wording.interval(None, 0.02, ece) == "–"
    assert [wording.count(number, "pass") for number in (1, 2, 1000)] == ["1 pass", "2 passes", "1,000 passes"]
    assert [wording.threshold(value) for value in (0.3, 0.1234)] == ["0.30", "0.123"]


@pytest.mark.parametrize(
    ("pixels", "spec"),
    [
        (np.zeros((8, 8, 1), np.uint8), ImageSpec(8, 8, 1)),
        (np.zeros((300, 200, 3), np.uint8), ImageSpec(300, 200, 3)),
        (np.full((8, 8, 1), 300, np.float32), ImageSpec(8, 8, 1, "float32")),
        (np.full((8, 8, 3), 30000, np.float32), ImageSpec(8, 8, 3, "float32", 65535.0)),
    ],
)
def test_pixels_become_small_pictures(pixels, spec):
    import base64
    import io

    from PIL import Image

    kind, data = data_uri(pixels, spec).split(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert max(image.size) <= 160
        values = np.asarray(image)
    wanted = np.clip(pixels.flat[0] / (spec.scale / 255 if spec.dtype == "float32" else 1), 0, 255)
    assert np.abs(values.astype(int) - int(wanted)).max() <= 1


def test_a_legend_without_entries_is_none():
    assert charts.keys([]) is None


# In a browser.

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const wide = [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg"))
      .filter(e => e.getBoundingClientRect().right > root.clientWidth + 0.5).map(e => e.tagName + "." + e.className);
    const drawn = [...page.querySelectorAll("svg[role=img]")].filter(e => e.getBoundingClientRect().height > 100);
    return {width: root.clientWidth, scroll: root.scrollWidth, wide, drawn: drawn.length};
  });
  document.getElementById("found").textContent = JSON.stringify(found);
}, 100));
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")
def test_it_fits_a_phone_and_a_desktop_without_errors(text, tmp_path):
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:800px" srcdoc="{html.escape(text)}"></iframe>'
        for width in (390, 1280)
    )
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(f"<!DOCTYPE html><body>{frames}<pre id=found></pre>{PROBE}", encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=3000",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", wrapper.as_uri(),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("Chromium does not start here")
    answer = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if answer is None or not answer[1]:
        pytest.skip(f"Chromium does not run here: {done.stderr[-300:]}")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    for found, width in zip(json.loads(html.unescape(answer[1])), (390, 1280), strict=True):
        assert found["width"] >= width - 20  # a scroll bar takes some
        assert found["scroll"] <= found["width"]
        assert found["wide"] == []
        assert found["drawn"] == len(CHARTS)

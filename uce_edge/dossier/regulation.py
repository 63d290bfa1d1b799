"""Questions of regulators, and where the dossier answers them.

No legal advice: the page names parts, and judges nothing.
"""

from typing import NamedTuple

MAKER = "the maker"
"""Stands for answers that no file contains."""


class Question(NamedTuple):
    """One question."""

    source: str
    question: str
    answer: str
    """The part of the dossier, or `MAKER` with what is missing."""


_FDA = "FDA, predetermined change control plans"
_ACT = "EU AI Act, article"

QUESTIONS = (
    Question(_FDA, "Which modifications are planned, and how far may they go?", "change control: what may change"),
    Question(
        _FDA, "Which data are used to modify, and which to test?", "data; calibration and test images are disjoint"
    ),
    Question(
        _FDA, "By which protocol is a modification verified, with which acceptance criteria?", "change control: checks"
    ),
    Question(_FDA, "What is the effect of a modification on safety and effectiveness?", f"{MAKER}: impact assessment"),
    Question(
        _FDA, "How are users informed of a modification?", f"{MAKER}: labelling; digests and the log name the file"
    ),
    Question(
        f"{_ACT} 11",
        "What is the intended purpose, and who is responsible?",
        f"{MAKER}: --intended-use states the purpose",
    ),
    Question(f"{_ACT} 11", "How was the system developed, with which tools and third-party parts?", "model; software"),
    Question(f"{_ACT} 11", "Which data was it trained, validated and tested on?", "model: hashes of all splits; data"),
    Question(f"{_ACT} 11", "How does it perform, also for particular groups of persons?", "metrics; subgroups"),
    Question(f"{_ACT} 11", "What are the foreseeable limits and risks?", "limits; risk management is the maker's"),
    Question(f"{_ACT} 12", "Are events recorded automatically over its lifetime?", "log and replay"),
    Question(
        f"{_ACT} 12",
        "Can a recorded decision be traced to input, model and result?",
        "log and replay: digests, seed, outputs",
    ),
    Question(f"{_ACT} 15", "Which accuracy is declared, with which metrics?", "metrics, with 95 % intervals"),
    Question(
        f"{_ACT} 15",
        "How robust is it to errors, faults and inconsistent inputs?",
        "metrics: damage and out-of-distribution images, where measured; limits",
    ),
    Question(f"{_ACT} 15", "Is it protected against unauthorised changes?", "model: digests, signature; verify"),
)

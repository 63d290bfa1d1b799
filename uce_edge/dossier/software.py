"""Software bill of materials in CycloneDX format."""

import importlib.metadata
import re
from collections.abc import Iterator
from typing import Literal

from uce_edge import __version__
from uce_edge.errors import MissingPartError
from uce_edge.metadata import Metadata

_ROOT = "uce-edge"
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_UNSTATED = "not stated"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed() -> list[importlib.metadata.Distribution]:
    """The runtime's packages and all that they need, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [_ROOT, *_RUNTIMES]
    while waiting:
        name = _normal(waiting.pop())
        if name in found:
            continue
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of the other runtime, or of another platform
        found[name] = package
        waiting += _required(package)
    return [found[name] for name in sorted(found)]


def licence_of(package: importlib.metadata.Distribution) -> str:
    """The licence that a package states."""
    fields = package.metadata
    stated = next((fields[name] for name in ("License-Expression", "License") if name in fields), "")
    classifiers = [entry.rsplit(" :: ", 1)[-1] for entry in fields.get_all("Classifier") or () if "License ::" in entry]
    short = stated.strip().splitlines()[:1]
    return short[0] if short and len(short[0]) < 80 else ", ".join(classifiers) or _UNSTATED


def bill_of_materials(
    name: str,
    sha256: str,
    kind: Literal["machine-learning-model", "library"] = "machine-learning-model",
    metadata: Metadata | None = None,
) -> str:
    """The bill of the installed runtime and one file, as JSON.

    Args:
        name: The name of a model file, or of a wheel of this project.
        sha256: Of the file.
        kind: What it is.
        metadata: Of a model file, for its licence and that of the published weights it started from.

    Raises:
        MissingPartError: cyclonedx-python-lib is not installed.
    """
    try:
        from cyclonedx.contrib.license.factories import LicenseFactory
        from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
        from cyclonedx.model.bom import Bom
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
        from packageurl import PackageURL
    except ImportError:
        raise MissingPartError("A dossier", "cyclonedx-python-lib", "dossier") from None
    licences, bill = LicenseFactory(), Bom()

    def digest(value: str) -> list[HashType]:
        return [HashType(alg=HashAlgorithm.SHA_256, content=value)]

    subject = Component(name=name, type=ComponentType(kind), hashes=digest(sha256), bom_ref="subject")
    bill.metadata.component = subject
    parts: dict[str, Component] = {}
    started_from = []
    if metadata is not None:
        stated = metadata.card.get("licence")
        subject.licenses.add(licences.make_from_string(str(stated) if stated else _UNSTATED))
        weights = metadata.pretrained
        if weights is not None:
            page = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(weights.source))
            published = Component(
                name=weights.name,
                type=ComponentType.MACHINE_LEARNING_MODEL,
                licenses=[licences.make_from_string(weights.licence or _UNSTATED)],
                hashes=digest(weights.sha256),
                external_references=[page],
                bom_ref="pretrained-weights",
            )
            bill.components.add(published)
            started_from.append(published)
    for package in installed():
        name = _normal(package.metadata["Name"])
        parts[name] = Component(
            name=name,
            version=package.version,
            type=ComponentType.LIBRARY,
            licenses=[licences.make_from_string(licence_of(package))],
            purl=PackageURL("pypi", name=name, version=package.version),
            bom_ref=name,
        )
        bill.components.add(parts[name])
    if _ROOT not in parts:  # run from a checkout
        parts[_ROOT] = Component(name=_ROOT, version=__version__, type=ComponentType.LIBRARY, bom_ref=_ROOT)
        bill.components.add(parts[_ROOT])
    bill.register_dependency(
        subject, [parts[_ROOT], *(parts[name] for name in _RUNTIMES if name in parts), *started_from]
    )
    for package in installed():
        needed = [parts[name] for name in map(_normal, _required(package)) if name in parts]
        bill.register_dependency(parts[_normal(package.metadata["Name"])], needed)
    return JsonV1Dot6(bill).output_as_string(indent=2)


def _required(package: importlib.metadata.Distribution) -> Iterator[str]:
    """The names of the packages that one needs, without its extras."""
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        found = _NAME.match(requirement)
        if found and "extra" not in marker:
            yield found[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

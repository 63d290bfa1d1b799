"""Verify a published model file on this computer, and sign one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from uce_edge.errors import IntegrityError, UceEdgeError
from uce_edge.integrity import signing, verification
from uce_edge.integrity.digests import Digests
from uce_edge.integrity.self_test import SelfTest
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.model import Model


@dataclass(frozen=True)
class Verified:
    """The checks that a file has passed; a failed check raises an error."""

    file: str
    digests: Digests | None
    """The digests that were compared."""
    description: bool
    """Whether the description beside the file was compared, too."""
    self_test: SelfTest | None
    signed: list[str] | None
    """The files that the signature covers; None without a key."""


def verify_model(path: Path, key: Path | None = None, device: str = Device.CPU) -> Verified:
    """Compare a model file with its digests, its description and its probe answers.

    Args:
        path: The model file.
        key: A public key, to check the signature with.
        device: Where to run the self-test.

    Raises:
        IntegrityError: The file was changed, or stores nothing to compare with.
        UceEdgeError: The self-test failed.
    """
    signed = None if key is None else signing.verify(path, key)
    model = Model(path, device)
    if model.digests is None and signed is None:
        raise IntegrityError(
            f"{path} has no digests: it was written before digests existed, so changes cannot be detected. Export or "
            "calibrate it again.",
            "digest.missing",
            path=path,
        )
    _check_signed(signed, path, model.sha256)
    description = verification.check_description(path, model.metadata)
    _check_signed(signed, path.with_suffix(".json"), description)
    tested = model.self_test()
    if tested is not None and not tested.passed:
        message = f"{tested.sentence(str(path))} Do not use it here."
        raise UceEdgeError(message, "model.self-test-failed", path=path)
    files = None if signed is None else [file.name for file in signed]
    return Verified(str(path), model.digests, description is not None, tested, files)


def _check_signed(signed: Mapping[Path, str] | None, file: Path, digest: str | None) -> None:
    if signed is not None and digest not in (None, signed.get(file)):
        message = f"{file} was replaced after its signature was checked. Do not use it."
        raise IntegrityError(message, "model.replaced", path=file)


def sign_model(path: Path, key: Path) -> tuple[Path, list[Path]]:
    """Check a model file and the files beside it, and sign them.

    Args:
        path: The model file.
        key: The private key.

    Returns:
        The signature, and the files that it covers.

    Raises:
        IntegrityError: A file is damaged, or does not belong to the model.
    """
    files = signing.covered(path)
    description = path.with_suffix(".json")
    models = {file: Model(file, "cpu") for file in files if file != description}
    metadata = models[path].metadata
    checked = {file: model.sha256 for file, model in models.items()}
    digest = verification.check_description(path, metadata)
    if digest is not None:
        checked[description] = digest
    elif description in files and metadata.digests is not None:
        message = f"{description} is not the description of {path}. Write it again, or remove it."
        raise IntegrityError(message, "description.mismatch", path=description)
    for file, model in models.items():
        unchecked = metadata.digests is not None and model.digests is None
        if unchecked or replace(model.metadata, digests=None) != replace(metadata, digests=None):
            message = f"{file} is not known to be the model in {path}. Write it again, or remove it."
            raise IntegrityError(message, "model.mismatch", path=file)
    return signing.sign(path, key, checked), files

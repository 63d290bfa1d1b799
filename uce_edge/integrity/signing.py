"""Sign and verify model files with the OpenSSF's model-signing.

A signature covers the model, its description NAME.json, and NAME.ort, as far as they exist. It is a Sigstore bundle,
which `model_signing verify` also reads.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uce_edge._util.atomic_files import replacing
from uce_edge.errors import IntegrityError, MissingPartError, UceEdgeError, UsageError, expected
from uce_edge.integrity.digests import of_file
from uce_edge.integrity.verification import read, read_again

_COVERED = (".onnx", ".json", ".ort")
_LARGEST = 2**20
"""The largest key or signature in bytes; they have some thousands."""


def signature_of(model: Path) -> Path:
    """The path of a file's signature."""
    return model.with_suffix(".sig")


def covered(model: Path) -> list[Path]:
    """The files that a signature covers.

    Raises:
        UsageError: It does not cover the file itself.
    """
    if model.suffix not in (".onnx", ".ort"):
        rule = "a file name ending in .onnx or .ort, which a signature covers"
        raise UsageError(expected("`model`", rule, str(model), "Give the file its name again"))
    return [path for suffix in _COVERED if (path := model.with_suffix(suffix)) == model or _is_file(path)]


def sign(model: Path, private_key: Path, checked: Mapping[Path, str]) -> Path:
    """Write NAME.sig beside a model file.

    Args:
        model: The file.
        checked: SHA-256 of the checked files: no other content is signed.
        private_key: An elliptic-curve key (P-256, P-384 or P-521) as PEM, without a password.

    Returns:
        The signature.
    """
    signing = _package().signing
    files = covered(model)
    _need_key(private_key, "private")
    try:
        signer = signing.Config().use_elliptic_key_signer(private_key=private_key)
    except Exception as error:  # cryptography raises a class of its own per failure
        raise _unusable(private_key, "private", error) from None
    signature = signature_of(model)
    contents = {path: read_again(path, checked[path]) if path in checked else read(path) for path in files}
    with _alone(contents) as folder, replacing(signature) as temporary:
        signer.sign(folder, temporary)
    return signature


def verify(model: Path, public_key: Path) -> dict[Path, str]:
    """Reject a model file without a valid signature.

    Args:
        model: The file.
        public_key: The public key as PEM.

    Returns:
        The files that were signed, and the SHA-256 of each.

    Raises:
        IntegrityError: The signature is missing or invalid.
    """
    verifying = _package().verifying
    contents, signature = {path: read(path) for path in covered(model)}, signature_of(model)
    _need_key(public_key, "public")
    if not _is_file(signature):
        raise IntegrityError(
            f"{model} has no signature: there is no {signature}. Its maker writes one with: uce-edge sign {model} "
            "--key private.pem",
            "signature.missing",
        )
    if signature.stat().st_size > _LARGEST:
        raise IntegrityError(f"{signature} is too large for a signature. Do not use {model}.", "signature.invalid")
    try:
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    except Exception as error:
        raise _unusable(public_key, "public", error) from None
    with _alone(contents) as folder:
        try:
            verifier.verify(folder, signature)
        except Exception as error:  # each failure has its own class
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            names = " and ".join(path.name for path in contents)
            raise IntegrityError(
                f"{signature} is not a signature of {names} by the owner of {public_key} ({reason}). Do not use them.",
                "signature.invalid",
            ) from None
    return {path: of_file(content) for path, content in contents.items()}


def _package() -> Any:
    try:
        import model_signing
        import model_signing.signing
        import model_signing.verifying
    except ImportError:
        raise MissingPartError("A signature", "model-signing", "sign") from None
    return model_signing


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for a name that is too long


def _need_key(key: Path, kind: str) -> None:
    if not _is_file(key):
        raise UsageError(
            f"There is no key {key}. Make a pair with: openssl ecparam -name prime256v1 -genkey -noout -out "
            "private.pem && openssl ec -in private.pem -pubout -out public.pem",
            "key.missing",
        )
    if key.stat().st_size > _LARGEST:
        raise _unusable(key, kind, ValueError("it is too large"))


def _unusable(key: Path, kind: str, error: Exception) -> UceEdgeError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UsageError(
        f"{key} is not a {kind} elliptic-curve key without a password, as PEM ({reason}). See docs/reliability.md",
        "key.unusable",
    )


@contextmanager
def _alone(contents: Mapping[Path, bytes]) -> Iterator[Path]:
    """A folder with copies of these files alone.

    model-signing signs folders.
    """
    with tempfile.TemporaryDirectory() as folder:
        for path, content in contents.items():
            (Path(folder) / path.name).write_bytes(content)
        yield Path(folder)

"""A signature tells who made a model file, and whether anybody changed it since. The keys are real."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, Call

pytest.importorskip("model_signing", reason="model-signing is not installed: pip install 'uce-edge[sign]'")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from helpers.errors import raises

from uce_edge.integrity import signing
from uce_edge.models import bundled

PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN)


@pytest.fixture
def signed(tmp_path: Path, call: Call) -> Path:
    """A model and its description, signed; the keys lie beside them."""
    for name in ("private", "other"):
        key = ec.generate_private_key(ec.SECP256R1())
        (tmp_path / f"{name}.pem").write_bytes(private_pem(key))
        public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / f"{name}-public.pem").write_bytes(public)
    model = tmp_path / "m.onnx"
    for suffix in (".onnx", ".json"):
        shutil.copy(GOLDEN / f"digits-mc{suffix}", model.with_suffix(suffix))
    printed = call("sign", model, "--key", tmp_path / "private.pem")
    assert (printed.code, printed.out) == (0, "")
    assert signing.signature_of(model).is_file()
    return model


def test_the_owner_of_the_key_is_known(signed: Path, call: Call) -> None:
    printed = call("verify", signed, "--key", signed.with_name("private-public.pem"))
    assert printed.code == 0, printed.err
    assert "covers m.onnx, m.json" in printed.out


@pytest.mark.parametrize("suffix", [".onnx", ".json", ".sig"])
def test_a_changed_file_is_refused(signed: Path, call: Call, suffix: str) -> None:
    changed = signed.with_suffix(suffix)
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    printed = call("verify", signed, "--key", signed.with_name("private-public.pem"))
    assert printed.code == 1
    assert printed.err.count("\n") == 1
    with raises("signature.invalid"):
        signing.verify(signed, signed.with_name("private-public.pem"))


def test_another_key_is_refused(signed: Path) -> None:
    with raises("signature.invalid"):
        signing.verify(signed, signed.with_name("other-public.pem"))


@pytest.mark.parametrize("suffix", [".json", ".ort"])
def test_a_file_that_went_away_or_was_added_is_refused(signed: Path, suffix: str) -> None:
    file = signed.with_suffix(suffix)
    if file.exists():
        file.unlink()
    else:
        file.write_bytes(b"not signed")
    with raises("signature.invalid"):
        signing.verify(signed, signed.with_name("private-public.pem"))


def test_what_is_missing_is_named(signed: Path, call: Call) -> None:
    signed.with_suffix(".sig").unlink()
    assert call("verify", signed, "--key", signed.with_name("private-public.pem")).code == 1
    with raises("signature.missing"):
        signing.verify(signed, signed.with_name("private-public.pem"))
    assert call("sign", signed, "--key", signed.with_name("nothing.pem")).code == 2
    with raises("key.missing"):
        signing.sign(signed, signed.with_name("nothing.pem"), {})


def test_a_key_of_another_kind_is_refused(signed: Path, call: Call) -> None:
    wrong = signed.with_name("rsa.pem")
    wrong.write_bytes(private_pem(rsa.generate_private_key(65537, 2048)))
    for key in (wrong, signed, signed.with_name("private-public.pem")):
        assert call("sign", signed, "--key", key).code == 2
        with raises("key.unusable"):
            signing.sign(signed, key, {})
    assert call("verify", signed, "--key", signed.with_name("private.pem")).code == 2
    with raises("key.unusable"):
        signing.verify(signed, signed.with_name("private.pem"))


def test_a_damaged_file_is_not_signed(signed: Path, call: Call) -> None:
    signed.write_bytes(signed.read_bytes()[:5000])
    before = signed.with_suffix(".sig").read_bytes()
    assert call("sign", signed, "--key", signed.with_name("private.pem")).code == 1
    assert signed.with_suffix(".sig").read_bytes() == before


def test_a_file_that_no_signature_covers_is_refused(signed: Path, call: Call) -> None:
    """Its neighbour m.onnx is signed, and it is another file."""
    stranger = Path(shutil.copy(GOLDEN / "digits-moments.onnx", signed.with_suffix(".bin")))
    assert call("verify", stranger, "--key", signed.with_name("private-public.pem")).code == 2
    assert call("sign", stranger, "--key", signed.with_name("private.pem")).code == 2


def test_a_file_that_is_swapped_after_its_signature_was_checked_is_refused(
    signed: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = signing.verify

    def swapping(*args: Path) -> dict[Path, str]:
        found = verify(*args)
        for suffix in (".onnx", ".json"):
            shutil.copy(GOLDEN / f"digits-moments{suffix}", signed.with_suffix(suffix))
        return found

    monkeypatch.setattr(signing, "verify", swapping)
    printed = call("verify", signed, "--key", signed.with_name("private-public.pem"))
    assert printed.code == 1
    assert "replaced" in printed.err


def test_a_file_that_is_swapped_after_it_was_checked_is_not_signed(
    signed: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, sign = signed.with_suffix(".sig").read_bytes(), signing.sign

    def swapped(*args: Any) -> Path:
        shutil.copy(GOLDEN / "digits-moments.onnx", signed)
        return sign(*args)

    monkeypatch.setattr(signing, "sign", swapped)
    assert call("sign", signed, "--key", signed.with_name("private.pem")).code == 1
    assert signed.with_suffix(".sig").read_bytes() == before


@pytest.mark.parametrize("what", ["another model", "text", "another description"])
def test_a_foreign_file_is_not_signed_along(tmp_path: Path, call: Call, what: str) -> None:
    model, key = tmp_path / "m.onnx", tmp_path / "private.pem"
    key.write_bytes(private_pem(ec.generate_private_key(ec.SECP256R1())))
    shutil.copy(bundled(name="cifar10"), model)
    if what == "another model":
        shutil.copy(bundled("mc", "cifar10"), tmp_path / "m.ort")
    elif what == "text":
        (tmp_path / "m.json").write_text("text")
    else:
        shutil.copy(bundled("mc", "cifar10").with_suffix(".json"), tmp_path / "m.json")
    assert call("sign", model, "--key", key).code == 1
    assert not model.with_suffix(".sig").exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "huge", "deep", "empty", "object", "bytes"])
def test_an_odd_signature_is_refused_with_a_sentence(signed: Path, call: Call, kind: str) -> None:
    signature = signed.with_suffix(".sig")
    signature.unlink()
    contents = {"deep": b"[" * 100_000, "empty": b"", "object": b"{}", "bytes": b"\xff\xfe\x00"}
    if kind == "pipe":
        os.mkfifo(signature)
    elif kind == "folder":
        signature.mkdir()
    elif kind == "huge":
        with signature.open("wb") as file:
            file.truncate(5 << 30)
    else:
        signature.write_bytes(contents[kind])
    printed = call("verify", signed, "--key", signed.with_name("private-public.pem"))
    assert (printed.code, printed.out) == (1, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1

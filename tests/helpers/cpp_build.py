"""The C and C++ examples, built once for all modules of tests that import the fixture `build`."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

CPP = ROOT / "examples" / "cpp"
HEADERS = Path(os.environ.get("ONNXRUNTIME_INCLUDE", ROOT / "build" / "onnxruntime" / "include"))
_COMPILERS = {"c": ("CC", "cc", "gcc", "clang"), "c++": ("CXX", "c++", "g++", "clang++")}
_built: list[Path] = []


def _library() -> Path | None:
    """The shared library that is inside the Python wheel, unless the environment names another."""
    given = os.environ.get("ONNXRUNTIME_LIBRARY")
    spec = importlib.util.find_spec("onnxruntime")
    folder = Path(spec.origin).parent / "capi" if spec and spec.origin else Path()
    return Path(given) if given else next(iter(sorted(folder.glob("libonnxruntime.so.*"))), None)


def _compiler(language: str) -> str | None:
    variable, usual, *others = _COMPILERS[language]
    return next(filter(None, map(shutil.which, (os.environ.get(variable, usual), *others))), None)


def compiled(language: str, result: Path, *words: object) -> Path:
    """What a compiler makes of these words; it may not say anything."""
    said = subprocess.run(
        [str(word) for word in (_compiler(language), *words, "-o", result)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    return result


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the examples were built as their README says."""
    library = _library()
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    for language in _COMPILERS:
        if _compiler(language) is None:
            pytest.skip(f"there is no {language} compiler")
    if not (HEADERS / "onnxruntime_c_api.h").is_file():
        pytest.skip("ONNX Runtime's headers are absent: run examples/cpp/get-headers.sh")
    if library is None:
        pytest.skip("the onnxruntime wheel has no shared library to link with")
    if not _built:
        folder = tmp_path_factory.mktemp("cpp")
        options = [f"-DONNXRUNTIME_INCLUDE={HEADERS}", f"-DONNXRUNTIME_LIBRARY={library}"]
        for step in (["-S", CPP, "-B", folder, *options], ["--build", folder]):
            said = subprocess.run(["cmake", *map(str, step)], capture_output=True, text=True, check=False)
            assert said.returncode == 0, said.stdout + said.stderr
        _built.append(folder)
    return _built[0]

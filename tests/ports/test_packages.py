"""What would be published: the npm package, and the wheel and the source archive of the page."""

import json
import shutil
import subprocess
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from conftest import ROOT

import uce_edge

NODE, WEB = ROOT / "examples" / "node", ROOT / "examples" / "web"


def test_the_npm_package_has_what_it_imports_and_nothing_else() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    words = [npm, "pack", "--dry-run", "--json", "--ignore-scripts"]
    done = subprocess.run(words, cwd=NODE, capture_output=True, text=True, check=True)
    (packed,) = json.loads(done.stdout)
    assert (packed["name"], packed["version"]) == ("uce-edge", uce_edge.__version__)
    modules = {path.name for path in NODE.glob("*.mjs")}
    assert {file["path"] for file in packed["files"]} == modules | {"package.json", "README.md", "LICENSE"}
    package = json.loads((NODE / "package.json").read_text())
    assert "private" not in package
    assert {Path(path).name for path in (*package["exports"].values(), *package["bin"].values())} <= modules
    assert (NODE / "index.mjs").read_text().startswith("#!/usr/bin/env node\n")


@pytest.fixture(scope="module")
def built() -> Path:
    folder = ROOT / "build" / "web"
    if not list(folder.glob(f"uce_edge_web-{uce_edge.__version__}*.whl")):
        pytest.skip("the page is not built: python -m build --outdir build/web examples/web")
    return folder


def test_the_wheel_of_the_page_has_all_of_it_and_both_licences(built: Path) -> None:
    name = f"uce_edge_web-{uce_edge.__version__}"
    with zipfile.ZipFile(built / f"{name}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        metadata = Parser().parsestr(wheel.read(f"{name}.dist-info/METADATA").decode())
    page = {f"uce_edge_web/{path.name}" for path in (WEB / "uce_edge_web").iterdir() if path.is_file()}
    assert page <= names
    vendored = {name for name in names if name.startswith("uce_edge_web/vendor/")}
    assert len([name for name in vendored if name.endswith(".wasm")]) == 2
    assert metadata["License-Expression"] == "MIT"
    licences = {"LICENSE", "uce_edge_web/ONNXRUNTIME-LICENSE.txt"}
    assert set(metadata.get_all("License-File")) == licences
    assert {f"{name}.dist-info/licenses/{licence}" for licence in licences} <= names
    assert metadata.get_all("Requires-Dist") is None


def test_the_source_of_the_page_can_be_built_again(built: Path) -> None:
    name = f"uce_edge_web-{uce_edge.__version__}"
    with tarfile.open(built / f"{name}.tar.gz") as source:
        names = {member.removeprefix(f"{name}/") for member in source.getnames()}
    assert {"LICENSE", "README.md", "fetch.py", "hatch_build.py", "pyproject.toml"} <= names
    assert not [member for member in names if member.startswith("uce_edge_web/vendor")]

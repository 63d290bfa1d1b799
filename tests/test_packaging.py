"""What the packages show to somebody who imports or installs them."""

import ast
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from conftest import GOLDEN, ROOT

import uce_edge
import uce_edge_export
import uce_edge_train

PACKAGES = [uce_edge, uce_edge_export, uce_edge_train]
INNER = [
    importlib.import_module(f"uce_edge.{name}")
    for name in ("calibration", "datasets", "evaluation", "metrics", "models", "output.report")
]


def clean(code: str) -> "subprocess.CompletedProcess[str]":
    """Run code in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", [*PACKAGES, *INNER], ids=lambda package: package.__name__)
def test_every_public_name_is_listed_resolves_and_is_described(package: types.ModuleType) -> None:
    assert list(package.__all__) == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        assert not callable(value) or inspect.getdoc(value), name
    star: dict[str, object] = {}
    exec(f"from {package.__name__} import *", star)
    assert set(package.__all__) <= set(star)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_name_that_is_not_there_is_an_ordinary_attribute_error(package: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'nonsense'"):
        _ = package.nonsense


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_importing_a_package_imports_nothing_heavy(package: types.ModuleType) -> None:
    heavy = "{'numpy', 'onnxruntime', 'torch', 'onnx', 'PIL'}"
    assert clean(f"import sys, {package.__name__}; print({heavy} & {{*sys.modules}})").stdout == "set()\n"


def test_a_public_name_that_needs_torch_names_the_command_that_installs_it() -> None:
    for statement in ("from uce_edge_train import gaussianize", "from uce_edge_export import export_module"):
        done = clean(f"import sys; sys.modules['torch'] = None; {statement}")
        assert done.returncode == 1
        assert 'needs torch, which is not installed. Run: pip install "uce-edge[' in done.stderr


def test_a_function_stays_itself_when_its_module_has_been_imported() -> None:
    code = "import {0}.{1}; from {0} import {2}; assert callable({2}), {2}"
    names = (
        ("uce_edge_train", "calibration", "calibrate"),
        ("uce_edge_train", "loop.training", "train"),
        ("uce_edge_export", "recalibration", "recalibrate"),
    )
    done = clean("\n".join(code.format(*one) for one in names))  # one process: torch is slow to import
    assert done.returncode == 0, done.stderr


def test_errors_are_one_family_and_warnings_another() -> None:
    for name in uce_edge.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(uce_edge, name), uce_edge.UceEdgeError), name
        if name.endswith("Warning"):
            assert issubclass(getattr(uce_edge, name), uce_edge.UceEdgeWarning), name


def test_load_gives_a_bundled_model_or_a_file() -> None:
    assert uce_edge.load(device="cpu").metadata.inference == "deterministic"
    assert uce_edge.load("cifar10", "cpu").metadata.inference == "moments"
    assert uce_edge.load("cifar10", "cpu", inference="mc").metadata.inference == "mc"
    path = GOLDEN / "digits-mc.onnx"
    for given in (path, str(path)):
        assert uce_edge.load(given, "cpu", threads=1).path == str(path)
    with pytest.raises(uce_edge.UsageError, match="`inference` to be mc or moments for cifar10, the bundled model"):
        uce_edge.load("cifar10", inference="deterministic")
    with pytest.raises(uce_edge.ModelFileError, match=r"There is no model file momments"):
        uce_edge.load("momments")


def test_the_library_prints_nothing() -> None:
    for package in PACKAGES:
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            if "cli" in path.parts:
                continue
            # A module that is run as a program of its own prints at its end.
            body = [node for node in ast.parse(path.read_text()).body if not _runs_as_a_program(node)]
            calls = [node for top in body for node in ast.walk(top) if isinstance(node, ast.Call)]
            assert not [call.lineno for call in calls if ast.unparse(call.func) == "print"], path


def _runs_as_a_program(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def test_the_version_is_the_same_everywhere() -> None:
    version = uce_edge.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "web" not in project["optional-dependencies"]  # there is no uce-edge-web on PyPI
    assert tomllib.loads((ROOT / "examples" / "web" / "pyproject.toml").read_text())["project"]["version"] == version
    assert json.loads((ROOT / "examples" / "node" / "package.json").read_text())["version"] == version
    lock = json.loads((ROOT / "examples" / "node" / "package-lock.json").read_text())
    assert (lock["version"], lock["packages"][""]["version"]) == (version, version)
    assert ElementTree.parse(ROOT / "examples" / "ros2" / "package.xml").findtext("version") == version
    assert f'version="{version}"' in (ROOT / "examples" / "ros2" / "setup.py").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    released = f"{version} ({citation['date-released']})"
    assert f"\n## {released}\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("package", ["node", "web"])
def test_what_is_published_on_its_own_has_the_licence(package: str) -> None:
    assert (ROOT / "examples" / package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_licences_of_the_bundled_weights_are_in_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    licences = {"LICENSE", "LICENSE-APACHE-2.0", "NOTICE"}
    assert set(project["project"]["license-files"]) == licences
    assert licences <= set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert "Apache License" in (ROOT / "LICENSE-APACHE-2.0").read_text()
    notice = (ROOT / "NOTICE").read_text()
    for name in uce_edge.models.names():
        for file in (uce_edge.models.bundled(kind, name) for kind in uce_edge.models.kinds(name)):
            licence = json.loads(file.with_suffix(".json").read_text())["card"]["licence"]
            assert file.name in notice or ("Apache" not in licence and "CC BY" not in licence), file.name
    assert licences <= set(_copied())  # the build stops without them


def test_the_container_is_built_from_what_its_ignore_file_admits() -> None:
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [source for source in _copied() if source not in admitted or not (ROOT / source).exists()] == []


def _copied() -> list[str]:
    """What the Dockerfile copies from the source tree."""
    lines = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return [word for line in lines for word in line.split()]


def test_the_workflows_run_what_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert {"lint", "test", "ports", "runtimes", "minimal", "wheel"} <= set(workflow["jobs"])
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    words = [command.split()[1:] for command in commands if command.startswith("make ")]
    asked = {word for line in words for word in line if "=" not in word}
    assert asked <= targets
    assert {"lint", "test-ports", "test-runtimes", "test-minimal", "wheel-check"} <= asked


def test_every_job_that_installs_torch_takes_the_build_without_cuda() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["env"]["PIP_EXTRA_INDEX_URL"] == "https://download.pytorch.org/whl/cpu"


@pytest.mark.skipif(sys.platform == "win32", reason="CI prints the notes on Linux")
def test_a_release_has_the_notes_of_its_version_and_goes_to_pypi_without_a_password() -> None:
    def notes(version: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "one/two"}
        script = ["bash", ROOT / ".ci" / "release-notes", version]
        return subprocess.run(script, capture_output=True, text=True, check=False, env=environment)

    written = (ROOT / "CHANGELOG.md").read_text()
    printed = notes(uce_edge.__version__).stdout
    assert "**What you may have to change**" in printed
    assert "\n## " not in printed
    assert len(printed) < len(written) / 2
    assert "](docs/" not in printed
    assert f"](https://github.com/one/two/blob/v{uce_edge.__version__}/docs/" in printed
    assert notes("9.9.9").returncode == 1
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["pypi"]
    assert (job["needs"], job["environment"], job["permissions"]) == (["release"], "pypi", {"id-token": "write"})


SETTINGS = [".pre-commit-config.yaml", ".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/idea.yml"]


@pytest.mark.parametrize("name", SETTINGS)
def test_other_settings_of_the_repository_can_be_read(name: str) -> None:
    settings = yaml.safe_load((ROOT / name).read_text())
    hooks = [hook["id"] for repository in settings.get("repos", []) for hook in repository["hooks"]]
    assert hooks == ["ruff", "ruff-format", "mypy"] or {"name", "description", "body"} <= set(settings)


def test_ci_runs_lint_tests_ports_the_wheel_and_the_site() -> None:
    lines = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert lines == ["lint", "test", "test-ports", "wheel-check", "docs"]
    makefile = (ROOT / "Makefile").read_text()
    assert "UCE_EDGE_PORTS=required" in makefile
    assert "mkdocs build --quiet" not in makefile  # strict mode would count no warnings: dead links would pass
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["strict"] is True


@pytest.mark.parametrize(
    "where", ["pytestmark = pytest.mark.skip('absent')", "pytest.skip('absent', allow_module_level=True)"]
)
def test_a_skipped_port_is_a_failure_where_ports_are_required(where: str, tmp_path: Path) -> None:
    (tmp_path / "tests" / "ports").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "ports" / "test_port.py").write_text(f"import pytest\n{where}\ndef test_port(): pass\n")
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "export", "train"))

    def status(required: str) -> int:
        environment = os.environ | {"PYTHONPATH": paths, "UCE_EDGE_PORTS": required}
        command = [sys.executable, "-m", "pytest", "--rootdir", tmp_path, "tests"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode

    assert status("") in (0, 5)  # 5: nothing but skips
    assert status("required") in (1, 2)  # 2: a module could not be collected

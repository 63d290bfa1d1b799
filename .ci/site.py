"""What the site has beside docs/: the README as its first page, an API page per package, and live examples.

MkDocs calls these functions (`hooks` of mkdocs.yml). The examples are made by runs of this program while the site is
built: a report, a comparison, and the page for the browser with the bundled model.
"""

import ast
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from uce_edge.models import bundled

ROOT = Path(__file__).resolve().parent.parent
GOLDEN, WEB = ROOT / "tests" / "golden", ROOT / "examples" / "web" / "uce_edge_web"
PACKAGES = {
    "uce_edge": ("uce_edge", "Run a file", "Everything that a program needs to run a model file. No PyTorch."),
    "metrics": ("uce_edge/metrics", "Metrics", "Scores of probabilities, in numpy."),
    "train": ("train/uce_edge_train", "Train", "Training, calibration and export of PyTorch networks."),
    "export": ("export/uce_edge_export", "Export", "From a network or an ONNX file to a model file."),
}
"""API pages: the folder of the package, the title, the first sentence."""
PORTS = ("cpp", "node", "web", "ros2")
SOURCES = {"index.md": "README.md", **{f"ports/{name}.md": f"examples/{name}/README.md" for name in PORTS}}
"""Pages whose source lies elsewhere than in docs/."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in SOURCES.items()} | {"live.md": LIVE}
    for page, (folder, title, lead) in PACKAGES.items():
        module = folder.removeprefix("train/").removeprefix("export/").replace("/", ".")
        names = (f"::: {module}.{name}" for name in public(ROOT / folder))
        made[f"api/{page}.md"] = "\n\n".join([f"# {title}", lead, *names])
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Links between files of the source become links between pages; what is no page is named without a link."""
    here = PurePosixPath(SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent
    pages = {source: name for name, source in SOURCES.items()}

    def moved(found: re.Match[str]) -> str:
        text, link, anchor = found["text"], found["link"], found["anchor"] or ""
        if re.match(r"[a-z]+:", link):
            return found[0]
        target = posixpath.normpath(str(here / link))
        if (ROOT / target).is_dir():
            target = f"{target}/README.md"
        name = pages.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(name) is None:
            if not (ROOT / target).exists() and not (ROOT / str(here / link)).exists():
                raise PluginError(f"{page.file.src_uri} links to {link}, which is not there.")
            return text
        return f"[{text}]({posixpath.relpath(name, str(PurePosixPath(page.file.src_uri).parent))}{anchor})"

    # The README shows pictures of docs/, where it lies itself as a page.
    markdown = markdown.replace("](docs/", "](") if here == PurePosixPath() else markdown
    return re.sub(
        r"(?<!!)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\))|[^\]\[]*)\]\((?P<link>[^)#\s]+)(?P<anchor>#[^)]*)?\)",
        moved,
        markdown,
    )


def public(folder: Path) -> list[str]:
    """The names that a package offers, classes first."""
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    lists = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    if not lists:
        raise PluginError(f"{folder}/__init__.py has no list __all__ for its API page.")
    return [name for name in lists[0] if not name.startswith("__")]


def on_post_build(config: MkDocsConfig) -> None:
    """Make the live examples."""
    live = Path(config.site_dir) / "live"
    live.mkdir(exist_ok=True)
    run("evaluate", GOLDEN / "digits-novelty.onnx", "--data", "digits", "--ood", "far", "--corrupt", "--no-latency",
        "--report", live / "report.html")  # fmt: skip
    compared = [GOLDEN / f"digits-{name}.onnx" for name in ("mc", "moments", "factored", "bernoulli", "laplace")]
    run("compare", *compared, "--data", "digits", "--ood", "far", "--no-latency", "--report", live / "compare.html")
    demo = live / "demo"
    shutil.copytree(WEB, demo, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    if not (demo / "vendor").is_dir():
        raise PluginError("The page needs onnxruntime-web. Run: python examples/web/fetch.py")
    model = bundled()
    shutil.copy(model, demo / "model.onnx")
    (demo / "model.json").write_text(run("info", model, "--json"), encoding="utf-8")


def run(*words: object) -> str:
    """Run the program; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "uce_edge", *map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise PluginError(f"uce-edge {' '.join(map(str, words))} failed:\n{done.stderr}")
    return done.stdout


LIVE = """# What you can try

The program made each of these while this site was built.

- <a href="live/demo/index.html">The model `imagenet` in your browser</a> (10 MB, and ONNX Runtime: 14 MB, or 27 MB with
  WebGPU). Drop a photo or use the camera. Nothing leaves your machine. `uce-edge web` serves the same page.
- <a href="live/report.html">A report</a> of a small model of digits: its metrics on its own images, on
  out-of-distribution images and on damaged images. Made by
  `uce-edge evaluate --data digits --ood far --corrupt --report report.html`.
- <a href="live/compare.html">A comparison</a> of five files: which posterior is best on these images? Made by
  `uce-edge compare a.onnx b.onnx ... --data digits --report compare.html`.
"""

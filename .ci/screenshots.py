"""Draw the pictures of the page: python .ci/screenshots.py docs; in another folder, also those to look at.

It needs a Chromium (bash .ci/tools) and onnxruntime-web (python examples/web/fetch.py).
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
WIDE, PHONE = (1280, 900), (390, 844)
PICTURES = {"web": ("citrus.jpg", WIDE, "light"), "web-ood": ("page.jpg", WIDE, "light")}
"""Those of docs/: the photo, the size of the window, and the colour scheme."""
OTHERS = {
    "phone": ("citrus.jpg", PHONE, "light"),
    "phone-dark": ("bee.jpg", PHONE, "dark"),
    "dark": ("bee.jpg", WIDE, "dark"),
    "ood-dark": ("page.jpg", WIDE, "dark"),
}


def main(folder: Path) -> None:
    """Serve the page with the default model, and draw it."""
    command = [sys.executable, "-m", "uce_edge", "web", "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://\S+", server.stderr.readline() if server.stderr else "")
        assert address
        with sync_playwright() as playwright:
            path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            pictures = PICTURES if folder.resolve() == ROOT / "docs" else PICTURES | OTHERS
            for name, (photo, (width, height), scheme) in pictures.items():
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                _draw(context.new_page(), address[0], photo, folder / f"{name}.png")
                context.close()
    finally:
        server.terminate()


def _draw(page: Any, address: str, photo: str, out: Path) -> None:
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]")
    for _ in range(2):  # the first call of a session takes longer
        page.set_input_files("#file", str(ROOT / "examples" / "images" / photo))
        page.wait_for_selector(f"#answer[data-source='{photo}'][data-complete=true]")
        page.wait_for_timeout(500)
    page.screenshot(path=str(out), full_page=True)
    print(out)


main(Path(*sys.argv[1:]))

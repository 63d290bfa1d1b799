"""The browser's resizing, in Node, on the pixel goldens of files that need no decoder."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

FOLDER = GOLDEN / "pixels"
CASES = [case for case in json.loads((FOLDER / "cases.json").read_text()) if case["file"].endswith(".ppm")]
SCRIPT = """
    const { readFileSync } = await import('node:fs');
    const { resizeRows } = await import(process.argv[1]);
    const bytes = readFileSync(process.argv[2]);
    const [, wide, high] = /^P6\\n(\\d+) (\\d+)\\n255\\n/.exec(bytes.toString('latin1'));
    const [width, height] = [Number(wide), Number(high)];
    const pixels = bytes.subarray(bytes.length - 3 * width * height);
    const answers = JSON.parse(process.argv[3]).map((to) => {
      const read = (top, count) => {
        const rows = pixels.subarray(top * width * 3, (top + count) * width * 3);
        if (to.channels === 3) return rows;
        return Uint8Array.from({ length: rows.length / 3 }, (_, i) =>
          (rows[3 * i] * 19595 + rows[3 * i + 1] * 38470 + rows[3 * i + 2] * 7471 + 0x8000) >> 16);
      };
      return [...resizeRows(read, { width, height, channels: to.channels }, to, { rowsAtOnce: 3 })];
    });
    console.log(JSON.stringify(answers));
"""


def test_the_page_resizes_as_python_does() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    module = (ROOT / "examples" / "web" / "uce_edge_web" / "resize.js").as_uri()
    words = [node, "--input-type=module", "--eval", SCRIPT, module, str(FOLDER / "photo.ppm"), json.dumps(CASES)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert len(CASES) == 6
    for case, found in zip(CASES, json.loads(done.stdout), strict=True):
        expected = np.frombuffer((FOLDER / case["expected"]).read_bytes(), np.uint8)
        np.testing.assert_array_equal(np.array(found), expected, err_msg=case["rule"])

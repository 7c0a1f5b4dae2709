"""The wheel has the built page, and the licences of what is bundled in it."""
from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tinygrad.viz.page import PLACE, template

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_has_the_page_and_its_licences(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="pip install setuptools")
    built = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
                            "--no-index", "-w", str(tmp_path), str(ROOT)], capture_output=True, text=True,
                           timeout=300)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("tinygrad-*.whl")
    with zipfile.ZipFile(wheel) as files:
        for name in ("page.html", "page_licences.txt"):
            shipped = files.read(f"tinygrad/viz/{name}").decode()
            assert shipped == (ROOT / "tinygrad" / "viz" / name).read_text(encoding="utf-8")
        assert any(name.endswith("licenses/LICENSE") for name in files.namelist())


def test_every_package_in_the_page_has_its_licence_beside_it() -> None:
    text = (ROOT / "tinygrad" / "viz" / "page_licences.txt").read_text(encoding="utf-8")
    named = dict(re.findall(r"^(@?[\w./-]+) (\d+\.\d+\.\d+) \(", text, re.MULTILINE))
    locked = json.loads((ROOT / "visualiser" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    asked = json.loads((ROOT / "visualiser" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    assert asked.keys() <= named.keys()
    assert all(locked[f"node_modules/{name}"]["version"] == version for name, version in named.items())
    assert template().count(PLACE) == 1 and "https://" not in template().partition(PLACE)[0].lower().replace(
        "http://www.w3.org", "")

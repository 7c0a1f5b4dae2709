"""Examples with `>>>` in docs/ run and give what the page says; the reference says what docstrings say."""
from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import tinygrad
from docs import make_devices, make_reference
from tinygrad import dtype

FOLDER = Path(__file__).parents[1] / "docs"
PAGES = [path for path in sorted(FOLDER.rglob("*.md")) if ">>>" in path.read_text(encoding="utf-8")]


def names(path: Path) -> dict[str, Any]:
    """What a page of the reference need not import: the library's names. Other pages import what they use."""
    return {**vars(dtype), **vars(tinygrad)} if path.parent == make_reference.FOLDER else {}


def test_there_are_pages_with_examples() -> None:
    assert {"transforms.md", "custom_gradients.md"} <= {path.name for path in PAGES}
    families = {f"{family.page}.md" for family in make_reference.FAMILIES}
    assert {path.name for path in PAGES if path.parent == make_reference.FOLDER} == families


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_the_examples_of_a_page_give_what_it_says(path: Path) -> None:
    # what is printed ends where the block does
    text = path.read_text(encoding="utf-8").replace("\n```\n", "\n\n")
    examples = doctest.DocTestParser().get_doctest(text, names(path), path.name, str(path), 0)
    results = doctest.DocTestRunner().run(examples)
    assert results.attempted > 0 and results.failed == 0


@pytest.mark.parametrize("path", sorted(make_reference.pages()))
def test_a_page_of_the_reference_says_what_the_docstrings_say(path: str) -> None:
    written = (make_reference.FOLDER / path).read_text(encoding="utf-8")
    assert written == make_reference.pages()[path], "docs are out of date: run python docs/make_reference.py"


def test_every_method_of_tensor_is_in_the_reference_once() -> None:
    found = [name for family in make_reference.FAMILIES for name in make_reference.names_of(family)]
    bound = make_reference.bound_names()
    missing = {names[0] for names in bound.values()} - set(found)
    assert not missing and len(found) == len(set(found))


def test_a_cell_of_the_table_of_devices_is_replaced_and_all_else_stays() -> None:
    page = make_devices.PAGE.read_text(encoding="utf-8")
    assert make_devices.with_cells(page, {}) == page
    changed = make_devices.with_cells(page, {("ulp", "CL"): "3 of 4"}).splitlines()
    rows = [(old, new) for old, new in zip(page.splitlines(), changed, strict=True) if old != new]
    assert len(rows) == 1 and rows[0][1].startswith("| `ulp` |") and "| 3 of 4 |" in rows[0][1]


def test_each_family_of_the_table_of_devices_has_its_files() -> None:
    for family in make_devices.FAMILIES:
        assert len(make_devices.files_of(family)) == len(make_devices.FILES.get(family, (family,))), family


def test_a_family_that_takes_too_long_is_counted_until_then(tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test").mkdir()
    tests = "import time\ndef test_a(): pass\ndef test_b(): time.sleep(600)\ndef test_c(): pass\n"
    (tmp_path / "test" / "test_long.py").write_text(tests, encoding="utf-8")
    monkeypatch.setattr(make_devices, "ROOT", tmp_path)
    monkeypatch.setattr(make_devices, "SECONDS", 10)
    assert make_devices.passes("long", "CPU") == "1 of 1 in 10 s"


def test_every_variable_of_the_environment_that_the_library_reads_is_listed() -> None:
    modules = Path(tinygrad.__file__).parent.rglob("*.py")
    code = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    reading = r"getenv\(|environ\.get\(|environ\[|ContextVar\(|AttributeSetting\("
    read = set(re.findall(rf'(?:{reading})"([A-Z_]+)"', code))
    read |= set(re.findall(r'HostCompiler\(\s*"[^"]*", "[^"]*", "([A-Z]+)"', code))
    assert {"DEBUG", "DEV", "CC", "VIZ_FOLDER"} <= read
    listed = set(re.findall(r"`([A-Z_]+)`", (FOLDER / "settings.md").read_text(encoding="utf-8")))
    assert read - {"CI"} <= listed, sorted(read - listed)


def test_the_architecture_fits_what_a_person_reads_at_once() -> None:
    assert len((FOLDER / "architecture.md").read_text(encoding="utf-8").splitlines()) <= 400


def test_the_first_page_can_be_pasted_into_python() -> None:
    """Line by line, an empty line ends what is indented, so none may stand within it."""
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5 and not [block for block in blocks if re.search(r"\n\n[ ]", block)]


HAND_WRITTEN = [path for path in (*FOLDER.parent.glob("*.md"), *FOLDER.rglob("*.md"))
                if path.parent != make_reference.FOLDER]


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: path.name)
def test_the_files_that_a_page_names_are_there(path: Path) -> None:
    """Paths of modules, tests and pages, from the root, the package or a folder of it; also with a `*`."""
    pattern = r"(?<![\w/.$~*-])((?:\w+/)+[\w*]+\.(?:py|md|sh|html))\b"
    named = set(re.findall(pattern, path.read_text(encoding="utf-8")))
    root = FOLDER.parent
    starts = (root, root / "tinygrad", *(root / "tinygrad").glob("*/"))
    assert [name for name in sorted(named) if not any(any(start.glob(name)) for start in starts)
            and not any(path.parent.glob(name))] == []

"""The page in a browser: recordings of three programs, each view visited, clicked, compared with the data."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad.viz.page import MOST_PAGE, html_of, recording_in
from tinygrad.viz.recording import Json

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium: apt-get install chromium", allow_module_level=True)
PROGRAMS = ("mnist", "gpt", "matmul")
VIEWS = ("source", "graph", "kernels", "timeline", "memory", "roofline", "search")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What VIZ=1 writes of each program; they run beside each other."""
    folder = tmp_path_factory.mktemp("recordings")
    started = []
    for name in PROGRAMS:
        environment = {**os.environ, "VIZ": "1", "VIZ_FOLDER": str(folder / name), "CHECK": "0", "DEV": "CPU"}
        if name == "matmul":
            environment.update(BEAM="2", BEAM_SECONDS="3", CACHELEVEL="0")
        started.append(subprocess.Popen([sys.executable, str(Path(__file__).with_name("programs.py")), name],
                                        env=environment, stderr=subprocess.PIPE, text=True))
    found = {}
    for name, program in zip(PROGRAMS, started, strict=True):
        _, said = program.communicate(timeout=300)
        assert program.returncode == 0, said
        path = re.search(r"recording: (.*\.html)", said)
        assert path is not None, said
        found[name] = Path(path[1])
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page; at the end nothing may have been asked of the network, and no error said."""
    problems: list[str] = []
    contexts = []

    def open_page(path: Path, width: int = 1280, dark: bool = False) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900},
                                      color_scheme="dark" if dark else "light")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else
                problems.append(f"asked for {asked.url}"))
        page.goto(path.as_uri())
        page.wait_for_selector("#tab-source")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def keep_picture(page: Any, name: str) -> None:
    """A screenshot, kept where VIZ_PICTURES says."""
    folder = os.getenv("VIZ_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder, f"{name}.png")))


def data_of(path: Path) -> Json:
    return recording_in(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("width, dark", [(1280, False), (390, True)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_view_shows_what_was_recorded(name: str, width: int, dark: bool, pages: dict[str, Path],
                                            opened: Any) -> None:
    data, page = data_of(pages[name]), opened(pages[name], width, dark)
    ran = [k for k in data["kernels"] if k["count"]]
    facts = page.inner_text("#facts")
    assert f"{len(ran)} kernels" in facts
    for view in VIEWS:
        page.click(f"#tab-{view}")
        page.wait_for_selector(f'main[data-view="{view}"]')
        page.wait_for_timeout(60)
        keep_picture(page, f"{name}-{width}-{view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not re.search(r"\b(null|undefined|NaN|Infinity)\b", page.inner_text("main")), view
    page.click("#tab-kernels")
    page.wait_for_selector('main[data-view="kernels"] tbody tr')
    names = page.eval_on_selector_all("tbody tr td:first-child", "cells => cells.map(c => c.textContent)")
    by_time = sorted(data["kernels"], key=lambda k: -k["seconds"])
    assert sorted(names) == sorted(k["name"] for k in data["kernels"])[:500]
    assert names[0] == by_time[0]["name"]
    page.click("#tab-timeline")
    page.wait_for_selector("#event-count")
    assert f"{len(data['events']['start']):,} events" in page.inner_text("#event-count")
    page.click("#tab-memory")
    page.wait_for_selector("#peak")
    shown = re.search(r"Peak ([\d.]+) (k|M|G)?B", page.inner_text("#peak"))
    assert shown is not None
    peak = float(shown[1]) * {"k": 1e3, "M": 1e6, "G": 1e9, None: 1.0}[shown[2]]
    assert peak == pytest.approx(data["memory"]["peak"], rel=0.01)


def test_a_view_begins_at_its_top(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["mnist"], 390)
    page.click("#tab-source")  # where one is already
    page.wait_for_timeout(60)
    assert page.evaluate("scrollY") == 0
    for view in (*VIEWS[1:], VIEWS[0]):
        page.evaluate(f"scrollTo(0, 300); document.querySelector('#tab-{view}').click()")
        page.wait_for_selector(f'main[data-view="{view}"]')
        page.wait_for_timeout(60)
        assert page.evaluate("scrollY") == 0, view


def test_a_phone_shows_names_and_times_of_kernels_side_by_side(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["gpt"], 390)
    page.click("#tab-kernels")
    page.wait_for_selector("tbody tr")
    box = page.query_selector("tbody tr td:nth-child(2)").bounding_box()
    assert box["x"] + box["width"] <= 390


def test_a_phone_shows_times_and_code_of_lines_side_by_side(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["gpt"], 390)
    box = page.query_selector("#source-lines .row.used .text").bounding_box()
    assert box["x"] < 160  # 230 pixels of code, half of its lines' length
    facts, title = (page.query_selector(name).bounding_box() for name in ("#facts", "header h1"))
    assert facts["width"] > 340 and facts["y"] > title["y"]


def test_edges_of_the_node_that_is_chosen_stand_out(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["gpt"])
    page.click("#tab-graph")
    page.click("#by-node")
    page.wait_for_selector("svg.graph .node.chosen")
    node = page.query_selector("svg.graph .node[aria-label^=MUL]")
    node.focus()
    page.keyboard.press("Enter")
    near = page.eval_on_selector_all("svg.graph path.edge.near", "all => all.length")
    edges = page.eval_on_selector_all("svg.graph path.edge", "all => all.length")
    assert 1 < near < edges / 4
    shown = "[...document.querySelectorAll('svg.graph path.edge')].map(e => +getComputedStyle(e).opacity)"
    opacity = page.evaluate(shown)
    assert opacity.count(1) == near and max(o for o in opacity if o < 1) < 0.7


def test_a_line_leads_to_its_kernels_and_their_stages(pages: dict[str, Path], opened: Any) -> None:
    data, page = data_of(pages["mnist"]), opened(pages["mnist"])
    text = next(f["text"] for f in data["files"] if f["path"].endswith("programs.py"))
    line = next(i for i, t in enumerate(text.splitlines(), 1) if "self.conv(x)" in t)
    page.click(f'#source-lines .row[data-line="{line}"]')
    own = {k["name"] for k in data["kernels"] if k["count"] for n in k["lines"]
           if any(f[1] == line and f[0].endswith("programs.py") for f in data["lines"][n]["frames"])}
    listed = page.eval_on_selector_all(".split .card li button", "all => all.map(b => b.textContent)")
    assert listed and set(listed) <= own
    page.click(".split .card li button")
    page.wait_for_selector("#kernel-name")
    number = int(re.search(r"kernel=(\d+)", page.url)[1])  # type: ignore[index]  # the click led there
    kernel = data["kernels"][number]
    assert page.inner_text("#kernel-name") == kernel["name"]
    passes = page.eval_on_selector_all(".passes ol button", "all => all.map(b => b.firstChild.textContent)")
    assert passes == [one["name"] for one in kernel["passes"]]
    for i, one in list(enumerate(kernel["passes"]))[::3]:
        page.click(f'.passes ol button[data-pass="{i}"]')
        page.wait_for_selector(f'.passes ol button[data-pass="{i}"][aria-current="true"]')
        if one["after"] is None:
            continue
        before, after = (below(kernel["nodes"], one[side]) for side in ("before", "after"))
        gone, new, stay = len(before - after), len(after - before), len(after & before)
        assert page.inner_text("#difference") == f"{gone:,} nodes gone, {new:,} new, {stay:,} stay"
        drawn = page.eval_on_selector_all("svg.graph .node.added", "all => all.length")
        assert drawn == len(after - before) or len(after) > 700
    page.click("#part-nest")
    page.wait_for_selector("#nest")
    assert page.inner_text("#nest").strip() == kernel["nest"].strip()
    page.click("#part-plan")
    page.wait_for_selector("#opts")
    assert page.eval_on_selector_all("#opts code", "all => all.map(c => c.textContent)") == kernel["opts"]
    page.click("#part-program")
    page.wait_for_selector("#program")
    assert page.inner_text("#program").strip() == kernel["program"].strip()
    page.click("#part-code")
    page.wait_for_selector("#generated")
    assert page.inner_text("#generated").strip() == kernel["source"].strip()
    if "assembly" in kernel:
        assert page.inner_text("#assembly").split() == kernel["assembly"].split()
    else:  # a machine with no time for it
        assert any("machine code" in note for note in data["notes"])
        assert "there was no time for it" in page.inner_text("#no-assembly")


def test_a_kernel_says_why_it_is_slow(pages: dict[str, Path], opened: Any) -> None:
    data, page = data_of(pages["gpt"]), opened(pages["gpt"])
    page.click("#tab-kernels")
    page.click('main[data-view="kernels"] tbody tr')
    page.wait_for_selector("#verdict")
    kernel = max(data["kernels"], key=lambda k: k["seconds"])
    limits = data["limits"][kernel["device"]]
    said = page.inner_text("#verdict")
    arithmetic = kernel["operations"] / limits["gflops"]
    memory = kernel["bytes"] / max(limits["read_gbs"], limits["copy_gbs"])
    assert f"{'arithmetic' if arithmetic > memory else 'memory'} is the limit" in said
    reached = kernel["least_seconds"] * kernel["count"] / kernel["seconds"]
    shown = re.search(r"comes to ([\d.]+)% of that", said)
    assert shown is not None and float(shown[1]) == pytest.approx(100 * reached, abs=0.06)


def test_a_plan_is_beside_those_that_it_was_chosen_from_and_their_costs(pages: dict[str, Path], opened: Any
                                                                        ) -> None:
    data, page = data_of(pages["gpt"]), opened(pages["gpt"])
    number, kernel = next((i, k) for i, k in enumerate(data["kernels"]) if k.get("alternatives"))
    estimated = [other["times"] for other in kernel["alternatives"]]
    assert all(times >= 1 for times in estimated)  # the cheapest was taken
    page.evaluate(f"location.hash = 'kernels/kernel={number}/part=plan'")
    page.wait_for_selector("#alternatives")
    said = page.inner_text("#alternatives")
    assert all(other["plan"] in said for other in kernel["alternatives"])
    assert all(f"{times:.2f}\u00d7" in said for times in estimated)


def test_a_mark_of_the_program_is_in_the_timeline(pages: dict[str, Path], opened: Any) -> None:
    data, page = data_of(pages["matmul"]), opened(pages["matmul"])
    (number,) = [i for i, site in enumerate(data["sites"]) if site["kind"] == "mark"]
    assert (data["sites"][number]["name"], data["sites"][number]["color"]) == ("multiplied", "green")
    events = data["events"]
    (moment,) = [start for start, site in zip(events["start"], events["site"], strict=True) if site == number]
    page.click("#tab-timeline")
    page.wait_for_selector("#tracks")
    page.evaluate("moment => tracks.redraw(moment - 1e6, moment + 1e6)", moment)
    box = page.query_selector("#tracks").bounding_box()
    start, end = (float(page.get_attribute("#tracks", f"data-{side}")) for side in ("from", "to"))
    label = 96
    at = label + (moment - start) / (end - start) * (box["width"] - label)
    at = min(at, box["width"] - 2)  # the last thing that happened is at the edge
    page.mouse.click(box["x"] + at, box["y"] + 40)
    assert page.inner_text("#event h3") == "mark multiplied"


def test_a_graph_with_many_long_edges_is_drawn_at_once(pages: dict[str, Path], opened: Any, tmp_path: Path
                                                       ) -> None:
    """As those of a training step: what the way down computes, the way up needs. dagre takes a minute."""
    data = data_of(pages["matmul"])
    count = 400
    nodes = [["MUL", "float32", [4], "", [i - 1] if i else [], 0, [], None] for i in range(count)]
    for i in range(0, count // 2, 3):
        nodes[count - 1 - i][4].append(i)
    nodes[0][0] = "BUFFER"
    data["schedules"] = [{"nodes": nodes, "items": [], "left_out": 0}]
    path = tmp_path / "deep.html"
    path.write_text(html_of(data), encoding="utf-8")
    page = opened(path)
    page.click("#tab-graph")
    page.click("#by-node")
    page.wait_for_selector("svg.graph .node", timeout=10_000)
    assert page.eval_on_selector_all("svg.graph .node", "all => all.length") == count
    tops = page.evaluate("""[...document.querySelectorAll("svg.graph .node")]
        .sort((a, b) => a.dataset.node.slice(1) - b.dataset.node.slice(1))
        .map(node => +node.getAttribute("transform").match(/,(.*)\\)/)[1])""")
    assert tops == sorted(tops)


def below(nodes: list[Any], roots: list[int]) -> set[int]:
    found: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(nodes[node][3])
    return found


def test_a_graph_shows_modules_kernels_and_values(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["gpt"])
    schedules = data_of(pages["gpt"])["schedules"]
    step = max(range(len(schedules)), key=lambda i: len(schedules[i]["items"]))
    page.click("#tab-graph")  # shows the graph that took longest, which a busy machine decides
    page.select_option("#schedule", str(step))
    page.click("#by-module")
    page.wait_for_selector("svg.graph .node.module")
    titles = page.eval_on_selector_all("svg.graph .node.module text:first-of-type",
                                       "all => all.map(t => t.textContent)")
    assert {"GPT.layers.0.qkv", "GPT.layers.1.qkv", "GPT.head"} <= set(titles)
    page.click("#by-kernel")
    page.wait_for_selector("svg.graph .node.kernel")
    before = page.eval_on_selector_all("svg.graph .node", "all => all.length")
    page.click("#expand")
    page.wait_for_timeout(100)
    assert page.eval_on_selector_all("svg.graph .node", "all => all.length") > before
    page.click("#by-node")
    page.wait_for_selector("svg.graph .node.memory")
    page.focus("svg.graph .node.memory")
    page.keyboard.press("Enter")
    assert "BUFFER" in page.inner_text(".card")
    assert "float" in page.inner_text(".card") or "int" in page.inner_text(".card")


def test_the_search_view_has_every_plan_that_was_tried(pages: dict[str, Path], opened: Any) -> None:
    data, page = data_of(pages["matmul"]), opened(pages["matmul"])
    (kernel,) = [k for k in data["kernels"] if k.get("search")]
    page.click("#tab-search")
    page.wait_for_selector('main[data-view="search"] table')
    texts = "all => all.map(cell => cell.textContent)"
    plans = page.eval_on_selector_all('[aria-label="plans"] td:last-child', texts)
    assert sorted(plans) == sorted(row[0] for row in kernel["search"]["rows"])
    fates = page.eval_on_selector_all('[aria-label="plans"] td:nth-child(3)', texts)
    assert fates.count("chosen") == 1


def test_the_keyboard_reaches_everything(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["matmul"])
    page.focus("#tab-source")
    for view in VIEWS[1:]:
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f'main[data-view="{view}"]')
        assert page.get_attribute("main", "data-view") == view
        assert page.evaluate("document.activeElement.id") == f"tab-{view}"
    page.keyboard.press("4")
    page.wait_for_selector("#tracks")
    page.focus("#tracks")
    span = page.evaluate("tracks.dataset.to - tracks.dataset.from")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("tracks.dataset.to - tracks.dataset.from") == pytest.approx(span * 0.7, rel=0.01)
    page.keyboard.press("n")
    assert page.inner_text("#event h3")
    page.keyboard.press("3")
    page.wait_for_selector('main[data-view="kernels"] tbody tr')
    page.focus("tbody tr")
    page.keyboard.press("Enter")
    page.wait_for_selector("#kernel-name")


def test_a_table_sorts_and_searches(pages: dict[str, Path], opened: Any) -> None:
    data, page = data_of(pages["gpt"]), opened(pages["gpt"])
    page.click("#tab-kernels")
    page.wait_for_selector('main[data-view="kernels"] tbody tr')
    page.click("th:nth-child(4) button")
    counts = page.eval_on_selector_all("tbody td:nth-child(4)",
                                       "all => all.map(c => +c.textContent.replace(',', ''))")
    assert counts == sorted((k["count"] for k in data["kernels"]), reverse=True)[:500]
    page.fill("input.search", "layers.1")
    modules = page.eval_on_selector_all("tbody td:nth-child(11)", "all => all.map(c => c.textContent)")
    assert modules and all("layers.1" in module for module in modules)


def test_a_hundred_thousand_events_zoom_in_under_a_tenth_of_a_second(pages: dict[str, Path], opened: Any,
                                                                     tmp_path: Path) -> None:
    data = data_of(pages["matmul"])
    rng = np.random.default_rng(0)
    count = 100_000
    starts = np.cumsum(rng.integers(1_000, 9_000, count))
    kernel = next(i for i, s in enumerate(data["sites"]) if s["kind"] == "kernel")
    data["events"] = {"tracks": ["host", "CPU"], "track": rng.integers(0, 2, count).tolist(),
                      "site": [kernel] * count, "start": starts.tolist(),
                      "duration": rng.integers(500, 900, count).tolist()}
    path = tmp_path / "many.html"
    path.write_text(html_of(data), encoding="utf-8")
    page = opened(path)
    page.click("#tab-timeline")
    page.wait_for_selector("#tracks")
    total = int(starts[-1])
    spans = [(0, total), *((total * 0.5, total * (0.5 + share)) for share in (0.4, 0.01, 0.0001))]
    times = page.evaluate("""spans => spans.map(([a, b]) =>
        Math.min(...[0, 1, 2].map(() => tracks.redraw(a, b))))""", spans)
    assert max(times) < 100, times
    assert int(page.get_attribute("#tracks", "data-drawn")) > 0


def test_pages_are_small_and_whole(pages: dict[str, Path]) -> None:
    for path in pages.values():
        text = path.read_text(encoding="utf-8")
        assert len(text) < MOST_PAGE
        assert not re.search(r"(src|href)=[\"']?https?://", text.partition('id="recording"')[0])

"""The page at `/` in a browser: it streams an answer, stops one, begins anew, and says what is wrong."""
import shutil
import time

import pytest

for module, extra in (("tokenizers", "llm"), ("jinja2", "llm"), ("llguidance", "llm"), ("starlette", "serve"),
                      ("uvicorn", "serve"), ("openai", "test-models"), ("httpx", "test-models")):
    pytest.importorskip(module, reason=f"{module} is in the extra {extra}")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is in the extra test-viz")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium: apt-get install chromium", allow_module_level=True)

from running_server import KEY, Running  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

from tinygrad.llm.sampling import Sampling  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    found = Running(write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", context=256), api_key=KEY)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser, running):
    """The page with the key given; at the end no script may have failed, and nothing asked of elsewhere."""
    problems = []
    context = browser.new_context()
    found = context.new_page()
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("request", lambda asked: None if asked.url.startswith(running.url) else
             problems.append(asked.url))
    found.goto(running.url)
    found.fill("#key", KEY)
    yield found
    context.close()
    assert not problems


def say(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")


def done(page):
    sync_api.expect(page.locator("#send")).to_have_text("Send", timeout=60000)


def test_a_conversation(page, running, monkeypatch):
    asked = []
    submit = running.server.worker.submit

    def noted(prompt, sampling, **details):
        asked.append(running.server.model.tokenizer.decode(prompt))
        return submit(prompt, Sampling(tokens=12), **details)

    monkeypatch.setattr(running.server.worker, "submit", noted)
    say(page, "he <b>bold</b>")
    done(page)
    assert page.inner_text(".user") == "he <b>bold</b>"  # text, not HTML
    answer = page.text_content(".assistant")
    request = running.server.model.request([{"role": "user", "content": "he <b>bold</b>"}],
                                           Sampling(tokens=12))
    running.server.model.generator.run(request)
    assert answer == request.text
    say(page, "more")
    done(page)
    assert page.locator(".user").count() == page.locator(".assistant").count() == 2
    assert len(asked) == 2 and "bold" in asked[1] and "more" in asked[1]  # with what was said before
    page.click("#clear")
    assert page.locator(".message").count() == 0


def slow_down(generator, monkeypatch):
    """A token every 50 ms at most, so that an answer can be met while it is written."""
    step = generator.step
    monkeypatch.setattr(generator, "step", lambda: (time.sleep(0.05), step())[1])


@pytest.mark.parametrize("by_key", [False, True])
def test_an_answer_is_stopped_and_its_slot_is_free(page, running, monkeypatch, by_key):
    """The button asked for a message first."""
    slow_down(running.server.model.generator, monkeypatch)
    say(page, "he")
    sync_api.expect(page.locator("#send")).to_have_text("Stop")
    sync_api.expect(page.locator(".assistant")).not_to_have_text("\u2026")
    page.press("#text", "Enter")  # sends nothing, and stops nothing
    assert page.inner_text("#send") == "Stop" and page.locator(".user").count() == 1
    page.keyboard.press("Escape") if by_key else page.click("#send")
    sync_api.expect(page.locator("#send")).to_have_text("Send", timeout=2000)
    roles = page.evaluate("messages.map(message => message.role)")
    assert roles == ["user", "assistant"] and page.text_content(".assistant").startswith(
        page.evaluate("messages[1].content"))
    deadline = time.monotonic() + 20
    while running.server.worker.active or running.server.worker.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_new_conversation_hears_nothing_of_the_one_before(page, running, monkeypatch):
    slow_down(running.server.model.generator, monkeypatch)
    say(page, "he")
    sync_api.expect(page.locator(".assistant")).not_to_have_text("\u2026")
    page.click("#clear")
    done(page)
    assert page.evaluate("messages") == [] and page.locator(".message").count() == 0
    assert page.evaluate("document.activeElement.id") == "text"


def test_a_narrow_window_shows_all(page, running, monkeypatch):
    """The end of an answer lay below the field for the next message, and the header went past the edge."""
    submit = running.server.worker.submit
    monkeypatch.setattr(running.server.worker, "submit", lambda prompt, sampling, **details: submit(
        prompt, Sampling(tokens=40), **details))
    page.set_viewport_size({"width": 390, "height": 400})
    for _ in range(3):
        say(page, "he said " * 8)
        done(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    end, field = (page.evaluate(f"document.querySelector('{which}').getBoundingClientRect().{edge}")
                  for which, edge in (("#log > :last-child", "bottom"), ("form", "top")))
    assert end <= field


def test_what_is_wrong_is_said(page):
    page.fill("#key", "another")
    say(page, "he")
    page.wait_for_selector(".error")
    assert page.inner_text(".error") == "the API key is missing or wrong"
    done(page)
    assert page.input_value("#text") == "he" and page.locator(".assistant").count() == 0  # to be sent again

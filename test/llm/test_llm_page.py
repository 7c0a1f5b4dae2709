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


def test_an_answer_is_stopped_and_its_slot_is_free(page, running, monkeypatch):
    step = running.server.model.generator.step

    def slow():
        time.sleep(0.05)
        return step()

    monkeypatch.setattr(running.server.model.generator, "step", slow)
    say(page, "he")
    sync_api.expect(page.locator("#send")).to_have_text("Stop")
    page.click("#send")
    done(page)
    deadline = time.monotonic() + 20
    while running.server.worker.active or running.server.worker.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_wrong_is_said(page):
    page.fill("#key", "another")
    say(page, "he")
    page.wait_for_selector(".error")
    assert page.inner_text(".error") == "the API key is missing or wrong"
    done(page)

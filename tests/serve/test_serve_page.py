"""The web page as a person meets it, in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from browser import Watch
from servers import SECONDS, Server, wait

pytest.importorskip("playwright", reason="needs playwright: pip install 'narrows[serve,test]'")
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

LOOPS = "Write the numbers from one to thirty as words, one per line, as a list."  # greedily, an answer without end
HOSTILE = """<script>document.title = 'taken'</script>

**bold** `<img src=x onerror=alert(1)>`

```
<b>code</b>
```

- <i>item</i>"""


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model, guessing ahead."""
    args = ("--served-model-name", "smollm2", "--threads", "1", "-c", "4096", "--stack", "draft=ngram pace=fixed")
    server = Server(tmp_path_factory.mktemp("page") / "log", smollm2_path, *args)
    yield server.ready()
    server.close()


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    if browser.chromium() is None:
        pytest.skip(f"there is no Chromium: {browser.INSTALL}")
    may = ["clipboard-read", "clipboard-write"]
    with browser.browse(tmp_path_factory.mktemp("profile"), permissions=may) as context:
        context.set_default_timeout(1000 * SECONDS)
        expect.set_options(timeout=1000 * SECONDS)
        yield context


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """The page, ready to be asked; nothing may have gone wrong in it when the test ends."""
    page = context.new_page()
    watch = Watch(page, server.url)
    page.goto(server.url)
    expect(page.locator("#model option")).to_have_text(["smollm2"])
    yield page
    page.evaluate("localStorage.clear()")
    page.close()
    assert watch.wrong == []


def ask(page: Page, prompt: str, max_tokens: int | None = 40) -> Locator:
    """Asks greedily by keyboard; gives the answer's element."""
    page.locator("#settings").evaluate("details => details.open = true")
    page.fill("#temperature", "0")
    page.fill("#max-tokens", str(max_tokens or ""))
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")
    return page.locator("article.assistant").last


def test_a_prompt_is_answered_and_its_cost_is_shown(page: Page, server: Server) -> None:
    answer = ask(page, LOOPS, 60)
    expect(answer.locator(".note")).to_contain_text("60 tokens")
    want = server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": LOOPS}], temperature=0, max_tokens=60
    ).json()
    assert answer.locator(".body").inner_text() == want["choices"][0]["message"]["content"]
    kept = want["ledger"]["speculation"]["accepted_tokens"]
    assert kept > 0
    expect(answer.locator(".note")).to_contain_text(f"{kept} of ")
    asked = {"messages": [{"role": "user", "content": LOOPS}], "temperature": 0, "max_tokens": 60}
    events = server.stream("/v1/chat/completions", **asked, stream_options={"include_drafted": True})
    choices = [event["choices"][0] for event in events if event != "[DONE]"]
    drafted = "".join(choice["delta"].get("content", "") for choice in choices if choice["drafted"])
    assert "".join(answer.locator("mark.drafted").all_text_contents()) == drafted
    expect(page.locator("article.user .body")).to_have_text(LOOPS)


def test_the_figures_are_those_of_the_engine(page: Page, server: Server) -> None:
    answer = ask(page, LOOPS, 200)
    expect(page.locator("#queue")).to_have_text("1 answering, 0 waiting")
    expect(page.locator("#state")).to_have_text("working")
    expect(answer.locator(".note")).to_contain_text("200 tokens")
    expect(page.locator("#queue")).to_have_text("0 answering, 0 waiting")
    expect(page.locator("#state")).to_have_text("idle")
    [model] = server.client.get("/v1/narrows/status").json()["models"]
    expect(page.locator("#pages")).to_have_text(f"0 of {model['num_pages']:,}")
    expect(page.locator("#stack")).to_contain_text(model["stack"])
    for name in ("speed", "bytes", "weight-bytes", "kv-bytes", "draft-bytes"):
        expect(page.locator(f"#{name}")).to_have_text(re.compile(r"^[\d.,]+( [kMG]?B)?$"))
    expect(page.locator("#kept")).to_have_text(re.compile(r"^\d+ of \d+ kept$"))
    known = model["bandwidth_gigabytes"]
    says = f"{known:.1f} GB/s" if known else "narrows bench bandwidth --threads 1"
    expect(page.locator("#bound")).to_contain_text(says)


@pytest.mark.parametrize(
    ("bandwidth", "says"),
    [(10.0, "20% of the 500 tokens/s that 10 GB/s allow"), (None, "Run: narrows bench bandwidth --threads 2")],
)
def test_figures_are_differences_of_totals(page: Page, bandwidth: float | None, says: str) -> None:
    totals = dict.fromkeys(("chosen_tokens", "chosen_steps", "drafted_tokens", "accepted_tokens"), 5) | {
        name: 7 for name in ("steps", "output_tokens", "step_seconds", "weight_bytes", "kv_bytes", "draft_bytes")
    }
    gains = {"steps": 10, "output_tokens": 100, "step_seconds": 1, "chosen_tokens": 100, "chosen_steps": 40}
    gains |= {"weight_bytes": 1.5e9, "kv_bytes": 4e8, "draft_bytes": 1e8, "drafted_tokens": 80, "accepted_tokens": 60}
    model: dict[str, Any] = {"id": "m", "state": "ready", "stack": "weights=auto draft=ngram", "num_threads": 2}
    model |= {
        "bandwidth_gigabytes": bandwidth,
        "num_running": 3,
        "num_waiting": 2,
        "num_pages": 50,
        "num_used_pages": 10,
    }
    after = {name: value + gains[name] for name, value in totals.items()}
    events = [f"data: {json.dumps({'models': [model | {'totals': t}]})}\n\n" for t in (totals, after)]
    page.route("**/status/stream", lambda route: route.fulfill(content_type="text/event-stream", body="".join(events)))
    page.reload()
    shown = {"speed": "100", "bytes": "20 MB", "weight-bytes": "15 MB", "kv-bytes": "4 MB", "draft-bytes": "1 MB"}
    shown |= {"kept": "60 of 80 kept", "pages": "10 of 50", "queue": "3 answering, 2 waiting", "state": "working"}
    for name, text in shown.items():
        expect(page.locator(f"#{name}")).to_have_text(text)
    expect(page.locator("#bound")).to_contain_text(says)
    expect(page.locator("#drafts")).to_contain_text("2.5 tokens per forward")
    expect(page.locator("#share")).to_have_attribute("aria-valuenow", "20" if bandwidth else "0")


def test_any_served_model_can_be_asked(context: BrowserContext, start: Callable[..., Server], tiny_path: Path) -> None:
    names = ("--served-model-name", "first", "--served-model-name", "second")
    server = start(tiny_path, tiny_path, *names, "--threads", "1").ready()
    page = context.new_page()
    watch = Watch(page, server.url)
    page.goto(server.url)
    expect(page.locator("#model option")).to_have_text(["first", "second"])
    page.select_option("#model", "second")
    with page.expect_request("**/v1/chat/completions") as sent:
        answer = ask(page, "hello", 4)
    assert sent.value.post_data_json["model"] == "second"
    expect(answer.locator(".note")).to_contain_text("tokens")
    expect(answer.locator(".author")).to_have_text("second")
    page.close()
    assert watch.wrong == []


def test_stop_ends_the_answer_and_its_request(page: Page, server: Server) -> None:
    answer = ask(page, LOOPS, None)
    expect(answer.locator(".body")).to_contain_text("1234")
    page.click("#stop")
    expect(answer.locator(".note")).to_have_text("stopped")
    text = answer.locator(".body").inner_text()
    assert wait(server.quiet)
    assert answer.locator(".body").inner_text() == text
    ask(page, LOOPS, None)
    expect(page.locator("article.assistant")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#send")).to_be_visible()
    assert wait(server.quiet)


def test_a_new_chat_forgets_and_copy_copies(page: Page) -> None:
    answer = ask(page, "Say hello.", 8)
    expect(answer.locator(".note")).to_contain_text("tokens")
    answer.get_by_role("button", name="Copy").click()
    expect(answer.get_by_role("button", name="Copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == answer.locator(".body").inner_text()
    page.click("#new-chat")
    expect(page.locator("article")).to_have_count(0)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Again.", 2)
    assert [m["content"] for m in sent.value.post_data_json["messages"]] == ["Again."]


def test_the_settings_are_what_is_asked_for(page: Page) -> None:
    page.locator("#settings").evaluate("details => details.open = true")
    page.fill("#system", "Be brief.")
    with page.expect_request("**/v1/chat/completions") as sent:
        answer = ask(page, "Hello", 3)
    given = sent.value.post_data_json
    assert given["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (given["temperature"], given["max_tokens"], given["model"]) == (0, 3, "smollm2")
    expect(answer.locator(".note")).to_contain_text("3 tokens")
    page.fill("#temperature", "-1")
    page.fill("#prompt", "Not sent")
    page.press("#prompt", "Enter")
    expect(page.locator("article")).to_have_count(2)


def test_markup_is_text_in_prompts_and_answers(page: Page) -> None:
    def answer(route: Route) -> None:
        chunk = {"choices": [{"index": 0, "delta": {"content": HOSTILE}, "drafted": True}]}
        route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")

    page.route("**/v1/chat/completions", answer)
    reply = ask(page, HOSTILE)
    expect(page.locator("#send")).to_be_visible()
    for article in (page.locator("article.user"), reply):
        body = article.locator(".body")
        expect(body).to_contain_text("<script>document.title = 'taken'</script>")
        expect(body.locator("strong")).to_have_text("bold")
        expect(body.locator("code").first).to_have_text("<img src=x onerror=alert(1)>")
        expect(body.locator("pre")).to_have_text("<b>code</b>\n")
        expect(body.locator("li")).to_have_text("<i>item</i>")
        assert body.locator("script, img, b, i").count() == 0
    assert page.title() == "Narrows"


def test_an_error_is_told_and_the_question_given_back(page: Page) -> None:
    ask(page, "word " * 5000)
    expect(page.get_by_role("alert")).to_contain_text("4096")
    expect(page.locator("#prompt")).to_have_value("word " * 5000)
    expect(page.locator("article")).to_have_count(0)
    ask(page, "Hello", 2)
    expect(page.locator("article.assistant .note")).to_contain_text("2 tokens")
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_in_both_schemes(page: Page, scheme: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    answer = ask(page, LOOPS, 40)
    expect(answer.locator(".note")).to_contain_text("40 tokens")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_the_scheme_can_be_turned_round_and_stays(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    for _ in range(2):  # before and after a reload
        expect(page.locator("body")).to_have_css("background-color", "rgb(247, 246, 242)")
        page.click("#theme")
        expect(page.locator("body")).to_have_css("background-color", "rgb(20, 23, 26)")
        page.reload()
        expect(page.locator("body")).to_have_css("background-color", "rgb(20, 23, 26)")
        page.click("#theme")


def test_every_control_is_reached_by_keyboard(page: Page) -> None:
    page.focus("#model")
    reached = []
    for _ in range(9):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        page.keyboard.press("Tab")
    assert reached[:8] == ["model", "new-chat", "theme", "log", "prompt", "send", "show-drafted", "SUMMARY"]


def test_a_key_is_asked_for_and_kept_in_the_tab(context: BrowserContext, tiny: Server) -> None:
    page = context.new_page()
    watch = Watch(page, tiny.url)
    page.goto(tiny.url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    page.fill("#key", "wrong-key")
    page.press("#key", "Enter")
    expect(dialog).to_contain_text("does not know the key")
    page.fill("#key", "first-key")
    page.press("#key", "Enter")
    expect(page.locator("#model option")).to_have_text(["tiny"])
    expect(dialog).to_be_hidden()
    assert page.evaluate("[sessionStorage.length, localStorage.length]") == [1, 0]
    assert not any("first-key" in url for url in watch.requests)
    page.reload()
    expect(page.locator("#model option")).to_have_text(["tiny"])
    page.click("#forget-key")
    expect(dialog).to_be_visible()
    page.close()
    assert watch.wrong == []

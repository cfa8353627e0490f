"""The page's box that tries a problem on the newest weights, in headless Chromium: the answer as tokens,
version and reward, what a model writes as text, and refusals in words."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.state import changed
from deploy.launch.ports import free_port
from tests.support.browser import Browser, needs_chromium, until
from tests.support.synthetic_run import SyntheticRun, config_of, play
from tests.support.tried import SAYS

pytestmark = [pytest.mark.system, needs_chromium, pytest.mark.timeout(400)]
TOKEN = "s3same"
SHOWN = "document.getElementById('tried').textContent"
REFUSED = "document.getElementById('try-refusal').textContent"


def opened(redis_url: str, name: str, endpoint: bool) -> tuple[SyntheticRun, str, subprocess.Popen]:
    run = SyntheticRun(redis_url, config_of(name, serve={"endpoint": endpoint}))
    play(run, 3)
    port = free_port()
    command = [sys.executable, "-m", "tests.support.page_with_endpoint", redis_url, name, str(port), TOKEN]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    url = f"http://127.0.0.1:{port}/"
    try:
        until(lambda: json.load(urllib.request.urlopen(url + "healthz", timeout=10)), 200)
    except BaseException:
        process.kill()
        raise
    return run, url, process


@pytest.fixture(scope="module")
def page(redis_url: str) -> Iterator[tuple[SyntheticRun, Browser]]:
    run, url, process = opened(redis_url, "try", True)
    browser = Browser(url)
    try:
        until(lambda: browser.js("document.getElementById('try')?.hidden") is False, 30)
        yield run, browser
    finally:
        browser.close()
        process.kill()
        process.wait()


def tried(browser: Browser, problem: str, answer: str = "", token: str = TOKEN) -> None:
    fields = json.dumps([problem, answer, token])
    browser.js(
        f"""(([problem, answer, token]) => {{ sessionStorage.setItem("token", token);
        document.getElementById("try-problem").value = problem;
        document.getElementById("try-answer").value = answer;
        document.getElementById("try-send").click(); }})({fields})"""
    )
    until(lambda: not browser.js("document.getElementById('try-send').disabled"), 60)


def test_an_answer_has_tokens_versions_and_reward(page) -> None:
    _, browser = page
    tried(browser, "37+58=?", "95")
    words = browser.js("document.querySelector('[data-field=tried]').textContent")
    count = browser.js("document.querySelectorAll('#tokens > span').length")
    assert words == (
        f"version v3 to v4 · {count} tokens · ended by itself · reward 1 (format 1, accuracy 1) · success"
    )
    assert browser.js("document.getElementById('tokens').textContent") == SAYS
    kinds = browser.js("[...new Set([...document.querySelectorAll('#tried *')].map(e => e.tagName))].sort()")
    assert kinds == ["B", "DIV", "SPAN"], "what the model wrote is text: <think> and <answer> are no elements"
    tried(browser, "37+58=?", "96")
    assert "reward 0.5 (format 1, accuracy 0) · no success" in browser.js(SHOWN)
    tried(browser, "37+58=?")
    assert "no reward: it takes the right answer" in browser.js(SHOWN)
    if picture := os.environ.get("HORA_TEST_PICTURE"):
        browser.shot(picture)
    assert not browser.errors


def test_refusals_are_said_in_words(page) -> None:
    run, browser = page
    tried(browser, "37+58=?", token="wrong")
    assert browser.js(REFUSED).startswith("401: the token is not this run's: send the run's token")
    assert browser.js("sessionStorage.getItem('token')") is None, "it is asked for again"
    assert browser.js(SHOWN) == ""
    tried(browser, "1+" * 4000)
    assert browser.js(REFUSED).startswith("413: the problem is too long: the request is larger than 4096")
    tried(browser, "<img src=x onerror=alert(1)>" * 20)
    assert browser.js(REFUSED).startswith("400: the prompt has ")
    run.redis.hset(run.keys.state, mapping=changed(version=1000))
    until(lambda: browser.js("last.version") == 1000, 20)
    tried(browser, "37+58=?")
    assert browser.js(REFUSED).startswith("503: the replicas do not hold the newest weights yet, try again")
    run.redis.hset(run.keys.state, mapping=changed(version=3))
    flood = """Promise.all(Array.from({length: 90}, () => fetch("v1/models", {headers: {Authorization:
        "Bearer s3same"}}))).then(all => all.length)"""

    def too_many() -> bool:
        """A place becomes free every second, so a slow machine may need another flood."""
        browser.js(flood)
        tried(browser, "37+58=?")
        return browser.js(REFUSED) == "429: too many requests, try again: too many requests"

    until(too_many, 60)
    assert not browser.errors


def test_a_run_without_the_endpoint_has_no_box(redis_url: str) -> None:
    _, url, process = opened(redis_url, "none", False)
    browser = Browser(url)
    try:
        until(lambda: browser.js("document.querySelectorAll('#cards .card').length") > 3, 30)
        assert browser.js("document.getElementById('try')?.hidden") is True
    finally:
        browser.close()
        process.kill()
        process.wait()

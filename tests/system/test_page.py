"""The live page in headless Chromium against a real server on a real Redis, driven through the DevTools
protocol."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import record_evaluation
from hora_rl.deploy.machine.ray_start import free_port
from hora_rl.deploy.monitor.web import PAGE
from tests.support.browser import Browser, needs_chromium, until
from tests.support.synthetic_run import SyntheticRun, config_of, play

pytestmark = [pytest.mark.system, needs_chromium]
SERVER = """
import sys
from pathlib import Path
from hora_rl.common.config import TelemetryConfig
from hora_rl.deploy.monitor import web
from hora_rl.deploy.monitor.terminal import serve_page
web.PAGE = Path(sys.argv[4])
serve_page(sys.argv[1], sys.argv[2], TelemetryConfig(), int(sys.argv[3]))
"""


# Pixels of a chart's canvas that have a colour: neither transparent nor grey, as axes and grid are.
DRAWN = """(c => {{ const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
for (let i = 0; i < d.length; i += 4) {{ const rgb = [d[i], d[i + 1], d[i + 2]];
  n += d[i + 3] > 99 && Math.max(...rgb) - Math.min(...rgb) > 60; }}
return n; }})({}.querySelector('canvas'))"""


class Server:
    """The page's server in a process of its own, so that it can be killed."""

    def __init__(self, redis_url: str, run: str, healthy: bool = True, token: str | None = "s3same") -> None:
        self._token = {"HORA_TOKEN": token} if token else {}
        self._path = "healthz" if healthy else "openapi.json"
        self.port = free_port()
        self._args = [sys.executable, "-c", SERVER, redis_url, run, str(self.port)]
        self.page = PAGE
        self.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        environment = {**os.environ, **self._token}
        self._process = subprocess.Popen([*self._args, str(self.page)], env=environment)
        until(lambda: self.get(self._path), 30)

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


Opens = Callable[..., Browser]
Stage = tuple[SyntheticRun, Server, Opens]


@pytest.fixture(scope="module")
def stage(redis_url: str, tab: Opens) -> Iterator[Stage]:
    """A run with thirty steps behind it, its server, and a function that opens the page. The last test that
    takes it ends the run."""
    run = SyntheticRun(redis_url, config_of("staged", rollout={"prompts_per_batch": 16, "shards": 2}))
    play(run, 30)
    ended = threading.Event()
    coordinator = threading.Thread(target=sample_until, args=(run, ended))
    coordinator.start()
    server = Server(redis_url, "staged")

    def page(**how: Any) -> Browser:
        browser = tab(server.url, **how)
        until(lambda: browser.js("document.querySelectorAll('#charts canvas').length") >= 7, 20)
        return browser

    yield run, server, page
    server.kill()
    ended.set()
    coordinator.join()


@pytest.fixture(scope="module")
def browser(stage: Stage) -> Browser:
    return stage[2]()


def sample_until(run: SyntheticRun, ended: threading.Event) -> None:
    """The run's history, as its coordinator writes it."""
    while not ended.wait(0.5):
        run.sample()


def test_every_figure_on_the_page_is_the_json_endpoint_s(stage: Stage, browser: Browser) -> None:
    status = stage[1].get("status")
    step = browser.js("document.getElementById('step')?.textContent")
    assert step == f"step {status['step']} of {status['steps']}"
    assert browser.js("document.querySelector('[data-depth]').dataset.depth") == str(status["queue_depth"])
    shown = browser.js("document.querySelector('[data-field=reward]').textContent")
    assert float(shown) == pytest.approx(status["learner"]["reward"], rel=0.01)
    cells = "r => r.cells[0].textContent + ' ' + r.cells[1].textContent"
    rows = browser.js(f"[...document.querySelectorAll('#parts tr')].slice(1).map({cells})")
    generators = [p for p in status["parts"] if p["kind"] == "generator"]
    assert rows == [f"{p['name']} v{p['state']['version']}" for p in generators]
    split = browser.js(
        "[...document.querySelectorAll('[data-source]')].map(r => [r.dataset.source, r.cells[3].textContent])"
    )
    assert {source: float(success.rstrip("%")) / 100 for source, success in split} == pytest.approx(
        {source: status["learner"][f"source/{source}/success"] for source in ("easy", "hard")}, abs=0.01
    )
    titles = browser.js("[...document.querySelectorAll('[data-chart]')].map(e => e.dataset.chart)")
    charts = {"Reward", "Success by data source", "Share of Phase B by c", "Response length", "Entropy"}
    assert charts | {"Queue depth", "Pass@K on held-out problems"} <= set(titles)
    assert browser.errors == []


def test_a_change_is_on_the_page_within_two_seconds(stage: Stage, browser: Browser) -> None:
    run = stage[0]
    asyncio.run(run.generate(30))
    began = time.monotonic()
    until(lambda: browser.js("document.querySelector('[data-depth]').dataset.depth") == "16", 10)
    assert time.monotonic() - began < 2.0
    run.train(30)


def test_an_evaluation_is_on_the_page_with_the_next_reading_and_the_first_is_a_point(
    stage: Stage, browser: Browser
) -> None:
    run = stage[0]
    run.redis.delete(run.keys.evaluations)
    chart = """document.querySelector('[data-chart="Pass@K on held-out problems"]')"""
    until(lambda: "no values yet" in browser.js(f"{chart}.textContent"), 10)
    record_evaluation(run.redis, run.config.run.name, 30, {"pass@1": 0.25, "pass@64": 0.5})
    until(lambda: browser.js(f"{chart}.querySelectorAll('canvas').length") == 1, 2.5)
    assert "Pass@1" in browser.js(f"{chart}.textContent")
    assert browser.js(DRAWN.format(chart)) > 20, "two points are seen"
    assert browser.errors == []


def test_hostile_text_from_the_run_stays_text(stage: Stage, browser: Browser) -> None:
    run = stage[0]
    run.redis.hset(run.keys.state, "error", "<img src=x onerror='document.title=\"owned\"'>")
    until(lambda: "<img" in browser.js("document.getElementById('warnings').textContent"), 10)
    assert browser.js("document.querySelectorAll('#warnings img').length") == 0
    assert browser.js("document.title") != "owned"
    run.redis.hdel(run.keys.state, "error")


def test_a_wrong_token_is_refused_in_words_that_stay_and_the_right_one_pauses_and_resumes(
    stage: Stage, browser: Browser
) -> None:
    run = stage[0]

    def shown(element: str) -> str:
        return browser.js(f"document.getElementById('{element}').textContent")

    def click(token: str) -> None:
        browser.js(f"sessionStorage.setItem('token', '{token}'); document.getElementById('pause').click()")

    click("wrong")
    until(lambda: "send the run's token" in shown("refusal"), 10)
    time.sleep(2.5)  # two readings later
    assert "send the run's token" in shown("refusal")
    assert (shown("pause"), shown("status")) == ("Pause", "running")
    assert run.redis.hget(run.keys.state, "paused") is None
    click("s3same")
    until(lambda: (shown("pause"), shown("status")) == ("Resume", "paused"), 10)
    assert shown("refusal") == ""
    assert "paused by an operator" in shown("warnings")
    assert run.redis.hget(run.keys.state, "paused") == b"1"
    browser.js("document.getElementById('pause').click()")
    until(lambda: (shown("pause"), shown("status")) == ("Pause", "running"), 10)
    assert run.redis.hget(run.keys.state, "paused") == b"0"
    assert browser.errors == []


def test_the_page_fits_a_phone_in_light_and_dark(stage: Stage) -> None:
    run, _server, page = stage
    for dark in (False, True):
        browser = page(width=390, height=800, dark=dark)
        run.beat(29, running=256)  # as wide as rows get: a version behind, many requests, seen 0.99 s ago
        until(lambda: "0." in browser.js("document.querySelector('#parts tr:nth-child(2)').textContent"), 5)  # noqa: B023
        assert browser.js("document.documentElement.scrollWidth") <= 390
        for table in ("parts", "verifiers"):  # nothing to scroll for
            wide = browser.js(f"(e => e.scrollWidth - e.clientWidth)(document.getElementById('{table}'))")
            assert wide <= 0, table
        background = browser.js("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(15, 18, 23)") == dark
        assert browser.errors == []


def test_the_page_goes_on_by_itself_when_its_server_is_killed_and_a_newer_one_takes_its_place(
    stage: Stage, browser: Browser, tmp_path: Path
) -> None:
    run, server, _page = stage
    server.kill()
    until(lambda: "silent" in browser.js("document.getElementById('live').textContent"), 15)
    asyncio.run(run.generate(31))
    run.train(31)
    served, server.page = server.page, tmp_path / "newer.html"
    server.page.write_text(served.read_text().replace("<h1 ", "<h1 data-age='newer' "))
    server.start()
    until(lambda: browser.js("document.querySelector('h1')?.dataset.age") == "newer", 20)
    until(lambda: browser.js("document.getElementById('live')?.textContent") == "live", 20)
    until(lambda: (browser.js("document.getElementById('step')?.textContent") or "")[:8] == "step 32 ", 10)
    assert browser.errors == []


def test_a_page_of_a_run_that_ended_says_so_when_its_server_is_gone(stage: Stage, browser: Browser) -> None:
    run, server, _page = stage
    run.redis.hset(run.keys.state, "step", run.config.learner.steps)
    until(lambda: browser.js("document.getElementById('status')?.textContent") == "finished", 10)
    server.kill()
    until(lambda: "the run has ended" in browser.js("document.getElementById('live').textContent"), 15)
    steps = run.config.learner.steps
    assert browser.js("document.getElementById('status')?.textContent") == "finished"
    assert browser.js("document.getElementById('step')?.textContent") == f"step {steps} of {steps}"
    assert browser.js("document.getElementById('warnings').textContent") == ""
    assert browser.errors == []


def test_a_button_that_cannot_work_is_not_shown_and_a_finished_run_is_not_silent(
    redis_url: str, tab: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SyntheticRun(redis_url, config_of("over", learner={"steps": 3}))
    play(run, 2)
    server = Server(redis_url, "over", token=None)
    browser = tab(server.url)
    try:
        hidden = "document.getElementById('pause').hidden"
        step = "document.getElementById('step')?.textContent"
        until(lambda: browser.js(step) == "step 2 of 3", 20)
        assert browser.js(hidden)
        run.redis.hset(run.keys.state, mapping=changed(token_sha256="0" * 64))
        until(lambda: not browser.js(hidden), 10)
        play(run, 3, begin=2)
        until(lambda: browser.js("document.getElementById('status')?.textContent") == "finished", 20)
        assert browser.js(hidden)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 20)  # the last of its parts' heartbeats is long ago
        run.beat(3)
        shown = "document.getElementById('parts').textContent"
        until(lambda: "learner rank-0: ended" in browser.js(shown), 10)
        assert "silent" not in browser.js(shown)
        assert "the run has finished" in browser.js("document.getElementById('learner').textContent")
    finally:
        server.kill()


def test_what_cannot_be_read_is_a_sentence_on_the_page(redis_url: str, tab: Opens) -> None:
    server = Server(redis_url, "nowhere", healthy=False)
    browser = tab(server.url)
    try:
        said = "document.getElementById('warnings')?.textContent ?? ''"
        until(lambda: "knows no run 'nowhere'" in browser.js(said), 20)
        assert browser.js("document.getElementById('status')?.textContent") == "no snapshot"
        assert browser.errors == []
    finally:
        server.kill()

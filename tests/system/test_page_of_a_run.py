"""The page of `hora run` itself in headless Chromium: its figures are the JSON endpoint's, and it outlives
its server."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.browser import Browser, needs_chromium, until

pytestmark = [pytest.mark.system, pytest.mark.slow, needs_chromium]
HORA = str(Path(sys.executable).with_name("hora"))
SETTINGS = {
    "run.name": "watched",
    "rollout.prompts_per_batch": 8,
    "rollout.group_size": 6,
    "rollout.pre_rollouts": 2,
    "rollout.shards": 2,
    "learner.steps": 2000,
    "learner.checkpoint_every": 50,
    "evaluation.path": "null",
    "telemetry.http_port": 0,
}


class Run:
    """`hora run tiny` with small batches, and its HTTP side."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "watched", folder / "log"
        settings = {**SETTINGS, "run.folder": folder}
        arguments = [part for k, v in settings.items() for part in ("-s", f"{k}={v}")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([HORA, "run", "tiny", *arguments], stdout=log, stderr=log)

    def begin(self) -> None:
        """Wait for the second step, whose rates and charts have something in them."""

        def trained() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            steps = self.folder / "steps.jsonl"
            return steps.exists() and len(steps.read_text().splitlines()) >= 2

        until(trained, 300)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{json.loads((self.folder / 'run.json').read_text())['http_port']}/"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def post(self, path: str) -> Any:
        token = (self.folder / "token").read_text().strip()
        request = urllib.request.Request(
            self.url + path, method="POST", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def at_rest(self) -> dict[str, Any]:
        """Pause, and the status once nothing in it moves any more."""
        self.post("pause")
        before: tuple[Any, ...] = ()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status = self.get("status")
            now = (status["step"], status["version"], status["queue_depth"], status["totals"])
            idle = all(p["state"]["running"] == 0 for p in status["parts"] if p["kind"] == "generator")
            if idle and now == before:
                return status
            before = now
            time.sleep(3.0)
        raise AssertionError("the paused run did not come to rest")

    def ingress(self) -> psutil.Process:
        """The process that serves the page."""
        (found,) = [
            p
            for p in psutil.Process(self.process.pid).children(recursive=True)
            if "ServeReplica:hora:ingress" in " ".join(p.cmdline())
        ]
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("runs"))
    try:
        run.begin()
        yield run
    finally:
        run.end()


@pytest.fixture
def browser(run: Run) -> Iterator[Browser]:
    tab = Browser(run.url)
    until(lambda: tab.js("document.querySelectorAll('#charts canvas').length") >= 6, 30)
    yield tab
    assert tab.errors == []
    tab.close()


def text(tab: Browser, selector: str) -> str:
    return str(tab.js(f"document.querySelector('{selector}').textContent"))


def rows(tab: Browser, table: str, *columns: int) -> list[list[str]]:
    cells = ", ".join(f"r.cells[{c}].textContent" for c in columns)
    found: list[list[str]] = tab.js(
        f"[...document.querySelectorAll('#{table} tr')].slice(1).map(r => [{cells}])"
    )
    return found


def test_the_figures_of_a_real_run_are_the_json_endpoint_s(run: Run, browser: Browser) -> None:
    status = run.at_rest()
    until(lambda: text(browser, "#status") == "paused", 5)
    learner = status["learner"]
    until(lambda: text(browser, "#step") == f"step {status['step']} of {status['steps']}", 5)
    assert browser.js("document.querySelector('[data-depth]').dataset.depth") == str(status["queue_depth"])
    assert float(text(browser, "[data-field=reward]")) == pytest.approx(learner["reward"], abs=6e-4)
    for name, metric in (("format", "reward/format"), ("success", "success")):
        shown = float(text(browser, f"[data-field={name}]").rstrip("%")) / 100
        assert shown == pytest.approx(learner[metric], abs=6e-3)
    assert float(text(browser, "[data-field=entropy]")) == pytest.approx(learner["entropy"], rel=6e-3)
    parts = {k: [p for p in status["parts"] if p["kind"] == k] for k in ("generator", "verifier")}
    assert rows(browser, "parts", 0, 1, 2) == [
        [p["name"], f"v{p['state']['version']}", "0"] for p in parts["generator"]
    ]
    assert rows(browser, "verifiers", 0, 2, 3, 4) == [
        [p["name"], "0", str(p["state"]["killed"]), str(p["state"]["pid"])] for p in parts["verifier"]
    ]
    assert all(psutil.pid_exists(p["state"]["pid"]) for kind in parts.values() for p in kind)
    judged = sum(p["state"]["scored"] for p in parts["verifier"])
    assert judged == status["totals"]["rollouts_in"]
    prompts, extra = sum(status["phase_a"].values()), sum(status["phase_b"].values())
    assert f"{prompts} prompts, {extra} Phase B rollouts" in text(browser, "#allocation")
    history = run.get("history")
    assert history["steps"]["step"][-1] == status["step"] - 1


def test_the_page_goes_on_by_itself_when_serve_restarts_the_server(run: Run, browser: Browser) -> None:
    run.post("resume")
    until(lambda: text(browser, "#status") == "running", 10)
    killed = run.ingress()
    browser.js("window.opened = true")
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: run.get("healthz")["status"] == "ok" and run.ingress().pid != killed.pid, 40)
    before = int(text(browser, "#step").split()[1])
    until(lambda: text(browser, "#live") == "live", 20)
    until(lambda: int(text(browser, "#step").split()[1]) > before, 30)
    assert browser.js("window.opened"), "the page reconnected; it was not opened anew"

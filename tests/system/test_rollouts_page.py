"""The page "Rollouts" in headless Chromium: filters, one prompt over training, and hostile model output."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hora_rl.deploy.machine.ports import free_port
from hora_rl.learner.records.rollout_writer import Texts
from tests.support.browser import Browser, needs_chromium, until
from tests.support.rollouts import SOURCES, write_rollouts
from tests.support.synthetic_run import write_ended
from tests.system.conftest import HORA

pytestmark = [pytest.mark.system, needs_chromium, pytest.mark.timeout(180)]
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"></pre>"
    "\x1b[2J\x07\u202egnp.exe\u2066\u200b\u2028\U000e0041\x9b31m &amp; \ud7ff"
)


def ended_run(folder: Path, *settings: str) -> Path:
    """The folder of a run that has ended, with a Redis and rollouts of four steps of four prompts."""
    run = folder / "over"
    write_ended(run)
    write_rollouts(run, *settings, steps=4, prompts=4)
    return run


@pytest.fixture
def page_of(tab: Callable[..., Browser]) -> Iterator[Callable[..., Browser]]:
    """`page_of(run, query)`: a tab on the rollouts of `hora monitor RUN --page`."""
    with ExitStack() as ending:

        def opened(run: Path, query: str = "") -> Browser:
            port = free_port()
            url = f"http://127.0.0.1:{port}/rollouts"
            command = [HORA, "monitor", str(run), "--page", "--port", str(port)]
            process = ending.enter_context(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            ending.callback(process.send_signal, signal.SIGINT)
            until(lambda: urllib.request.urlopen(url, timeout=5).status == 200, 60)
            return tab(url + query)

        yield opened


PROBLEM = "document.getElementById('problem')?.textContent ?? ''"
KEYS = "JSON.stringify([...document.querySelectorAll('article')].map(a => a.dataset.key))"


def keys(browser: Browser) -> list[str]:
    return json.loads(browser.js(KEYS))


def choose(browser: Browser, **values: str) -> None:
    for name, value in values.items():
        browser.js(f"document.getElementById('form').{name}.value = {json.dumps(value)}")
    browser.js("document.getElementById('form').requestSubmit()")


def test_filters_and_one_prompt_over_training_of_a_run_that_has_ended(tmp_path: Path, page_of) -> None:
    browser = page_of(ended_run(tmp_path, SOURCES))
    until(lambda: len(keys(browser)) == 32, 20)
    assert keys(browser)[0] == "3 3:0 0"
    offered = "JSON.stringify([...document.getElementById('form').source.options].map(o => o.value))"
    assert json.loads(browser.js(offered)) == ["", "easy", "hard"]
    choose(browser, step="1", source="hard")
    until(lambda: keys(browser) == [f"1 1:{p} {n}" for p in (1, 3) for n in (0, 1)], 20)
    assert "source=hard" in browser.js("location.search")
    choose(browser, source="")
    assert browser.js("document.getElementById('known').textContent") == "of 4 steps, 0 to 3"
    choose(browser, step="1", success="false")
    until(lambda: keys(browser) == [f"1 1:{p} 1" for p in range(4)], 20)
    assert "success=false" in browser.js("location.search")
    choose(browser, step="", success="", order="longest")
    until(lambda: keys(browser)[0] == "3 3:0 1", 20)
    browser.js("document.querySelector('section h2 button').click()")
    until(lambda: browser.js("document.querySelectorAll('.over > section').length") == 4, 20)
    steps = [f"{s} {s}:0 {n}" for s in range(4) for n in (0, 1)]
    assert keys(browser) == steps
    assert browser.js("document.querySelectorAll('.over .squares i.hit').length") == 4
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    choose(browser, step="17")
    until(lambda: "no rollouts of step 17" in browser.js(PROBLEM), 20)
    assert browser.errors == []


def test_hostile_model_output_stays_text(tmp_path: Path, page_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Texts, "completion", lambda self, rollout: HOSTILE)
    monkeypatch.setattr(Texts, "prompt", lambda self, tokens: HOSTILE)
    browser = page_of(ended_run(tmp_path), "?prompt=1&view=over")
    until(lambda: len(keys(browser)) == 8, 20)
    assert browser.js("document.title") == "HORA rollouts"
    assert browser.js("document.querySelectorAll('#rows script, #rows img').length") == 0
    shown = browser.js("document.querySelector('article pre').textContent")
    said = HOSTILE
    for sign in "\x1b\x07\u202e\u2066\u200b\u2028\U000e0041\x9b":
        said = said.replace(sign, sign.encode("unicode_escape").decode())
    assert shown == said
    hidden = "/[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]/u"
    rows = "document.querySelector('#rows').textContent.replace(/[\\n\\t]/g, '')"
    assert browser.js(f"{hidden}.test({rows})") is False
    assert browser.errors == []


def test_what_cannot_be_read_is_a_sentence_on_the_page(tmp_path: Path, page_of) -> None:
    run = ended_run(tmp_path)
    for path in (run / "rollouts").iterdir():
        path.write_bytes(b"PAR1 no more")
    browser = page_of(run)
    until(lambda: "not a file of rollouts" in browser.js(PROBLEM), 20)
    assert browser.errors == []

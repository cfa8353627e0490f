"""An orderly stop is not broken off by whoever asks for it a second time."""

import os
import signal
import threading

import pytest

from deploy.launch.signals import heard_afterwards, stopped_by_signals, undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_is_not_heard_while_a_command_stops(number: signal.Signals) -> None:
    ended = []

    def interrupted_twice() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            with undisturbed():
                os.kill(os.getpid(), number)
                ended.append(True)

    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        interrupted_twice()
    assert ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_nothing_changes() -> None:
    seen = []

    def stop() -> None:
        with undisturbed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_process_starts_is_heard_when_it_is_known(number: signal.Signals) -> None:
    known = []

    def started() -> None:
        with heard_afterwards():
            os.kill(os.getpid(), number)
            known.append("process")

    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        started()
    assert known == ["process"]


def test_what_is_ignored_stays_ignored_for_what_is_started() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with heard_afterwards():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

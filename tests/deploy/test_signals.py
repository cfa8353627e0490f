"""An orderly stop is not broken off by whoever asks for it a second time."""

import os
import signal
import threading

import pytest

from deploy.launch.signals import stopped_by_signals, undisturbed


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

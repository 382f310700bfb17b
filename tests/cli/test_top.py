"""`raypool top` in a terminal of its own (a pty), over the real decision core without Ray."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raypool.spec import BrokerConfig
from tests.pages import ROOT, blocks
from tests.terminal import Terminal

if TYPE_CHECKING:
    from conftest import Cli

HERE = Path(__file__).parent
README = ROOT / "README.md"

PROGRAM = """
import sys, threading
sys.path.insert(0, sys.argv.pop(1))
from conftest import CoreClient
from raypool.cli import connection
from raypool.errors import BrokerUnavailable
from raypool.spec import BrokerConfig

client, looks = CoreClient(), 0
client.apply(BrokerConfig.load({
    "pools": [{"name": "gpus", "capacity": {"gpu": 8}}, {"name": "seats", "capacity": {"seats": 3}}],
    "policies": [{"pool": "gpus", "component": "red", "priority": 1}],
}))
client.submit(id="runs", component="red", resources={"gpu_count": 6})

def connect():
    "Each look finds one request more; some find no broker, or one that does not answer."
    global looks
    looks += 1
    if looks > 1:
        client.submit(id=f"wait{looks}", component="red", resources={"gpu_count": 3})
    if "--away" in sys.argv and looks in (3, 4):
        raise BrokerUnavailable("no broker runs here")
    if "--silent" in sys.argv and looks == 3:
        threading.Event().wait(4.5)
    return client

connection.connect = connect
from raypool.cli.main import main
main([word for word in sys.argv[1:] if word not in ("--away", "--silent")])
"""

Opens = Callable[..., Terminal]


@pytest.fixture
def opens() -> Iterator[Opens]:
    opened: list[Terminal] = []

    def open_(*words: str, **more: object) -> Terminal:
        opened.append(Terminal(PROGRAM, str(HERE), "top", *words, "--interval", "0.3", **more))  # type: ignore[arg-type]
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_it_refreshes_and_q_gives_the_terminal_back(opens: Opens) -> None:
    terminal = opens()
    terminal.until(lambda: " 1 wait2" in terminal.frame, "the second look has one that waits")
    terminal.until(lambda: " 3 wait4" in terminal.frame, "the screen is kept up to date")
    assert re.search(r"^gpu +\[a+\.+\] 6 of 8 used$", terminal.frame, re.M), terminal.frame
    assert "\x1b[?1049h" in terminal.written and not terminal.is_restored()
    terminal.press("q")
    assert terminal.ended() == 0
    assert terminal.is_restored()


@pytest.mark.parametrize(("how", "code"), [("\x03", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_whatever_ends_it_gives_the_terminal_back(opens: Opens, how: str | signal.Signals, code: int) -> None:
    terminal = opens()
    terminal.until(lambda: "runs" in terminal.frame, "it is there")
    terminal.press(how) if isinstance(how, str) else os.kill(terminal.pid, how)
    assert terminal.ended() == code
    assert terminal.is_restored()
    assert "Traceback" not in terminal.written


def test_n_and_p_turn_to_the_other_pools(opens: Opens) -> None:
    terminal = opens()
    terminal.until(lambda: "gpus: 1 running" in terminal.frame, "the busiest is shown")
    assert "n next pool" in terminal.frame
    terminal.press("n")
    terminal.until(lambda: "seats: 0 running" in terminal.frame, "the next one")
    terminal.press("n")
    terminal.until(lambda: "gpus: 1 running" in terminal.frame, "round again")
    terminal.press("p")
    terminal.until(lambda: "seats: 0 running" in terminal.frame, "and back")


def test_it_takes_the_size_that_the_terminal_has_now(opens: Opens) -> None:
    terminal = opens()
    terminal.until(lambda: "runs" in terminal.frame, "it is there")
    terminal.resize(150, 40)
    terminal.until(lambda: max(map(len, terminal.frame.splitlines())) > 120, "it is wider now")
    terminal.resize(60, 12)
    terminal.until(lambda: max(map(len, terminal.frame.splitlines())) <= 60, "and narrower")
    assert len(terminal.frame.splitlines()) <= 13


def test_a_broker_that_is_away_is_said_and_found_again(opens: Opens) -> None:
    terminal = opens("--away")
    terminal.until(lambda: "! no broker runs here; asking again; what stands below is of" in terminal.frame, "away")
    assert "runs" in terminal.frame, "what was seen last stays"
    terminal.until(lambda: "wait5" in terminal.frame and "!" not in terminal.frame, "found again")


def test_a_broker_that_does_not_answer_is_said_and_keeps_nobody_from_leaving(opens: Opens) -> None:
    terminal = opens("--silent")
    terminal.until(lambda: "! the broker has not answered for" in terminal.frame, "silent")
    terminal.press("q")
    assert terminal.ended() == 0
    assert terminal.is_restored()


def test_no_colour_is_written_where_none_is_wanted(opens: Opens) -> None:
    plain, coloured = opens(NO_COLOR="1"), opens()
    for one in (plain, coloured):
        one.until(lambda one=one: "wait2" in one.frame, "it is there")
    assert "\x1b[33m" in coloured.written or "\x1b[1m\x1b[33m" in coloured.written
    assert not re.search(r"\x1b\[(3|9)\dm", plain.written)


@pytest.mark.parametrize("more", [{"TERM": "dumb"}, {}])
def test_without_a_screen_or_with_once_it_prints_once(opens: Opens, more: dict[str, str]) -> None:
    terminal = opens(*([] if more else ["--once"]), **more)
    assert terminal.ended() == 0
    assert "6 of 8 used" in terminal.written and "\x1b[?1049h" not in terminal.written


# --- where stdout is no terminal --------------------------------------------------------------


def test_in_a_pipe_it_is_plain_text_once(busy: Cli) -> None:
    text = busy("top").stdout
    assert "\x1b" not in text
    assert re.search(r"^ 1 bbbb2222 +blue +4 gpu", text, re.M), text
    assert "asks for 4 gpu, 2 free" in text
    assert re.search(r"^aaaa1111 +red +6 gpu +4 gpu", text, re.M), text
    assert text.index("gpus: 1 running, 1 waiting, strict") < text.index("licences: 0 running, 0 waiting, strict")


def test_the_readme_shows_what_is_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for times, and for the nodes, of which there are none here."""
    assert cli.client is not None
    cli.client.now = time.time()
    pools = next(one.text for one in blocks(README, "yaml") if "policies" in one.text)
    cli.client.apply(BrokerConfig.from_yaml(pools))
    asked = ("sweep-11", "sweep-12", "finetune-3", "serve-a", "sweep-13", "serve-b")
    of = {"sweep": "sandbox", "finetune": "team-ml", "serve": "production"}
    for name in asked:
        cli.client.submit(id=name, component=of[name.partition("-")[0]], resources={"gpu_count": 2})
    (shown,) = (one.text for one in blocks(README, "text") if "sweep-12" in one.text)
    monkeypatch.setenv("COLUMNS", "90")

    def shape(text: str) -> str:
        text = re.sub(r"\b\d+ (s|min|h|d)\b( \d+ (s|min|h)\b)?", "T", text.partition("\n")[2])
        return re.sub(r"\s+", " ", re.sub(r" ([0-9a-f]{8}|-)$", "", text, flags=re.M)).strip()

    assert shape(cli("top", "--once").stdout) == shape(shown)


def test_a_pool_can_be_chosen_and_one_that_is_not_there_is_an_error(busy: Cli) -> None:
    text = busy("top", "--pool", "licences").stdout
    assert "licences: 0 running" in text and "gpus: 1 running" not in text
    assert "there is no pool 'x'" in busy("top", "--pool", "x", code=1).stderr


def test_without_pools_it_says_how_to_make_some(cli: Cli) -> None:
    assert "no pools; `raypool apply -f pools.yaml`" in cli("top").stdout
    cli.client = None
    assert "no broker runs here" in cli("top", code=3).stderr

"""That this process is there: what the broker goes by when it asks whether a lease still has an owner.

As long as the process waits for a lease or holds one, two calls of the broker are kept open, however many
leases there are: `hold`, whose reference is this process's and fails in the broker's hands when the process
dies, and `here`, asked again each time it is answered, the sign of life. Both end with the last lease: Ray
lets no worker exit that waits for an answer.
"""

from __future__ import annotations

import logging
import threading
import uuid
from functools import partial
from typing import Any

import ray.exceptions

from raypool.client.broker import BrokerLine, session
from raypool.client.listening import LOOK_AGAIN_SECONDS, find_again, listener

logger = logging.getLogger("raypool")

LINGER_SECONDS = 0.2
"""How long it is kept up without any lease: a loop that takes one after the other stays."""


class Presence:
    """One stretch of time in which this process is an owner. `name` is its holder id, used for that stretch
    only. Changed under `_lock`."""

    def __init__(self, line: BrokerLine) -> None:
        self.name = uuid.uuid4().hex
        self.session = session()
        self.stays = 0
        self.left = False
        self._line = line
        self._hold: Any = None
        self._known = False
        self._turn = 0
        self._out_of_sight = False

    def come(self) -> None:
        """Gives the broker a token. What is still heard of an earlier one means nothing any more."""
        with _lock:
            if self._over():
                return
            self._turn += 1
            self._known = False
            self._hold = listener().ask(self._line, "hold", self.name, then=partial(self._hold_ended, self._turn))
            self._say_here(self._turn)

    def _say_here(self, turn: int) -> None:
        with _lock:
            if turn == self._turn and not self._over():
                token = [] if self._known or self._hold is None else [self._hold]
                listener().ask(self._line, "here", self.name, token, then=partial(self._answered, turn))

    def _over(self) -> bool:
        """A process that has left its cluster has no leases there any more: its job is over."""
        return self.left or self.session != session()

    def _answered(self, turn: int, answer: Any) -> None:
        if turn != self._turn or self.left:
            return
        try:
            self._known = answer.result()
        except ray.exceptions.RayTaskError as error:  # a fault of the broker's, which is there: the token stands
            self._lost_sight(error)
            listener().later(LOOK_AGAIN_SECONDS, partial(self._say_here, turn))
        except ray.exceptions.RayError as error:
            self._come_again(error)
        else:
            self._out_of_sight = False
            if self._known:
                self._say_here(turn)
            else:
                self.come()

    def _hold_ended(self, turn: int, answer: Any) -> None:
        """With the broker's process, mostly; the next one needs another token."""
        if turn == self._turn and not self.left:
            self._come_again(answer.exception())

    def _come_again(self, error: BaseException | None) -> None:
        self._lost_sight(error)
        with _lock:
            self._turn += 1
        if isinstance(error, ray.exceptions.ActorDiedError):
            find_again(self._line)
        listener().later(LOOK_AGAIN_SECONDS, self.come)

    def _lost_sight(self, error: BaseException | None) -> None:
        if not self._out_of_sight and not self._over():
            logger.warning("the broker does not hear this process (%s); trying again", error)
        self._out_of_sight = True

    def leave_if_idle(self) -> None:
        """The broker answers both open calls when it hears of it."""
        global _present
        with _lock:
            if self.stays or self.left:
                return
            if not self._over():
                listener().ask(self._line, "bye", self.name, then=lambda answer: None)
            self.left, self._hold = True, None
            if _present is self:
                _present = None


class Stay:
    """What one lease needs of it, from before it is asked for until it has ended."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._ended = False

    @property
    def holder(self) -> str:
        return self._presence.name

    def leave(self) -> None:
        """Once is enough."""
        with _lock:
            if self._ended:
                return
            self._ended = True
            self._presence.stays -= 1
            idle = not self._presence.stays
        if idle:
            listener().later(LINGER_SECONDS, self._presence.leave_if_idle)


_present: Presence | None = None
_lock = threading.RLock()


def stay(line: BrokerLine) -> Stay:
    """Makes the process known to the broker, if it is not. Does not wait for an answer."""
    global _present
    with _lock:
        if _present is None or _present.session != session():
            _present = Presence(line)
            _present.come()
        _present.stays += 1
        return Stay(_present)

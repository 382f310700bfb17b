"""Many submissions in one call: all are checked before the first is handled, and what they ask for alike is
checked, and written out, once.

A body is a request without its id. The rule that must not break: a request of a batch is the same, in the core
and in the journal, as one that was submitted by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raypool.core import events as ev
from raypool.core.records import body_text, submission_text
from raypool.core.request import Request
from raypool.errors import Refused, SpecError
from raypool.spec import RequestSpec


class Body:
    """What some requests ask for alike. text: all of it but the id, as the journal has it."""

    __slots__ = ("spec", "text")

    def __init__(self, data: Mapping[str, Any], at: int) -> None:
        """Raises SpecError."""
        try:
            self.spec: RequestSpec = RequestSpec.load({**data, "id": "?"})
        except SpecError as error:
            raise SpecError(f"bodies[{at}]: {error}", error.problems) from None
        self.text = body_text(self.spec)

    def named(self, request_id: str) -> RequestSpec:
        return self.spec.model_copy(update={"id": request_id})

    def asks_for(self, spec: RequestSpec) -> bool:
        return body_text(spec) == self.text


class Batch:
    """Requests in order: their ids, and for each the place of its body in `bodies`. job: whose they are, but for
    those that outlive it. known: the requests that there are."""

    def __init__(
        self,
        bodies: Sequence[Mapping[str, Any]],
        ids: Sequence[str],
        body_of: Sequence[int],
        job: str | None,
        known: Mapping[str, Request],
    ) -> None:
        """Raises SpecError, and Refused for an id that stands for something else."""
        if len(body_of) != len(ids):
            raise SpecError(f"body_of: must say a body for each of {len(ids)} ids, got {len(body_of)}")
        outside = next((one for one in body_of if not 0 <= one < len(bodies)), None)
        if outside is not None:
            raise SpecError(f"body_of: must be places in {len(bodies)} bodies, got {outside}")
        self.ids = ids
        self._bodies = [Body(data, at) for at, data in enumerate(bodies)]
        self._jobs = [None if body.spec.lifetime == "detached" else job for body in self._bodies]
        self._new = self._those_not_known(body_of, known)

    def _those_not_known(self, body_of: Sequence[int], known: Mapping[str, Request]) -> dict[str, int]:
        new: dict[str, int] = {}
        for request_id, at in zip(self.ids, body_of, strict=True):
            if request_id in known:
                same = self._bodies[at].asks_for(known[request_id].spec)
            else:
                same = self._bodies[new.setdefault(request_id, at)].text == self._bodies[at].text
            if not same:
                raise Refused(
                    f"request id '{request_id}' is taken, by a request for something else: an id is used once; "
                    "nothing of this call was submitted"
                )
        return new

    def submissions(self) -> Iterator[tuple[ev.Submitted, str]]:
        """Of those that are not known yet; each with the text that the journal has of it."""
        for request_id, at in self._new.items():
            body, job = self._bodies[at], self._jobs[at]
            yield ev.Submitted(body.named(request_id), job), submission_text(request_id, body.text, job)

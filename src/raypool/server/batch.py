"""Many submissions in one call: all are checked before the first is handled, and what they ask for alike is
checked, and written out, once.

A body is a request without its id. The rule that must not break: a request of a batch is the same, in the core,
as one that was submitted by itself.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from typing import Any

from raypool.core import events as ev
from raypool.core.asks import Memo
from raypool.core.request import Request
from raypool.errors import Refused, SpecError
from raypool.spec import RequestSpec

KEPT_BYTES = 2_000
"""A body that is longer than that, as `marshal` writes it, is not remembered."""


class Bodies:
    """Bodies that were checked lately, by how they were written: `marshal` tells apart all that JSON has."""

    def __init__(self) -> None:
        self._by_text: Memo[bytes, RequestSpec] = Memo()

    def checked(self, data: dict[str, Any], at: int) -> RequestSpec:
        """With an id that is nobody's. Raises SpecError, which names the place."""
        text = marshal.dumps(data, 2)
        known = self._by_text.get(text)
        if known is not None:
            return known
        try:
            spec: RequestSpec = RequestSpec.load({**data, "id": "?"})
        except SpecError as error:
            raise SpecError(f"bodies[{at}]: {error}", error.problems) from None
        return self._by_text.keep(text, spec) if len(text) <= KEPT_BYTES else spec


class Batch:
    """Requests in order: their ids, and for each the place of its body in `bodies`. job: whose they are, but for
    those that outlive it. known: the requests that there are. event: the submission of the others."""

    def __init__(
        self,
        bodies: Sequence[dict[str, Any]],
        ids: Sequence[str],
        body_of: Sequence[int],
        job: str | None,
        known: Mapping[str, Request],
        checked: Bodies,
    ) -> None:
        """Raises SpecError, and Refused for an id that stands for something else."""
        if len(body_of) != len(ids):
            raise SpecError(f"body_of: must say a body for each of {len(ids)} ids, got {len(body_of)}")
        if min(body_of) < 0 or max(body_of) >= len(bodies):
            outside = next(one for one in body_of if not 0 <= one < len(bodies))
            raise SpecError(f"body_of: must be places in {len(bodies)} bodies, got {outside}")
        self._bodies = tuple(checked.checked(data, at) for at, data in enumerate(bodies))
        if known.keys().isdisjoint(ids) and len(set(ids)) == len(ids):
            self.event = ev.ManySubmitted(self._bodies, tuple(ids), tuple(body_of), job)
        else:
            new = self._those_not_known(ids, body_of, known)
            self.event = ev.ManySubmitted(self._bodies, tuple(new), tuple(new.values()), job)

    def _those_not_known(
        self, ids: Sequence[str], body_of: Sequence[int], known: Mapping[str, Request]
    ) -> dict[str, int]:
        new: dict[str, int] = {}
        for request_id, at in zip(ids, body_of, strict=True):
            spec = known[request_id].spec if request_id in known else self._bodies[new.setdefault(request_id, at)]
            if _without_id(spec) != _without_id(self._bodies[at]):
                raise Refused(
                    f"request id '{request_id}' is taken, by a request for something else: an id is used once; "
                    "nothing of this call was submitted"
                )
        return new


def _without_id(spec: RequestSpec) -> dict[str, Any]:
    fields = spec.dump()
    del fields["id"]
    return fields

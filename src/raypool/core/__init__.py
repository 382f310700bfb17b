"""The decision core: a state machine without a clock, without Ray, without luck.

`Broker.handle(event, now) -> [instruction]` is the only door and the only writer. The rules are in
docs/reference/semantics.md; each module here names the section it carries out.
"""

"""What people write: pools, policies, requests, and the resources a request asks for.

Everything here is a frozen pydantic model: strict (a string is not a number, 1.5 is not a whole
number), closed (an unknown field is an error), and ready to export as JSON Schema. A fault raises
`SpecError`, which names the field, what was given and what is allowed. Nothing here knows how
requests are decided, nor Ray. The rule that must not break: `ResourceSettings.demand()` is the only
place where people's units become the whole numbers that pools count.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import reprlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from raypool.errors import SpecError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic has no public name for it

GPU, MCPU, MEMORY_MB, STEP_RUN = "gpu", "mcpu", "memory_mb", "step_run"

UNMETERED_UNLESS_LISTED = frozenset({MCPU, MEMORY_MB, STEP_RUN})
"""Keys that a pool neither checks nor counts unless its capacity lists them (semantics 2)."""

MAX_AMOUNT = 10**15
"""No amount may be larger: sums of thousands of them must stay exact in JSON numbers."""

SMALLEST_CPU = 0.0001
"""Ray keeps resources in ten-thousandths; a bundle that would be empty holds this."""

MEMORY_UNITS = {
    "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30,
    "TB": 10**12, "TiB": 2**40, "PB": 10**15, "PiB": 2**50,
}  # fmt: skip


# --- names and amounts ------------------------------------------------------------------------


MOST_NAME = 128


def is_name(value: Any) -> bool:
    """Whether it may be the name or the id of something."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MOST_NAME
        and value == value.strip()
        and "/" not in value
        and value.isprintable()
    )


def are_names(values: list[Any]) -> bool:
    """Whether each of them may be, and there is one."""
    if not values or not {str}.issuperset(map(type, values)):
        return False
    lengths = set(map(len, values))
    together = "".join(values)
    return (
        min(lengths) > 0
        and max(lengths) <= MOST_NAME
        and "/" not in together
        and together.isprintable()
        and list(map(str.strip, values)) == values
    )


def _checked_name(value: str) -> str:
    if not is_name(value):
        raise ValueError("must be 1 to 128 printable characters, without '/' and without spaces at its ends")
    return value


def as_tuple(value: Any) -> Any:
    """Lists, as JSON and YAML have them, where a field is a tuple."""
    return tuple(value) if isinstance(value, list) else value


def parse_memory(text: str) -> int:
    """Bytes of a size like "16GiB". Raises ValueError for anything else, and for 0."""
    match = re.fullmatch(r"0*([0-9]*)(KB|KiB|MB|MiB|GB|GiB|TB|TiB|PB|PiB)", text, re.ASCII)
    if match is None or not match[1]:
        raise ValueError(f"must be a whole number > 0 and a unit, like '16GiB' ({' '.join(MEMORY_UNITS)})")
    most = MAX_AMOUNT * 10**6
    size = int(match[1]) * MEMORY_UNITS[match[2]] if len(match[1]) <= len(str(most)) else most + 1
    if size > most:
        raise ValueError(f"must be at most {most // MEMORY_UNITS['PB']}PB")
    return size


def _checked_memory(text: str) -> str:
    parse_memory(text)
    return text


def _checked_label(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?", value, re.ASCII):
        raise ValueError("must be a label as it stands on a node: letters, digits, '.', '_', '-', '/' (no operators)")
    return value


LabelPart = Annotated[str, AfterValidator(_checked_label)]
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME), AfterValidator(_checked_name)]
Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]
PositiveAmount = Annotated[int, Field(gt=0, le=MAX_AMOUNT)]
Seconds = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
MemorySize = Annotated[str, AfterValidator(_checked_memory)]
ComponentType = Literal["team", "orchestrator", "step_operator"]
Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
Demand = dict[str, int]


# --- the frame that all specs share -----------------------------------------------------------


class _SpecErrorsOnly(ModelMetaclass):
    """Turns pydantic's report into one `SpecError`, whichever way the model is built."""

    def __call__(cls: type[BaseModel], *args: Any, **fields: Any) -> Any:  # type: ignore[misc]  # noqa: N805
        try:
            return type.__call__(cls, *args, **fields)
        except ValidationError as error:
            raise _spec_error(cls, error) from None


class Spec(BaseModel, metaclass=_SpecErrorsOnly):
    """A frozen, strict, closed model whose faults are `SpecError`s."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def load(cls, data: Any) -> Any:
        """Builds the spec from plain JSON-like data. Raises `SpecError`."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _spec_error(cls, error) from None

    def dump(self) -> dict[str, Any]:
        """Plain JSON-like data that `load` takes back; fields at their defaults are left out."""
        return self.model_dump(mode="json", exclude_defaults=True)


# --- resources --------------------------------------------------------------------------------


class ResourceSettings(Spec):
    """What one worker asks for.

    gpu_count: whole GPUs, >= 0. None leaves `pool_resources["gpu"]` alone, 0 removes it.
    cpu_count: CPUs, > 0, fractions allowed (counted in thousandths, rounded up).
    memory: a whole number and a unit, like "16GiB" (KB KiB MB MiB GB GiB TB TiB PB PiB).
    pool_resources: any further keys a pool may meter, `{name: whole number > 0}`.
    preemptible: False asks never to be evicted; such work runs only inside its policy's reserve.
    """

    gpu_count: Amount | None = None
    cpu_count: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] | None = None
    memory: MemorySize | None = None
    pool_resources: dict[Name, PositiveAmount] = Field(default_factory=dict)
    preemptible: bool = True

    def demand(self) -> Demand:
        """The whole numbers that pools count, by key (semantics 1, steps 1 to 4; no `step_run` yet).

        >>> ResourceSettings(gpu_count=2, cpu_count=1.0005, memory="16GiB").demand()
        {'gpu': 2, 'mcpu': 1001, 'memory_mb': 17180}
        """
        demand = dict(self.pool_resources)
        if self.gpu_count is not None:
            demand.pop(GPU, None)
            if self.gpu_count:
                demand[GPU] = self.gpu_count
        if self.cpu_count is not None:
            # repr() gives the shortest decimal that the user can have written: 1.1 is 1100, not 1101.
            demand[MCPU] = math.ceil(Decimal(repr(self.cpu_count)) * 1000)
        if self.memory is not None:
            demand[MEMORY_MB] = -(-parse_memory(self.memory) // 10**6)
        return demand


# --- pools and policies -----------------------------------------------------------------------


class PoolSpec(Spec):
    """Named capacity that several components share.

    name: unique on the cluster. description: for people.
    capacity: `{key: whole number > 0}`; a key that is not listed has none (but `mcpu`, `memory_mb`
        and `step_run` are not metered at all unless listed).
    queueing: "strict": who has no room stops those behind him. "backfill": those behind may run
        meanwhile, as the first to leave.
    node_labels: only nodes with these labels carry the pool's work; {} means any node.
    ray_resources: pool keys that are Ray resources too, `{pool key: Ray resource name}`. Keys that
        are not listed (licences, say) are counted by the broker alone.
    grace_seconds: from the notice to the removal of a preempted group, >= 0.
    placement_timeout_seconds: how long a granted request may look for its nodes before it gives its
        room back and others pass, > 0.
    infeasible: what becomes of a request that no present node could ever hold: it waits for one, or
        it is rejected.
    """

    name: Name
    description: str = Field(default="", max_length=4096)
    capacity: Annotated[dict[Name, PositiveAmount], Field(min_length=1)]
    queueing: Literal["strict", "backfill"] = "strict"
    node_labels: dict[LabelPart, LabelPart] = Field(default_factory=dict)
    ray_resources: dict[Name, Name] = Field(default_factory=dict)
    grace_seconds: Seconds = 0.0
    placement_timeout_seconds: Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)] = 30.0
    infeasible: Literal["wait", "reject"] = "wait"

    @model_validator(mode="after")
    def _ray_resources_are_pool_keys(self) -> PoolSpec:
        for key, resource in self.ray_resources.items():
            if key not in self.capacity:
                raise ValueError(f"ray_resources names key '{key}', which the pool's capacity does not list")
            if key in (GPU, MCPU, MEMORY_MB) or resource in ("GPU", "CPU", "memory", "object_store_memory"):
                raise ValueError(f"ray_resources may not map '{key}' to '{resource}': Ray's own are mapped already")
        return self


class PolicySpec(Spec):
    """How one component uses one pool.

    priority: whole number >= 0; a higher one goes first and may preempt borrowers of a lower one.
    reserved: what the component can always have back, by key; a missing key is 0.
    limit: what it may never exceed, by key; a missing key is the pool's capacity; 0 blocks.
    """

    pool: Name
    component: Name
    component_type: ComponentType = "team"
    priority: Amount
    reserved: dict[Name, Amount] = Field(default_factory=dict)
    limit: dict[Name, Amount] = Field(default_factory=dict)

    @property
    def owner(self) -> tuple[str, str]:
        """Who it is for: (component, component type)."""
        return self.component, self.component_type


OWNER_TIMEOUT_SECONDS = 60.0

BROKER_WIDE = ("unmanaged", "owner_timeout_seconds")
"""The fields of a BrokerConfig that hold for the broker as a whole: what a config does not say stays."""


class BrokerConfig(Spec):
    """One YAML file: the pools, the policies, and what holds for the broker as a whole.

    unmanaged: "reject" requests of components that no policy names, or "allow" them: granted at
        once, charged to no pool.
    owner_timeout_seconds: a process that holds or waits and was not heard of for so long loses its
        requests, > 0.
    """

    pools: Annotated[tuple[PoolSpec, ...], BeforeValidator(as_tuple)] = ()
    policies: Annotated[tuple[PolicySpec, ...], BeforeValidator(as_tuple)] = ()
    unmanaged: Literal["reject", "allow"] = "reject"
    owner_timeout_seconds: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] = OWNER_TIMEOUT_SECONDS

    @model_validator(mode="after")
    def _each_once(self) -> BrokerConfig:
        for twice in _repeated(pool.name for pool in self.pools):
            raise ValueError(f"pool '{twice}' is there twice")
        for pool, owner in _repeated((policy.pool, policy.owner) for policy in self.policies):
            raise ValueError(f"the policy of {owner[1]} '{owner[0]}' in pool '{pool}' is there twice")
        return self

    def dump(self) -> dict[str, Any]:
        """As every spec; and what holds for the broker where it was given, since the default also takes back
        something else."""
        given = {name: getattr(self, name) for name in BROKER_WIDE if name in self.model_fields_set}
        return super().dump() | given

    @classmethod
    def from_yaml(cls, source: str | Path) -> BrokerConfig:
        """Reads a file (a Path) or YAML text (a str). Raises SpecError; OSError if there is no such file."""
        try:
            text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
            data = yaml.load(text, Loader=EachKeyOnce)
        except NOT_YAML as error:
            raise SpecError(f"not readable as YAML: {' '.join(str(error).split())}") from None
        config: BrokerConfig = cls.load({} if data is None else data)
        return config

    def to_yaml(self, head: str = "") -> str:
        """A file that `from_yaml` makes the same config of: settings, pools, and the policies of each pool
        together. head: lines of a comment to begin with."""
        data = self.dump()
        parts = [f"# {_one_line(line)}\n" for line in head.splitlines()]
        parts += [_as_yaml({name: data[name]}) for name in BROKER_WIDE if name in data]
        if self.pools:
            parts += ["\npools:\n", _as_yaml(data["pools"])]
        if self.policies:
            parts.append("\npolicies:\n")
        policies: dict[str, list[dict[str, Any]]] = {}
        for policy in data.get("policies", ()):
            policies.setdefault(policy["pool"], []).append(policy)
        for pool, of_pool in policies.items():
            parts += [f"# who may use '{pool}'\n", _as_yaml(of_pool)]
        return "".join(parts).lstrip("\n") or "{}\n"


class _Figures(dict[str, Any]):
    """What a field maps, like `{gpu: 8}`: written in one line."""


def _as_yaml(value: Any) -> str:
    if isinstance(value, list):
        value = [
            {name: _Figures(one) if isinstance(one, dict) else one for name, one in row.items()} for row in value
        ]
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # the one in C, if it was built
    """Fields one below the other."""


_Dumper.add_representer(
    _Figures, lambda dumper, figures: dumper.represent_mapping("tag:yaml.org,2002:map", figures, flow_style=True)
)


class EachKeyOnce(yaml.SafeLoader):
    """YAML as it is meant: a key that stands twice in one mapping would silently hide its first value."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for twice in _repeated((key.tag, key.value) for key in keys if isinstance(key, yaml.ScalarNode)):
            mark = [key.start_mark for key in keys if key.value == twice[1]][-1]
            raise yaml.composer.ComposerError(None, None, f"key {shorten(twice[1])} is there twice", mark)
        return node


NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""What PyYAML raises for text that is none: a ValueError for the 32nd of a month, for a number of
thousands of digits and for what is not UTF-8, a RecursionError for brackets nested without end."""


def _repeated(items: Iterator[Any] | Any) -> Iterator[Any]:
    seen = set()
    for item in items:
        if item in seen:
            yield item
        seen.add(item)


# --- requests ---------------------------------------------------------------------------------


ID_BYTES = 8


def new_request_id() -> str:
    """A fresh id. The client makes it, so that a call that is repeated asks for the same thing once."""
    return os.urandom(ID_BYTES).hex()


def new_request_ids() -> Iterator[str]:
    """Without end; drawn a thousand at a time."""
    while True:
        drawn = os.urandom(1_000 * ID_BYTES).hex()
        for at in range(0, len(drawn), 2 * ID_BYTES):
            yield drawn[at : at + 2 * ID_BYTES]


Bundles = Annotated[tuple[ResourceSettings, ...], Field(min_length=1, max_length=10_000), BeforeValidator(as_tuple)]


class RequestSpec(Spec):
    """What is asked once and granted whole, from one pool.

    Either `resources` for each of `workers` equal bundles, or `bundles`, a list of unlike ones (then
    `preemptible` stands here). `strategy` is the placement group's. `pool` pins the request to one
    pool. `grace_seconds` may shorten the pool's grace, never lengthen it. `lifetime="detached"`: the
    request outlives its job, until it is released. `retry_of`: the id of the request that this one
    takes up again.

    on_node_loss: what becomes of it when a node under its placement group dies. "requeue": it ends,
        its group is removed whole, and who takes it up again (`retry_of`) has its place in line; the
        library does so for what it owns. "fail": it ends, and nobody takes its place. "wait": Ray may
        repair the group within `repair_seconds`; then as with "requeue".
    repair_seconds: how long, >= 0; only with on_node_loss="wait".
    max_duration_seconds: how long it may run, from its grant, > 0; then it has the grace of an eviction, and is
        ended. None: as long as it likes.
    """

    id: Name = Field(default_factory=new_request_id)
    component: Name
    component_type: ComponentType = "team"
    pool: Name | None = None
    resources: ResourceSettings | None = None
    workers: Annotated[int, Field(ge=1, le=10_000)] = 1
    bundles: Bundles | None = None
    preemptible: bool | None = None
    strategy: Strategy = "PACK"
    grace_seconds: Seconds | None = None
    lifetime: Literal["detached"] | None = None
    on_node_loss: Literal["requeue", "fail", "wait"] = "requeue"
    repair_seconds: Seconds = 60.0
    max_duration_seconds: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] | None = None
    retry_of: Name | None = None
    description: str = Field(default="", max_length=4096)

    @model_validator(mode="after")
    def _repairs_only_if_it_waits(self) -> RequestSpec:
        if "repair_seconds" in self.model_fields_set and self.on_node_loss != "wait":
            raise ValueError(
                f"repair_seconds: only with on_node_loss='wait', and on_node_loss is {self.on_node_loss!r}: nothing "
                "waits for a repair then"
            )
        return self

    @model_validator(mode="after")
    def _resources_or_bundles(self) -> RequestSpec:
        if self.bundles is None:
            if (
                self.preemptible is not None
                and "preemptible" in (self.resources or ResourceSettings()).model_fields_set
            ):
                raise ValueError("preemptible is given twice: on the request and in its resources; give it once")
            return self
        if self.resources is not None or self.workers != 1:
            raise ValueError("give either resources (with workers) or bundles, not both")
        if any("preemptible" in bundle.model_fields_set for bundle in self.bundles):
            raise ValueError("with bundles, preemptible stands on the request: a gang leaves whole")
        return self

    @property
    def owner(self) -> tuple[str, str]:
        """Who asks: (component, component type); what a policy is looked up by."""
        return self.component, self.component_type

    @property
    def is_preemptible(self) -> bool:
        if self.preemptible is not None:
            return self.preemptible
        return self.resources.preemptible if self.resources is not None else True

    def bundle_list(self) -> tuple[ResourceSettings, ...]:
        """One `ResourceSettings` per bundle, in bundle order."""
        if self.bundles is not None:
            return self.bundles
        return (self.resources or ResourceSettings(),) * self.workers

    def demand(self) -> Demand:
        """What the whole request counts for, by key (semantics 1).

        >>> RequestSpec(component="t", workers=3, resources=ResourceSettings(gpu_count=2)).demand()
        {'gpu': 6, 'step_run': 1}
        """
        if self.bundles is None:
            one = (self.resources or ResourceSettings()).demand()
            total = {key: amount * self.workers for key, amount in one.items()}
        else:
            total = {}
            for bundle in self.bundles:
                for key, amount in bundle.demand().items():
                    total[key] = total.get(key, 0) + amount
        total[STEP_RUN] = 1  # one request is one step, however many workers it has
        return total


# --- sentences for faults ---------------------------------------------------------------------


MOST_PROBLEMS = 20
"""So many faults are told one by one; a message must stay readable."""


def _spec_error(model: type[BaseModel], error: ValidationError) -> SpecError:
    faults = error.errors(include_url=False)
    problems = tuple(dict.fromkeys(_problem(model, fault) for fault in faults[:MOST_PROBLEMS]))
    if len(faults) > MOST_PROBLEMS:
        problems += (f"and {len(faults) - MOST_PROBLEMS} more",)
    return SpecError(f"{model.__name__}: " + "; ".join(problems), problems)


_MUST = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "tuple_type": "must be a list",
    "finite_number": "must be a finite number",
    "invalid_key": "must be a string",
    "missing": "is required",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}


def _problem(model: type[BaseModel], fault: Mapping[str, Any]) -> str:
    """One sentence: the field's path, what was given, what is allowed."""
    kind, where, context = fault["type"], fault["loc"], fault.get("ctx", {})
    path = _path(where)
    if kind == "extra_forbidden":
        return f"{path}: no such field{_allowed(model, where)}"
    if kind == "missing":
        return f"{path}: is required"
    must = {
        "greater_than": f"must be > {_bound(context.get('gt'))}",
        "greater_than_equal": f"must be >= {_bound(context.get('ge'))}",
        "less_than_equal": f"must be <= {_bound(context.get('le'))}",
        "literal_error": f"must be {context.get('expected')}",
        "value_error": str(context.get("error", fault["msg"])),
        "string_too_long": f"must have at most {context.get('max_length')} characters",
        "too_long": f"must have at most {context.get('max_length')} entries",
    }.get(kind, _MUST.get(kind, fault["msg"]))
    if kind == "value_error" and (not where or isinstance(where[-1], int) or not isinstance(fault["input"], str)):
        return f"{path}: {must}" if where else must  # a rule between fields: its sentence has the figures
    return f"{path}: {must}, got {shorten(fault['input'])}"


def _path(where: tuple[int | str, ...]) -> str:
    """ "policies[2].limit.gpu" of ("policies", 2, "limit", "gpu"); union branches are left out."""
    if not where:
        return "the document"
    path = ""
    for step in where:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            path += f".{_shown(step)}" if path else _shown(step)
    return path


def _shown(key: str, most: int = 40) -> str:
    """A key as a message may show it: in one line, and not ten megabytes of it."""
    text = key if len(key) <= most else key[: most - 1] + "…"
    return text if text.isprintable() else repr(text)[1:-1]


def _bound(bound: Any) -> str:
    """0 for 0.0: as one would write it."""
    return str(int(bound)) if isinstance(bound, float) and bound.is_integer() else str(bound)


def _allowed(model: type[BaseModel], where: tuple[int | str, ...]) -> str:
    """The fields that would have been allowed there, and the likeliest one."""
    holder: Any = model
    for step in where[:-1]:
        if isinstance(step, str) and step in holder.model_fields:
            inner = _model_inside(holder.model_fields[step].annotation)
            if inner is None:
                return ""
            holder = inner
    fields = list(holder.model_fields)
    close = difflib.get_close_matches(str(where[-1])[:100], fields, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return f" (allowed: {', '.join(fields)}){hint}"


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    """The model that a field's type holds, through Optional, tuple and dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_inside(inner)
        if found is not None:
            return found
    return None


def shorten(value: Any, most: int = 60) -> str:
    """`repr`, cut: a fault must not print ten megabytes."""
    text = _SHORT.repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"


class _Short(reprlib.Repr):
    """Looks at no more of a value than can be shown, however large or deep it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 4, 200, 200
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 20

    def repr_str(self, value: str, level: int) -> str:
        return repr(value[: self.maxstring])

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring])

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > 4096:  # Python itself refuses to print more than some thousand digits
            return f"a number of {value.bit_length()} bits"
        return repr(value)


_SHORT = _Short()

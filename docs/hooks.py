"""What the manual has beyond its pages: parts that are made from the code, and links that leave docs/.

A line like `<!-- made from the code: command raypool top -->` is replaced, when the site is built, by what the code
says. Links in the pages lead through the repository, as GitHub follows them; a file outside of docs/ that a page
links to comes into the site below `repository/`. mkdocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

import raypool
from raypool import errors
from raypool.cli.main import main as raypool_main

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "repository"
MARK = re.compile(r"^<!-- made from the code: (\w+)(?: ([\w -]+\w))? -->$", re.MULTILINE)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)

# --- parts that are made from the code --------------------------------------------------------


def every_command(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that does something, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from every_command(found, f"{path} {name}")


def command(path: str) -> str:
    """The usage of a command, called by these words, and its options; those that all commands have are left out."""
    found = dict(every_command(raypool_main, "raypool"))[path]
    context = click.Context(found, info_name=path)
    usage = " ".join([path, *found.collect_usage_pieces(context)])
    rows = [
        (
            ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts]),
            _value(option, context),
            _default(option, context),
            option.help or "",
        )
        for option in found.get_params(context)
        if isinstance(option, click.Option) and not option.hidden and not {"--help", "--address"} & {*option.opts}
    ]
    table = [_table(("option", "value", "default", "meaning"), rows)] if rows else []
    return "\n\n".join([f"```text\n{usage}\n```", *table])


def _value(option: click.Option, context: click.Context) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return " ".join(f"`{one}`" for one in option.type.choices)
    said = f"`{option.make_metavar(context)}`"
    if isinstance(option.type, click.IntRange | click.FloatRange):
        said = f"`{option.type.name.split()[0].upper()}`, {_range(option.type)}"
    if option.envvar:
        said += f"; else the variable `{option.envvar}`"
    return said + (", repeatable" if option.multiple else "")


def _range(bounds: click.IntRange | click.FloatRange) -> str:
    if bounds.min is None or bounds.max is None:
        return f"<= {bounds.max:,}" if bounds.min is None else f">= {bounds.min:,}"
    return f"{bounds.min:,} to {bounds.max:,}"


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "required"
    default = option.to_info_dict()["default"]
    said = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    return f"`{default}`" if said and default != "" else ""


def exceptions() -> str:
    """The tree, and each exception with its docstring and what it carries."""
    public = {getattr(raypool, name) for name in raypool.__all__ if _is_exception(getattr(raypool, name))}
    tree = ["RaypoolError", *_tree(errors.RaypoolError, public, "")]
    parts = [f"## `{one.__name__}`\n\n{_bases(one, public)}{inspect.getdoc(one)}" for one in _in_order(public)]
    return "\n\n".join(["```text\n" + "\n".join(tree) + "\n```", *parts])


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _children(one: type, public: set[type]) -> list[type]:
    """The public classes right below it; a class that is not public is passed over."""
    found: list[type] = []
    for child in one.__subclasses__():
        found += [child] if child in public else _children(child, public)
    return found


def _tree(one: type, public: set[type], indent: str) -> list[str]:
    lines = []
    children = _children(one, public)
    for child in children:
        last = child is children[-1]
        lines.append(f"{indent}{'└── ' if last else '├── '}{child.__name__}")
        lines += _tree(child, public, indent + ("    " if last else "│   "))
    return lines


def _in_order(public: set[type]) -> list[type]:
    def below(one: type) -> list[type]:
        return [one, *(each for child in _children(one, public) for each in below(child))]

    return below(errors.RaypoolError)


def _bases(one: type, public: set[type]) -> str:
    ours = next((base.__name__ for base in one.__mro__[1:] if base in public), None)
    others = [base.__name__ for base in one.__bases__ if base.__module__ == "builtins" and base is not Exception]
    init = next(base.__dict__["__init__"] for base in one.__mro__ if "__init__" in base.__dict__)
    names = init.__code__.co_varnames[: init.__code__.co_argcount] if inspect.isfunction(init) else ()
    carried = [name for name in names if name not in ("self", "message")]
    said = [f"Is a `{ours}`"] if ours else []
    said += [f"also a `{name}`" for name in others]
    said += ["carries " + ", ".join(f"`{name}`" for name in carried)] if carried else []
    return ", ".join(said) + ".\n\n" if said else ""


EXPLAINED = {
    "BrokerConfig": "pools.md#the-file-brokerconfig",
    "PoolSpec": "pools.md#a-pool-poolspec",
    "PolicySpec": "pools.md#a-policy-policyspec",
    "RequestSpec": "using.md#requests",
    "ResourceSettings": "pools.md#what-one-request-holds-resourcesettings",
}
"""Where a page says what the fields mean."""


def config() -> str:
    """Every field of what people write, with its type, bounds and default."""
    return "\n\n".join(_spec(getattr(raypool, name), where) for name, where in EXPLAINED.items())


def _spec(spec: type[BaseModel], where: str) -> str:
    schema = spec.model_json_schema()
    rows = []
    for name, field in spec.model_fields.items():
        found = schema["properties"][name]
        optional = any(one.get("type") == "null" for one in found.get("anyOf", ()))
        found = next((one for one in found.get("anyOf", ()) if one.get("type") != "null"), found)
        default = _default_of(field)
        rows.append(
            (f"`{name}`", _type(found), _bounds(found), "none" if optional and default == "`None`" else default)
        )
    table = _table(("field", "type", "bounds", "default"), rows)
    first = (inspect.getdoc(spec) or "").partition("\n\n")[0]
    return f"## `{spec.__name__}`\n\n{first} [What the fields mean]({where}).\n\n{table}"


def _default_of(field: Any) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is None:
        return f"`{list(field.default)}`" if isinstance(field.default, tuple) else f"`{field.default!r}`"
    return "made" if field.default_factory is not dict else "`{}`"


def _type(schema: dict[str, Any]) -> str:
    """A JSON Schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema["type"] == "array":
        return "list of " + _type(schema["items"])
    if schema["type"] == "object":
        return "mapping of names to " + _type(schema["additionalProperties"])
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    return words[schema["type"]]


BOUNDS: dict[str, Callable[[Any], str]] = {
    "minimum": lambda least: f">= {least:,}",
    "exclusiveMinimum": lambda least: f"> {least:,}",
    "maximum": lambda most: f"<= {most:,}",
    "minLength": lambda least: f"at least {least:,}",
    "maxLength": lambda most: f"at most {most:,} characters",
    "minItems": lambda least: f"at least {least:,}",
    "maxItems": lambda most: f"at most {most:,} entries",
    "minProperties": lambda least: f"at least {least:,}",
}


def _bounds(schema: dict[str, Any]) -> str:
    inner = schema.get("additionalProperties")
    said = [word(schema[key]) for key, word in BOUNDS.items() if key in schema]
    if isinstance(inner, dict) and (of_values := _bounds(inner)):
        said.append(f"values {of_values}")
    return ", ".join(said)


def api() -> str:
    """Every public name, with its signature and docstring."""
    names = [name for name in raypool.__all__ if not name.startswith("_")]
    shown = [name for name in names if not _is_exception(getattr(raypool, name))]
    return "\n\n".join(_name(name, getattr(raypool, name)) for name in shown)


def _name(name: str, value: Any) -> str:
    if not isinstance(value, type):
        return f"## `{name}`\n\n{_signature(name, value)}\n\n{_docstring(value)}"
    head = f"## `{name}`\n\n{_docstring(value)}"
    if issubclass(value, BaseModel):
        return f"{head}\n\nFields: [config](config.md#{name.lower()})." + _methods(name, value)
    if dataclasses.is_dataclass(value):
        rows = [(f"`{field.name}`", f"`{_shown(field.type)}`") for field in dataclasses.fields(value)]
        return f"{head}\n\n{_table(('field', 'type'), rows)}" + _methods(name, value)
    return head + _methods(name, value)


def _methods(name: str, value: type) -> str:
    """The class's own public methods and properties, in the order of the source."""
    parts = []
    for method, found in vars(value).items():
        if method.startswith("_"):
            continue
        plain = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        if isinstance(plain, property):
            parts.append(f"\n\n### `{name}.{method}`\n\n{_docstring(plain)}")
        elif inspect.isfunction(plain):
            parts.append(f"\n\n### `{name}.{method}()`\n\n{_signature(method, plain)}\n\n{_docstring(plain)}")
    return "".join(parts)


def _signature(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    kept = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept)).replace("'", "")
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    if len(text) > 90:
        inner = ",\n".join(f"    {str(one).replace(chr(39), '')}" for one in _with_stars(kept))
        result = signature.return_annotation
        returns = "" if result is inspect.Signature.empty else f" -> {str(result).replace(chr(39), '')}"
        text = f"(\n{inner},\n){returns}"
    return f"```python\n{prefix}{name}{text}\n```"


def _with_stars(parameters: list[inspect.Parameter]) -> Iterator[Any]:
    """With the `*` that stands before what is given by name only."""
    star = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        yield one


def _shown(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _docstring(value: Any) -> str:
    """As it stands, with its lines: docstrings are laid out for reading in the source."""
    text = inspect.getdoc(value) or ""
    return f"```text\n{text}\n```" if text else ""


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


PARTS: dict[str, Callable[..., str]] = {
    "command": command,
    "exceptions": exceptions,
    "config": config,
    "api": api,
}


def with_parts(markdown: str) -> str:
    """The page with each mark replaced by what the code says."""
    return MARK.sub(lambda mark: PARTS[mark[1]](*filter(None, [mark[2]])), markdown)


# --- links that leave docs/ -------------------------------------------------------------------


def in_site(path: str) -> str | None:
    """Where a file of the repository is in the site; None: it is a folder, or outside of docs/ and not there."""
    if path.startswith("docs/"):
        return None if (ROOT / path).is_dir() else path.removeprefix("docs/")
    return f"{REPOSITORY}/{path}" if (ROOT / path).is_file() else None


def in_repository(uri: str) -> str:
    """The other way: the file of the repository that is at this place of the site."""
    return uri.removeprefix(f"{REPOSITORY}/") if uri.startswith(f"{REPOSITORY}/") else f"docs/{uri}"


def links(markdown: str) -> list[str]:
    """What a page links to, outside of its fenced blocks."""
    return [link[2] for part in FENCED.split(markdown)[::2] for link in LINK.finditer(part)]


def with_links(markdown: str, uri: str) -> str:
    """The page with its links as the site needs them. What the site does not have becomes plain text."""
    here = in_repository(uri)

    def mend(link: re.Match[str]) -> str:
        if re.match(r"[a-z]+:|#", link[2]):
            return link[0]
        path, mark, anchor = link[2].partition("#")
        target = in_site(posixpath.normpath(posixpath.join(posixpath.dirname(here), path)))
        if target is None:
            return link[1]
        return f"[{link[1]}]({posixpath.relpath(target, posixpath.dirname(uri) or '.')}{mark}{anchor})"

    parts = FENCED.split(markdown)
    return "".join(part if number % 2 else LINK.sub(mend, part) for number, part in enumerate(parts))


def outside(page: str) -> Iterator[str]:
    """The files outside of docs/ that this file of the repository links to."""
    for link in links((ROOT / page).read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:|#", link):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))
            if not path.startswith(("docs/", "..")) and (ROOT / path).is_file():
                yield path


def on_files(files: Any, config: Any) -> Any:
    """The files outside of docs/ that are linked to, and those that these link to, come into the site."""
    from mkdocs.structure.files import File

    ahead = [in_repository(file.src_uri) for file in files.documentation_pages()]
    known: set[str] = set()
    while ahead:
        for path in outside(ahead.pop()):
            if path not in known:
                known.add(path)
                files.append(File.generated(config, f"{REPOSITORY}/{path}", abs_src_path=os.fspath(ROOT / path)))
                ahead += [path] if path.endswith(".md") else []
    return files


FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*|<link\b[^>]*https?://[^>]*"""
)
"""What a browser fetches by itself."""


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The site is read where there is no network."""
    from mkdocs.exceptions import PluginError

    fetched = FROM_ELSEWHERE.search(output)
    if fetched:
        raise PluginError(f"{page.file.src_uri} fetches something from elsewhere: {fetched[0]}")
    return output


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return with_parts(with_links(markdown, page.file.src_uri))

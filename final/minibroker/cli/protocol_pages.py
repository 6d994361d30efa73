"""The documentation pages of the APIs, generated from the tables, with an example of each message.

    python -m minibroker.cli.protocol_pages docs/reference/protocol

This command writes the pages again. A test compares the pages in the repository with the tables.
"""

import re
import sys
from collections.abc import Iterator

from minibroker.broker.apis import declare_every_api
from minibroker.cli.protocol_examples import example_request, example_response
from minibroker.wire.apis import APIS, Api
from minibroker.wire.fields import REQUIRED, Field, Versions
from minibroker.wire.schema import Struct
from minibroker.wire.uuids import NO_UUID

REMADE = "<!-- Made from the tables by `python -m minibroker.cli.protocol_pages docs/reference/protocol`. -->"
EXAMPLE = [
    "A request and a response, without the four bytes of length before each: the position, the bytes, and the field",
    "with its value. Most fields have their defaults.",
]


def pages() -> dict[str, str]:
    """Return each page by its file name, including the index."""
    declare_every_api()
    made = {f"{_snake_case(api.name)}.md": _page(api) for api in APIS.values()}
    made["index.md"] = _index()
    return made


def _index() -> str:
    rows = [
        f"| {api.key} | [{api.name}]({_snake_case(api.name)}.md) | {_range(api)} | {_flexible(api)} | {_summary(api)} |"
        for _key, api in sorted(APIS.items())
    ]
    lines = [
        "# The protocol",
        "",
        REMADE,
        "",
        "These are the APIs that have tables. ApiVersions says which of them a broker serves. In a *flexible* version",
        "lengths are varints, and every struct ends with tagged fields. If a version lacks a field, a value",
        "other than the default is refused. A field marked `dropped` may have any value, which is then not sent.",
        "",
        "To see a message as it is sent, field by field beside its bytes: `minibroker serve --trace`. To see the code",
        "that reads and writes it: `python -m minibroker.wire.compiling ProduceRequest 9`. Produce is served from",
        "version 3, but announced from version 0, because librdkafka takes version 0 as a sign that a broker knows",
        "compression.",
        "",
        "| key | API | versions | flexible from | what it is for |",
        "|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _page(api: Api) -> str:
    lines = [
        f"# {api.name}",
        "",
        REMADE,
        "",
        f"API key {api.key} · versions {_range(api)} · flexible from {_flexible(api)} · table"
        f" `{api.request.__module__}`",
        "",
        *_about(api),
    ]
    for message in (api.request, api.response):
        lines += ["", f"## {message.__name__}", "", _doc(message), "", *_table(message)]
        for struct in _structs(message):
            lines += ["", f"### {struct.__name__}", "", _doc(struct), "", *_table(struct)]
    lines += ["", f"## Example in version {api.max_version}", "", *EXAMPLE]
    for example in (example_request(api), example_response(api)):
        lines += ["", "```text", *example, "```"]
    return "\n".join(lines).rstrip() + "\n"


def _module_doc(api: Api) -> str:
    return (sys.modules[api.request.__module__].__doc__ or "").strip()


def _summary(api: Api) -> str:
    """The first sentence of the table's module, without the name of the API."""
    first = _module_doc(api).split("\n", 1)[0].removesuffix(" A pure module.").removesuffix(".")
    return first.partition(": ")[2]


def _about(api: Api) -> list[str]:
    _first, _empty, rest = _module_doc(api).partition("\n\n")
    summary = _summary(api)
    return [f"{summary[0].upper()}{summary[1:]}.", *(["", *rest.split("\n")] if rest else [])]


def _range(api: Api) -> str:
    return f"{api.min_version}" if api.min_version == api.max_version else f"{api.min_version}–{api.max_version}"


def _flexible(api: Api) -> str:
    return str(api.flexible_from) if api.is_flexible(api.max_version) else "none"


def _doc(cls: type[Struct]) -> str:
    return (cls.__doc__ or "").strip()


def _structs(cls: type[Struct]) -> Iterator[type[Struct]]:
    """Yield the structs of the fields, in order, each once."""
    seen: list[type[Struct]] = []
    for field in cls.schema.fields:
        if field.struct is not None:
            seen += [field.struct, *_structs(field.struct)]
    yield from dict.fromkeys(seen)


def _table(cls: type[Struct]) -> list[str]:
    if not cls.schema.fields:
        return ["No fields."]
    assert cls.schema.versions is not None
    rows = [_row(field, cls.schema.versions) for field in cls.schema.fields]
    return ["| field | type | versions | default | about |", "|---|---|---|---|---|", *rows]


def _row(field: Field, message: Versions) -> str:
    versions = str(field.versions)
    notes = []
    if field.tag is not None:
        notes.append(f"tag {field.tag}")
    if field.nullable.last >= 0:
        notes.append("nullable" if field.nullable.first <= field.versions.first else f"nullable {field.nullable}")
    kind = ", ".join([f"`{field.type_text}`", *notes])
    about = field.about + (" (dropped where the version lacks it)" if _is_dropped(field, message) else "")
    return f"| `{field.name}` | {kind} | {versions} | {_default(field)} | {about} |"


def _is_dropped(field: Field, message: Versions) -> bool:
    return field.ignorable and not (message.first in field.versions and message.last in field.versions)


def _default(field: Field) -> str:
    if field.default is REQUIRED:
        return ""
    if field.default is None:
        return "null"
    if field.struct is not None and not field.is_array:
        return "its defaults"
    if field.default == NO_UUID:
        return "zero"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return {(): "empty", "": "empty"}.get(field.default, str(field.default))  # type: ignore[call-overload, no-any-return]


def _snake_case(name: str) -> str:
    """The name of the module that has the table of an API: `CreateTopics` is in `create_topics`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


if __name__ == "__main__":
    for name, text in pages().items():
        with open(f"{sys.argv[1]}/{name}", "w", encoding="utf-8") as file:
            file.write(text)

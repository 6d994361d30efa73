"""Prints the options as the reference page has them: `python tests/spark_reference.py`."""

from minibroker.spark.options import (
    BATCH,
    IGNORED_SETTINGS,
    OPTIONS,
    PRODUCER_SETTINGS,
    REFUSED_SETTINGS,
    REFUSED_VALUES,
    STREAM,
    USED_SETTINGS,
    WRITE,
)

BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"
_TAKEN_OF_A_PRODUCER = (
    "acks",
    "compression.type",
    "delivery.timeout.ms",
    "max.request.size",
    "transaction.timeout.ms",
)


def options_text() -> str:
    """Both tables, of our options and of the settings behind `kafka.`, in Markdown."""
    lines = ["| option | read, batch | read, stream | write | default | what it does |", "|---|---|---|---|---|---|"]
    for it in OPTIONS:
        marks = " | ".join("yes" if use in it.where else "" for use in (BATCH, STREAM, WRITE))
        lines.append(f"| `{it.name}` | {marks} | {_escaped(it.default)} | {_escaped(it.about)} |")
    lines += ["", "| setting | default |", "|---|---|"]
    used = {**USED_SETTINGS, **{name: PRODUCER_SETTINGS[name] for name in _TAKEN_OF_A_PRODUCER}}
    lines += [f"| `kafka.{name}` | {_escaped(default)} |" for name, default in used.items()]
    lines += ["", "| refused | why |", "|---|---|"]
    lines += [f"| `kafka.{name}` | {_escaped(why)} |" for name, why in REFUSED_SETTINGS.items()]
    lines += [f"| `kafka.{name}={value}` | {_escaped(why)} |" for (name, value), why in REFUSED_VALUES.items()]
    lines += ["| `kafka.ssl.*`, `kafka.sasl.*`, `kafka.security.providers` | TLS and SASL are not supported yet |"]
    rest = sorted({*IGNORED_SETTINGS, *PRODUCER_SETTINGS} - set(_TAKEN_OF_A_PRODUCER))
    lines += ["", f"Accepted without effect: {', '.join(f'`{name}`' for name in rest)}."]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def with_options(page: str) -> str:
    """A page whose tables are those of the code."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{options_text()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    print(options_text())

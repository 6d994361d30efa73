"""Taking the body out of one function. Functions of source text; nothing is run and no file is touched.

What stays is the learner's outline: decorators, signature, docstring and every comment with a line to
itself. The rest of the body makes way for `raise NotImplementedError("exercise 1.1: decode")`, and the rest
of the file is the same to the byte. `ast` says where a function is and `tokenize` what a comment is; that is
all it takes.
"""

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minibroker.course.errors import FunctionNotFound

Function = ast.FunctionDef | ast.AsyncFunctionDef


def strip(source: str, function: str, exercise: str) -> str:
    """Return `source` with the body of `function` (a qualified name) replaced by its outline and a raise."""
    lines = _lines_of(source)
    node = _find(source, function)
    tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    comments = _full_line_comments(lines, tokens)
    header = _header(lines, tokens, node)
    last = _last_row(lines, comments, node, header)

    # The outline is what is kept of the body, in the order of its rows.
    outline = [comment for row, comment in comments.items() if header.last_row < row <= last]
    outline += _docstring(source, node, header)
    order = f'{header.indent}raise NotImplementedError("exercise {exercise}: {function}"){header.newline}'
    return header.text + _paragraphs(outline, header.newline) + order + "".join(lines[last:])


def function_source(source: str, function: str) -> str:
    """Return the lines of one function, from its first decorator to its last statement."""
    node = _find(source, function)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "".join(_lines_of(source)[first - 1 : node.end_lineno])


def function_row(source: str, function: str) -> int:
    """Return the row, from 1, of the function's `def`."""
    return _find(source, function).lineno


@dataclass(frozen=True)
class _Header:
    """All of the file up to and with the colon of the `def`, and how its body is written."""

    text: str
    last_row: int
    indent: str
    newline: str


@dataclass(frozen=True)
class _Kept:
    """A piece of the outline: a comment or the docstring, whole lines."""

    first_row: int
    last_row: int
    text: str
    is_comment: bool


def _find(source: str, function: str) -> Function:
    scopes: list[ast.AST] = [ast.parse(source)]
    for name in function.split("."):
        scopes = [inner for scope in scopes for inner in _definitions(scope) if inner.name == name]
    found = [node for node in scopes if isinstance(node, Function) and not _is_overload(node)]
    if len(found) != 1:
        raise FunctionNotFound(
            f"{function} is defined {len(found)} times" if found else f"there is no function {function}"
        )
    return found[0]


def _definitions(scope: ast.AST) -> Iterator[Function | ast.ClassDef]:
    # A definition may stand inside an `if` or a `try`; inside another definition it has a longer name.
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, Function | ast.ClassDef):
            yield child
        else:
            yield from _definitions(child)


def _is_overload(node: Function) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def _lines_of(source: str) -> list[str]:
    # str.splitlines also splits at form feeds and other characters that Python does not count as line ends.
    return list(io.StringIO(source, newline=""))


def _full_line_comments(lines: Sequence[str], tokens: Sequence[tokenize.TokenInfo]) -> dict[int, _Kept]:
    rows = [token.start for token in tokens if token.type == tokenize.COMMENT]
    return {
        row: _Kept(row, row, lines[row - 1].rstrip("\r\n"), is_comment=True)
        for row, column in rows
        if not lines[row - 1][:column].strip()
    }


def _header(lines: Sequence[str], tokens: Sequence[tokenize.TokenInfo], node: Function) -> _Header:
    colon = _colon(tokens, node)
    row, column = tokens[colon].end
    newline = "\r\n" if lines[row - 1].endswith("\r\n") else "\n"
    if tokens[colon + 1].type in (tokenize.COMMENT, tokenize.NEWLINE):
        return _Header("".join(lines[:row]), row, _indent(lines[node.body[0].lineno - 1]), newline)

    # A body on the line of its `def` moves to lines of its own.
    text = "".join(lines[: row - 1]) + lines[row - 1][:column] + newline
    return _Header(text, row, _indent(lines[node.lineno - 1]) + "    ", newline)


def _colon(tokens: Sequence[tokenize.TokenInfo], node: Function) -> int:
    # Colons inside brackets belong to annotations, slices and lambdas; the first outside ends the signature.
    depth = 0
    for index, token in enumerate(tokens):
        if token.start[0] < node.lineno or token.type != tokenize.OP:
            continue
        depth += (token.string in "([{") - (token.string in ")]}")
        if token.string == ":" and depth == 0:
            return index
    raise AssertionError(f"no colon after def {node.name}")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _last_row(lines: Sequence[str], comments: dict[int, _Kept], node: Function, header: _Header) -> int:
    # To the parser a function ends with its last statement; to a reader, with the comments behind it that are
    # indented like its body.
    assert node.end_lineno is not None
    last = node.end_lineno
    for row in range(last + 1, len(lines) + 1):
        line = lines[row - 1]
        if row in comments and len(_indent(line)) >= len(header.indent):
            last = row
        elif line.strip():
            break
    return last


def _docstring(source: str, node: Function, header: _Header) -> list[_Kept]:
    if ast.get_docstring(node, clean=False) is None:
        return []
    first = node.body[0]
    text = ast.get_source_segment(source, first)
    assert text is not None
    assert first.end_lineno is not None
    return [_Kept(first.lineno, first.end_lineno, header.indent + text, is_comment=False)]


def _paragraphs(outline: list[_Kept], newline: str) -> str:
    # Comments that code stood between are separate steps: an empty line keeps them apart.
    text = ""
    before: _Kept | None = None
    for kept in sorted(outline, key=lambda kept: kept.first_row):
        if before and before.is_comment and kept.is_comment and kept.first_row > before.last_row + 1:
            text += newline
        text += kept.text + newline
        before = kept
    return text

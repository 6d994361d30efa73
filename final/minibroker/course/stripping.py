"""Takes code out of a source for the learner to write. These functions only transform text.

`strip` takes the body out of one function. Decorators, signature, docstring and every full-line comment stay as the
learner's outline. The rest of the body is replaced by `raise NotImplementedError("exercise 1.1: decode")`.

`reduce` works on a whole module: it removes every body with its comments, and every private name that is not used
any more. Imports, public constants, types, signatures and docstrings stay.

All other bytes of the file stay the same. `ast` gives the positions of definitions, `tokenize` those of comments.
"""

import ast
import io
import itertools
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from minibroker.course.errors import FunctionNotFound

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def strip(source: str, function: str, label: str) -> str:
    """Return `source` with the body of `function` (a qualified name) replaced by its outline and a raise."""
    text = _Text.of(source)
    return text.edited([_without_body(text, _find(source, function), f"{label}: {function}", keep_comments=True)])


def reduce(source: str, label: str) -> str:
    """Return the source of a module reduced to its public signatures, docstrings, constants and types."""
    text = _Text.of(source)
    tree = ast.parse(source)
    gone = _unused_private(tree)
    return text.edited(_reductions(text, tree, gone, "", label))


def function_source(source: str, function: str) -> str:
    """Return the lines of one function, from its first decorator to its last statement."""
    node = _find(source, function)
    return "".join(_lines_of(source)[_first_row(node) - 1 : node.end_lineno])


def comments(source: str, function: str) -> Iterator[str]:
    """Yield the full-line comments of one function, each as one line."""
    text, node = _Text.of(source), _find(source, function)
    rows = [row for row in range(node.lineno, (node.end_lineno or 0) + 1) if row in text.comments]
    for row in rows:
        if row - 1 not in rows:
            block = itertools.takewhile(rows.__contains__, itertools.count(row))
            yield " ".join(text.lines[it - 1].strip().removeprefix("#").strip() for it in block)


def function_row(source: str, function: str) -> int:
    """Return the row of the function's `def`. Rows are counted from 1."""
    return _find(source, function).lineno


@dataclass(frozen=True)
class _Edit:
    """Rows, counted from 1, and the text that replaces them.

    If the text is None, the rows are removed, and the empty lines before and after them are merged.
    """

    first_row: int
    last_row: int
    text: str | None


@dataclass(frozen=True)
class _Header:
    """The end of a signature: its last row, the text of that row up to the colon, and the indent of the body."""

    line: str
    row: int
    indent: str
    newline: str


@dataclass(frozen=True)
class _Kept:
    """A part of the outline, in whole lines: a comment or the docstring."""

    first_row: int
    last_row: int
    text: str
    is_comment: bool


@dataclass(frozen=True)
class _Text:
    """A source as rows, tokens and full-line comments."""

    source: str
    lines: list[str]
    tokens: list[tokenize.TokenInfo]
    comments: dict[int, _Kept]

    @classmethod
    def of(cls, source: str) -> "_Text":
        lines = _lines_of(source)
        tokens = list(tokenize.generate_tokens(iter(lines).__next__))
        return cls(source, lines, tokens, _full_line_comments(lines, tokens))

    def edited(self, edits: Iterable[_Edit]) -> str:
        lines = list(self.lines)
        # The edits are made from the bottom up, so that the row numbers of the remaining ones stay valid.
        for edit in sorted(edits, key=lambda edit: edit.first_row, reverse=True):
            first, last = edit.first_row - 1, edit.last_row
            if edit.text is not None:
                lines[first:last] = [edit.text]
                continue
            before, after = _blank_before(lines, first), _blank_after(lines, last)
            between = [] if last + after == len(lines) else ["\n"] * max(before, after)
            lines[first - before : last + after] = between
        return "".join(lines)


# One function


# A list of tasks names several functions of one file. Without the cache, each search would parse the file again.
_parsed = lru_cache(ast.parse)


def _find(source: str, function: str) -> Function:
    scopes: list[ast.AST] = [_parsed(source)]
    for name in function.split("."):
        scopes = [inner for scope in scopes for inner in _definitions(scope) if inner.name == name]
    found = [node for node in scopes if isinstance(node, Function) and not _is_overload(node)]
    if len(found) != 1:
        raise FunctionNotFound(
            f"{function} is defined {len(found)} times" if found else f"there is no function {function}"
        )
    return found[0]


def _definitions(scope: ast.AST) -> Iterator[Definition]:
    # The search goes into an `if` or a `try`, but not into another definition: a nested function has a dotted name,
    # such as `Class.method`.
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, Definition):
            yield child
        else:
            yield from _definitions(child)


def _is_overload(node: Function) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def _without_body(text: _Text, node: Function, order: str, *, keep_comments: bool) -> _Edit:
    header = _header(text, node)
    last = _last_row(text, node, len(header.indent))
    # The outline consists of the comments and the docstring; `_paragraphs` sorts them by row.
    outline = [comment for row, comment in text.comments.items() if keep_comments and header.row < row <= last]
    outline += _docstring(text.source, node, header)
    body = _paragraphs(outline, header.newline)
    raising = f'{header.indent}raise NotImplementedError("{order}"){header.newline}'
    return _Edit(header.row, last, header.line + body + raising)


def _lines_of(source: str) -> list[str]:
    # str.splitlines also splits at form feeds and other characters that are not line ends in Python.
    return list(io.StringIO(source, newline=""))


def _full_line_comments(lines: Sequence[str], tokens: Sequence[tokenize.TokenInfo]) -> dict[int, _Kept]:
    rows = [token.start for token in tokens if token.type == tokenize.COMMENT]
    return {
        row: _Kept(row, row, lines[row - 1].rstrip("\r\n"), is_comment=True)
        for row, column in rows
        if not lines[row - 1][:column].strip()
    }


def _header(text: _Text, node: Function) -> _Header:
    lines, tokens = text.lines, text.tokens
    colon = _colon(tokens, node)
    row, column = tokens[colon].end
    newline = "\r\n" if lines[row - 1].endswith("\r\n") else "\n"
    if tokens[colon + 1].type in (tokenize.COMMENT, tokenize.NEWLINE):
        return _Header(lines[row - 1], row, _indent(lines[node.body[0].lineno - 1]), newline)
    # A body on the line of its `def` moves to lines of its own.
    return _Header(lines[row - 1][:column] + newline, row, _indent(lines[node.lineno - 1]) + "    ", newline)


def _colon(tokens: Sequence[tokenize.TokenInfo], node: Function) -> int:
    # Colons inside brackets belong to annotations, slices and lambdas; the first one outside ends the signature.
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


def _first_row(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _last_row(text: _Text, node: ast.stmt, body_indent: int) -> int:
    # For the parser a definition ends with its last statement. For a reader the comments after it that are indented
    # like its body belong to it, too.
    assert node.end_lineno is not None
    last = node.end_lineno
    for row in range(last + 1, len(text.lines) + 1):
        line = text.lines[row - 1]
        if row in text.comments and len(_indent(line)) >= body_indent:
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
    # Comments with code between them are separate steps, so an empty line separates them.
    text = ""
    before: _Kept | None = None
    for kept in sorted(outline, key=lambda kept: kept.first_row):
        if before and before.is_comment and kept.is_comment and kept.first_row > before.last_row + 1:
            text += newline
        text += kept.text + newline
        before = kept
    return text


# A whole module


def _unused_private(tree: ast.Module) -> set[ast.stmt]:
    """Return the private statements that no remaining statement uses."""
    private = {node: names for node in _members(tree) if (names := _private_names(node, tree))}
    gone = set(private)
    while True:
        used = {name for node in tree.body if node not in gone for name in _names_left(node, gone)}
        needed = {node for node in gone if private[node] & used}
        if not needed:
            return gone
        gone -= needed


def _members(scope: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    for node in scope.body:
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _members(node)


def _private_names(node: ast.stmt, tree: ast.Module) -> set[str]:
    """Return the names that a definition or constant introduces, if all of them are private; otherwise no names."""
    if isinstance(node, Definition):
        names = {node.name}
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node in tree.body:
        # A constant. An assignment inside a class is a field, which belongs to the type and stays.
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {it.id for target in targets for it in ast.walk(target) if isinstance(it, ast.Name)}
    else:
        return set()
    return names if all(name.startswith("_") and not name.endswith("__") for name in names) else set()


def _names_left(node: ast.AST, gone: set[ast.stmt]) -> Iterator[str]:
    """Yield the names that a statement uses once it is reduced."""
    for child in ast.iter_child_nodes(node):
        is_body = isinstance(node, Function) and child in node.body and not _is_given(node)
        if not is_body and child not in gone:
            yield from _names_left(child, gone)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id


def _is_given(node: Function) -> bool:
    # An overload, or a method of a protocol, has no body to write.
    return _is_overload(node) or all(
        isinstance(it, ast.Pass) or (isinstance(it, ast.Expr) and isinstance(it.value, ast.Constant))
        for it in node.body
    )


def _reductions(text: _Text, scope: ast.AST, gone: set[ast.stmt], prefix: str, label: str) -> Iterator[_Edit]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt) and node in gone:
            yield _removal(text, node)
        elif isinstance(node, Function):
            if not _is_given(node):
                yield _without_body(text, node, f"{label}: {prefix}{node.name}", keep_comments=False)
        elif isinstance(node, ast.ClassDef) and gone.issuperset(node.body):
            # A class must have a body, so its first statement is replaced by `pass`.
            first, *others = (_removal(text, it) for it in node.body)
            indent = _indent(text.lines[node.body[0].lineno - 1])
            yield _Edit(first.first_row, first.last_row, f"{indent}pass\n")
            yield from others
        else:
            inner = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
            yield from _reductions(text, node, gone, inner, label)


def _removal(text: _Text, node: ast.stmt) -> _Edit:
    # A comment directly above a definition belongs to it, and is removed with it.
    first = _first_row(node)
    while first - 1 in text.comments:
        first -= 1
    last = _last_row(text, node, node.col_offset + 1) if isinstance(node, Definition) else node.end_lineno
    assert last is not None
    return _Edit(first, last, None)


def _blank_before(lines: Sequence[str], index: int) -> int:
    count = 0
    while count < index and not lines[index - 1 - count].strip():
        count += 1
    return count


def _blank_after(lines: Sequence[str], index: int) -> int:
    count = 0
    while index + count < len(lines) and not lines[index + count].strip():
        count += 1
    return count

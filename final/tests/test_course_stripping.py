"""Stripping a function: the parts that stay, the parts that are removed, and the rest, which stays the same."""

import argparse
import ast
import asyncio.base_events
import dataclasses
import textwrap
import types
import typing

import pytest
from cases import case

from minibroker.course.errors import FunctionNotFound
from minibroker.course.stripping import function_row, function_source, reduce, strip


def stripped(source: str, function: str = "decode") -> str:
    result = strip(textwrap.dedent(source).lstrip("\n"), function, "exercise 1.1")
    compile(result, "stripped.py", "exec")
    return result


def same(result: str, expected: str) -> bool:
    return result == textwrap.dedent(expected).lstrip("\n")


def test_decorators_signature_docstring_and_full_line_comments_stay() -> None:
    result = stripped('''
        import functools


        @functools.cache
        @functools.cache
        def decode(buffer: bytes, position: int = 0) -> int:
            """Read a number."""
            # Take seven bits from each byte.
            value = buffer[position] & 0x7F  # the low ones
            # Stop at a clear high bit.
            return value


        AFTER = 1
    ''')
    assert same(
        result,
        '''
        import functools


        @functools.cache
        @functools.cache
        def decode(buffer: bytes, position: int = 0) -> int:
            """Read a number."""
            # Take seven bits from each byte.

            # Stop at a clear high bit.
            raise NotImplementedError("exercise 1.1: decode")


        AFTER = 1
    ''',
    )


def test_comments_keep_their_indentation_so_that_the_outline_shows_the_nesting() -> None:
    result = stripped("""
        def decode(items):
            # Look at each.
            for item in items:
                # Leave at the first.
                return item
    """)
    assert same(
        result,
        """
        def decode(items):
            # Look at each.

                # Leave at the first.
            raise NotImplementedError("exercise 1.1: decode")
    """,
    )


def test_an_async_function_stays_async() -> None:
    result = stripped("""
        async def decode(reader):
            return await reader.read()
    """)
    assert same(
        result,
        """
        async def decode(reader):
            raise NotImplementedError("exercise 1.1: decode")
    """,
    )


def test_a_method_is_found_by_its_class_and_no_other_class_is_touched() -> None:
    result = stripped(
        """
        class Other:
            def recover(self):
                return 1


        class LogFile:
            size = 3

            @property
            def recover(self):
                return self.size

            def close(self):
                pass
    """,
        "LogFile.recover",
    )
    assert same(
        result,
        """
        class Other:
            def recover(self):
                return 1


        class LogFile:
            size = 3

            @property
            def recover(self):
                raise NotImplementedError("exercise 1.1: LogFile.recover")

            def close(self):
                pass
    """,
    )


def test_a_nested_function_is_stripped_inside_its_outer_one() -> None:
    result = stripped(
        """
        def outer():
            def decode():
                # Why.
                return 1
            return decode
    """,
        "outer.decode",
    )
    assert same(
        result,
        """
        def outer():
            def decode():
                # Why.
                raise NotImplementedError("exercise 1.1: outer.decode")
            return decode
    """,
    )


def test_a_function_inside_a_condition_is_found() -> None:
    result = stripped("""
        try:
            import fast
        except ImportError:
            def decode():
                return 1
    """)
    assert '        raise NotImplementedError("exercise 1.1: decode")\n' in result


def test_a_body_on_the_line_of_its_def_moves_to_lines_of_its_own() -> None:
    for source, expected in [
        ("def decode(): return 1\n", "def decode():\n    raise {}\n"),
        ("def decode(): return 1  # why\nX = 1\n", "def decode():\n    raise {}\nX = 1\n"),
        ("def decode(a={1: 2}): a; return 1\n", "def decode(a={{1: 2}}):\n    raise {}\n"),
        ('def decode(): "Doc."; return 1\n', 'def decode():\n    "Doc."\n    raise {}\n'),
        ("def decode(): return (\n    # Why.\n    1\n)\n", "def decode():\n    # Why.\n    raise {}\n"),
        ("def decode(): \\\n    return 1\n", "def decode():\n    raise {}\n"),
        ("class C:\n    def decode(self): ...\n", "class C:\n    def decode(self):\n        raise {}\n"),
    ]:
        with case(source, expected):
            function = "C.decode" if source.startswith("class") else "decode"
            raised = f'NotImplementedError("exercise 1.1: {function}")'
            assert stripped(source, function) == expected.format(raised)


def test_a_signature_over_several_lines_stays_with_its_comments() -> None:
    signature = """
        def decode(
            buffer: "dict[str, int]",  # a colon: in a string
            # A comment in the signature.
            key=lambda item: item[1:2],
            *,
            bytes_max: int = 5,
        ) -> (
            int
        ):  # behind the colon
    """.rstrip()
    result = stripped(signature + "\n            return 1\n")
    assert same(result, signature + '\n            raise NotImplementedError("exercise 1.1: decode")\n')


def test_comments_before_the_docstring_stay_before_it() -> None:
    result = stripped('''
        def decode():
            # Before.
            """Doc
            # not a comment

            over lines."""  # behind

            # After.
            return 1
    ''')
    assert same(
        result,
        '''
        def decode():
            # Before.
            """Doc
            # not a comment

            over lines."""
            # After.
            raise NotImplementedError("exercise 1.1: decode")
    ''',
    )


def test_a_docstring_loses_the_statement_after_it() -> None:
    result = stripped('''
        def decode():
            """Doc."""; return 1
    ''')
    assert same(
        result,
        '''
        def decode():
            """Doc."""
            raise NotImplementedError("exercise 1.1: decode")
    ''',
    )


def test_comments_after_the_last_statement_belong_to_the_body_if_indented_like_it() -> None:
    result = stripped(
        """
        class C:
            def decode(self):
                return 1
                # Still the body's.

                # This too.

            # The next method's.
            def encode(self):
                return 2
    """,
        "C.decode",
    )
    assert same(
        result,
        """
        class C:
            def decode(self):
                # Still the body's.

                # This too.
                raise NotImplementedError("exercise 1.1: C.decode")

            # The next method's.
            def encode(self):
                return 2
    """,
    )


def test_a_hash_inside_a_string_over_several_lines_is_no_comment() -> None:
    result = stripped('''
        def decode():
            text = """
            # only text
            """
            return text
    ''')
    assert "only text" not in result


def test_text_beyond_ascii_is_kept_everywhere() -> None:
    result = stripped('''
        GRÖSSE = "→"; 名 = 1
        def decode(größe="×→é: (", *, 名=":"):
            """Größe × 名 → é."""; x = "ünï"
            # Schritt für Schritt → 名.
            return "日本"  # ende
        NACH = "ß"
    ''')
    assert same(
        result,
        '''
        GRÖSSE = "→"; 名 = 1
        def decode(größe="×→é: (", *, 名=":"):
            """Größe × 名 → é."""
            # Schritt für Schritt → 名.
            raise NotImplementedError("exercise 1.1: decode")
        NACH = "ß"
    ''',
    )


def test_windows_line_ends_stay_windows_line_ends() -> None:
    source = 'X = 1\r\ndef decode():\r\n    """Doc\r\n    two."""\r\n    # Why.\r\n    return 1\r\nY = 2\r\n'
    result = strip(source, "decode", "exercise 1.1")
    assert result.count("\r\n") == result.count("\n")
    assert result.startswith('X = 1\r\ndef decode():\r\n    """Doc\r\n    two."""\r\n    # Why.\r\n    raise ')
    assert result.endswith(")\r\nY = 2\r\n")


def test_tabs_and_form_feeds_do_not_move_the_cut() -> None:
    result = stripped("X = 1\n\f\ndef decode():\n\t# Why.\n\treturn 1\n\n\f\nY = 2\n")
    assert result == (
        'X = 1\n\f\ndef decode():\n\t# Why.\n\traise NotImplementedError("exercise 1.1: decode")\n\n\f\nY = 2\n'
    )


def test_a_file_may_end_inside_the_function_without_a_newline() -> None:
    assert stripped("def decode():\n    return 1").endswith('raise NotImplementedError("exercise 1.1: decode")\n')
    assert stripped("def decode():\n    return 1\n    # end").count("# end\n") == 1


def test_overloads_are_signatures_and_only_the_implementation_is_stripped() -> None:
    result = stripped("""
        from typing import overload
        @overload
        def decode(a: int) -> int: ...
        @overload
        def decode(a: str) -> str: ...
        def decode(a):
            return a
    """)
    assert result.count("...") == 2
    assert result.count("NotImplementedError") == 1


def test_a_function_that_is_not_there_is_named() -> None:
    for name in ["encode", "C", "C.decode", "decode.inner", ""]:
        with case(name), pytest.raises(FunctionNotFound, match=f"there is no function {name}"):
            strip("def decode():\n    pass\nclass C:\n    pass\n", name, "exercise 1.1")


def test_a_function_that_is_defined_twice_is_refused() -> None:
    source = "class C:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, value): ...\n"
    with pytest.raises(FunctionNotFound, match=r"C\.x is defined 2 times"):
        strip(source, "C.x", "exercise 1.1")


def test_the_source_of_a_function_begins_with_its_decorators() -> None:
    source = "import a\n@a.b(\n    1\n)\n@a.c\ndef decode():\n    return 1\n# after\n"
    assert function_source(source, "decode") == "@a.b(\n    1\n)\n@a.c\ndef decode():\n    return 1\n"
    assert function_row(source, "decode") == 6


def qualified_names(node: ast.AST, prefix: str = "") -> list[str]:
    names = []
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                names.append(f"{prefix}{child.name}")
        names += qualified_names(child, inner)
    return names


def test_functions_of_the_standard_library_can_be_stripped() -> None:
    for module in [argparse, asyncio.base_events, dataclasses, typing]:
        with case(module.__name__):
            assert module.__file__
            with open(module.__file__, encoding="utf-8", newline="") as file:
                source = file.read()
            names = qualified_names(ast.parse(source))
            single = [name for name in names if names.count(name) == 1]
            assert len(single) > 20
            for name in single[:: len(single) // 3]:
                result = strip(source, name, "exercise 1.1")
                compile(result, "stripped.py", "exec")
                # Without the function both sources must be the same to the byte.
                after = function_source(result, name)
                head, _, tail = result.partition(after)
                assert source.startswith(head)
                assert source.endswith(tail)
                assert after.rstrip().endswith(f'raise NotImplementedError("exercise 1.1: {name}")')


# A whole module


def reduced(source: str) -> str:
    result = reduce(textwrap.dedent(source).lstrip("\n"), "build 1.B1")
    compile(result, "reduced.py", "exec")
    return result


def test_a_module_is_reduced_to_its_public_signatures_docstrings_constants_and_types() -> None:
    result = reduced('''
        """A counter."""

        from typing import NamedTuple

        LIMIT = 10
        # No count is lower.
        _LOWEST = 0


        class Range(NamedTuple):
            """From and to."""

            first: int
            last: int = LIMIT


        class Counter:
            """Counts."""

            # Counting ----------

            def __init__(self, start: int) -> None:
                self._count = max(start, _LOWEST)

            def up(self) -> int:
                """Count one up, to the limit."""
                # Look at the limit first.
                if self._count < LIMIT:
                    self._count += 1
                return self._told()

            def _told(self) -> int:
                return self._count


        def count(many: Range) -> int:
            return _sum(many)


        # Adds.
        def _sum(many: Range) -> int:
            return sum(range(*many))
    ''')
    assert same(
        result,
        '''
        """A counter."""

        from typing import NamedTuple

        LIMIT = 10


        class Range(NamedTuple):
            """From and to."""

            first: int
            last: int = LIMIT


        class Counter:
            """Counts."""

            # Counting ----------

            def __init__(self, start: int) -> None:
                raise NotImplementedError("build 1.B1: Counter.__init__")

            def up(self) -> int:
                """Count one up, to the limit."""
                raise NotImplementedError("build 1.B1: Counter.up")


        def count(many: Range) -> int:
            raise NotImplementedError("build 1.B1: count")
    ''',
    )


def test_a_private_name_stays_if_a_remaining_statement_uses_it() -> None:
    result = reduced("""
        _SIZE = 4
        _COUNT = _SIZE * 2
        _UNUSED = _SIZE
        BYTES = _COUNT + 1


        class _Base:
            def _hidden(self):
                return 1


        class Public(_Base):
            pass


        def _twice(number):
            return number * 2


        BY_NAME = {"twice": _twice}


        def read(size=_SIZE):
            return _UNUSED
    """)
    assert same(
        result,
        """
        _SIZE = 4
        _COUNT = _SIZE * 2
        BYTES = _COUNT + 1


        class _Base:
            pass


        class Public(_Base):
            pass


        def _twice(number):
            raise NotImplementedError("build 1.B1: _twice")


        BY_NAME = {"twice": _twice}


        def read(size=_SIZE):
            raise NotImplementedError("build 1.B1: read")
    """,
    )


def test_a_definition_without_a_body_stays_as_it_is() -> None:
    source = '''
        import typing


        class Disk(typing.Protocol):
            def read(self) -> bytes: ...

            def close(self) -> None:
                """Give the file back."""


        @typing.overload
        def half(number: int) -> int: ...
        @typing.overload
        def half(number: float) -> float: ...
    '''
    assert same(reduced(source), source)


def test_every_public_name_of_a_real_module_is_there_after_reducing() -> None:
    for module in [argparse, asyncio.base_events, dataclasses, textwrap, types]:
        with case(module.__name__):
            assert module.__file__ is not None
            with open(module.__file__, encoding="utf-8") as file:
                source = file.read()
            before, after = ast.parse(source), ast.parse(reduce(source, "build 1.B1"))
            assert public_names(before) == public_names(after)


def public_names(tree: ast.Module) -> list[str]:
    definitions = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    scopes: list[ast.Module | ast.ClassDef] = [tree, *(node for node in definitions if not node.name.startswith("_"))]
    return sorted(
        node.name
        for scope in scopes
        for node in scope.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )

"""Runs a chat template, which is a program from a model file, within fixed bounds.

Three rules make it safe. Only the filters, tests, globals and methods listed here exist, none of which reaches a host
object. Everything a template makes is weighed against a budget, with the operations whose result can dwarf their
operands weighed before they run. And each turn of a loop or macro costs, so that no program runs for long.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import filters, nodes, runtime, tests
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

STEP = 16  # weight of one loop turn, call or container element; a character weighs 1
BASE_WEIGHT = 16 << 20  # what a template may spend whatever it was given
MAX_SECONDS = 2.0  # of this thread's processor time
MAX_INT_BITS = 4096


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHODS: dict[type, frozenset[str]] = {
    str: _words(
        "strip lstrip rstrip removeprefix removesuffix split rsplit splitlines partition rpartition startswith "
        "endswith upper lower title capitalize find rfind index rindex count replace join isdigit isalpha isalnum "
        "isdecimal isnumeric isspace isupper islower"
    ),
    dict: _words("get items keys values"),
    list: _words("index count"),
    tuple: _words("index count"),
    runtime.LoopContext: _words(
        "index index0 revindex revindex0 first last length previtem nextitem depth depth0 changed cycle"
    ),
}
FILTERS = _words(
    "abs capitalize count d default dictsort first float int items last length list lower map max min reject "
    "rejectattr reverse select selectattr sort string title trim unique upper"
)
TESTS = _words(
    "defined undefined none boolean true false integer float number string mapping iterable sequence odd even "
    "divisibleby eq equalto == ne != gt greaterthan > ge >= lt lessthan < le <= in lower upper sameas"
)


class LimitError(jinja2.TemplateError):
    """The template asked for more than it may."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self, weight: int) -> None:
        self.spent = 0
        self._limit = weight
        self._deadline = time.thread_time() + MAX_SECONDS

    def charge(self, weight: int) -> None:
        """Takes ``weight`` off; raises LimitError when that was too much, or too late."""
        self._take(weight)
        if time.thread_time() > self._deadline:
            raise LimitError(f"the template runs longer than {MAX_SECONDS:g} s")

    def weigh(self, value: Any) -> Any:
        """Charges for ``value`` and all it holds, shared parts as often as they are reached; returns it."""
        self.charge(1)
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                self._take(len(item))
            elif isinstance(item, dict):
                self._take(2 * STEP * len(item))
                pending += item.keys()
                pending += item.values()
            elif isinstance(item, (list, tuple)):
                self._take(STEP * len(item))
                pending += item
            elif isinstance(item, Namespace):
                self._take(STEP)
                pending.append(object.__getattribute__(item, "_Namespace__attrs"))
        return value

    def _take(self, weight: int) -> None:
        self.spent += weight
        if self.spent > self._limit:
            raise LimitError("the template makes too many steps or too much text")


_budget: ContextVar[Budget] = ContextVar("narrows_template_budget")


@contextmanager
def spending(weight: int) -> Iterator[Budget]:
    """Everything a template does inside is charged to one new budget."""
    budget = Budget(weight)
    token = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(token)


def _weighed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps the mark that says what jinja passes first
    def run(*args: Any, **kwargs: Any) -> Any:
        return _budget.get().weigh(function(*args, **kwargs))

    return run


@pass_context
def _tick(context: object, weight: int) -> bool:
    _budget.get().charge(weight)
    return True


def _made(value: Any) -> Any:
    return _budget.get().weigh(value)


def _concat(values: list[Any]) -> str:  # the list was weighed when it was made
    return _made("".join(map(str, values)))


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(_made(text)), str(old), str(new)
    _budget.get().charge(text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _join(separator: Any, values: Any) -> str:
    values = _made(list(values))
    _budget.get().charge(len(str(separator)) * len(values))
    return str(separator).join(map(str, values))


@jinja2.pass_environment
def _join_filter(environment: jinja2.Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(environment, attribute), value)
    return _join(d, value)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(width, str):
        width = " " * min(int(width), 64)
    text = str(_made(text))
    _budget.get().charge(len(width) * (text.count("\n") + 1))
    lines = text.splitlines(keepends=True)
    return "".join(width + s if (s.strip() or blank) and (i or first) else s for i, s in enumerate(lines))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja's HTML escapes, as the templates of the Hugging Face hub expect."""
    if indent is not None and not 0 <= int(indent) <= 16:
        raise LimitError("tojson: indent must be 0 to 16")
    if separators is not None and any(len(s) > 8 for s in separators):
        raise LimitError("tojson: separators must be short")
    _made(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format[:256])


class _Bound(NodeTransformer):
    """Puts a charge on each turn of a loop or body, and on each value made without a call."""

    def _ticked(self, node: Any) -> Any:
        weight = STEP + sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filter("narrows.tick", nodes.Const(weight)), lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = visit_AssignBlock = _ticked

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._ticked(node)
        if node.test is not None:
            node.test = nodes.And(_filter("narrows.tick", nodes.Const(STEP)), node.test, lineno=node.lineno)
        return node

    def _visit_value(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _filter("narrows.made", node)

    visit_List = visit_Tuple = visit_Dict = visit_Compare = _visit_value

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        is_slice = isinstance(node.arg, nodes.Slice)
        self.generic_visit(node)
        return _filter("narrows.made", node) if is_slice else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        values = _filter("narrows.made", nodes.List(node.nodes, lineno=node.lineno))
        return _filter("narrows.concat", values)


def _filter(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}`` marks training targets; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A jinja2 environment for untrusted templates; compile and render inside ``spending``."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%", "/", "//"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.finalize = _made
        self.filters = {name: _weighed(filters.FILTERS[name]) for name in FILTERS} | {
            "replace": _replace,
            "join": _join_filter,
            "indent": _indent,
            "tojson": _weighed(_tojson),
            "safe": _weighed(str),
            "narrows.tick": _tick,
            "narrows.made": _made,
            "narrows.concat": _concat,
        }
        self.tests = {name: _weighed(tests.TESTS[name]) for name in TESTS}
        self.globals = {
            "range": range,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        return super()._generate(_Bound().visit(source), name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return attr in METHODS.get(type(obj), ())

    def is_safe_callable(self, obj: Any) -> bool:
        owner = getattr(obj, "__self__", None)
        return (
            isinstance(obj, (runtime.Macro, runtime.LoopContext, runtime.BlockReference))
            or any(obj is value for value in self.globals.values())
            or getattr(obj, "__name__", None) in METHODS.get(type(owner), ())
        )

    def wrap_str_format(self, value: Any) -> None:
        return None  # str.format is not among the methods: a field width alone can fill the memory

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        budget = _budget.get()
        budget.charge(STEP)
        if isinstance(obj, jinja2.Undefined):
            return obj()  # raises, and says what is not there or not allowed
        owner = getattr(obj, "__self__", None)
        bounded = {"replace": _replace, "join": _join}.get(obj.__name__) if isinstance(owner, str) else None
        if bounded is not None:
            made = context.call(functools.partial(bounded, owner), *args, **kwargs)
        else:
            made = super().call(context, obj, *args, **kwargs)
        if isinstance(made, range):
            budget.charge(len(made))
        return budget.weigh(made)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if numbers:
            if isinstance(left, int) and isinstance(right, int):
                factor = max(right, 1) if operator == "**" else 1
                if left.bit_length() * factor + right.bit_length() > MAX_INT_BITS:
                    raise LimitError("the template computes too large a number")
        elif operator == "%" and isinstance(left, str):
            raise LimitError("% on text is not available in templates; use ~")
        elif operator == "*":
            sequence, count = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(count, int) and isinstance(sequence, (str, list, tuple)):
                budget.charge(STEP * len(sequence) * max(count, 0))
        return budget.weigh(super().call_binop(context, operator, left, right))

"""Symbolic dimensions: polynomials with whole coefficients in named symbols, `batch*seq`, `past + seq`, `2*seq + 1`.

A rounded quotient is a symbol, too, with a name that says what it is: `ceil(seq/4)`, `floor(seq/2)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

Monomial = tuple[str, ...]
"""Names of the symbols that are multiplied, in alphabetical order, one as often as its power; () is 1."""

_TOKEN = re.compile(r"\s*(?:(\d+)|((?:ceil|floor)\([^()]+/\d+\)|[A-Za-z_][\w.]*)|([-+*()]))")
_QUOTIENT = re.compile(r"(ceil|floor)\(([^()]+)/(\d+)\)")


@dataclass(frozen=True, slots=True)
class Quotient:
    """`dividend / divisor`, rounded up or down."""

    dividend: Dim
    divisor: int
    is_up: bool

    @property
    def name(self) -> str:
        """
        >>> Quotient(Dim.symbol("seq"), 4, True).name
        'ceil(seq/4)'
        """
        return f"{'ceil' if self.is_up else 'floor'}({self.dividend}/{self.divisor})"

    def of(self, dividend: int) -> int:
        return -(-dividend // self.divisor) if self.is_up else dividend // self.divisor


@cache
def quotient(name: str) -> Quotient | None:
    """What a symbol that is a quotient says by its name; None of any other symbol."""
    found = _QUOTIENT.fullmatch(name)
    return Quotient(parse(found[2]), int(found[3]), found[1] == "ceil") if found else None


@dataclass(frozen=True)
class Dim:
    """A sum of `terms`: whole coefficients, none of them 0, of monomials in their order. `Dim.of` makes it so.

    >>> str(parse("seq + past") * 2), parse("batch*seq").at({"batch": 2, "seq": 7})
    ('2*past + 2*seq', 14)
    """

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def of(cls, terms: Mapping[Monomial, int]) -> Dim:
        kept = [(tuple(sorted(monomial)), factor) for monomial, factor in terms.items() if factor]
        return cls(tuple(sorted(kept, key=lambda term: (-len(term[0]), term[0]))))

    @classmethod
    def symbol(cls, name: str) -> Dim:
        return cls((((name,), 1),))

    @classmethod
    def number(cls, value: int) -> Dim:
        return cls.of({(): value})

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Those of quotients instead of these."""
        names: set[str] = set()
        for name in {name for monomial, _ in self.terms for name in monomial}:
            whole = quotient(name)
            names.update(whole.dividend.symbols if whole else (name,))
        return tuple(sorted(names))

    @property
    def has_quotient(self) -> bool:
        """Whether something is divided in it."""
        return any(quotient(name) for monomial, _ in self.terms for name in monomial)

    @property
    def constant(self) -> int | None:
        """The number that it is; None of what has symbols."""
        return None if self.symbols else sum(factor for _, factor in self.terms)

    def at(self, values: Mapping[str, int]) -> int:
        """Its value. Raises KeyError where `values` lacks a symbol."""
        total = 0
        for monomial, factor in self.terms:
            for name in monomial:
                whole = quotient(name)
                factor *= whole.of(whole.dividend.at(values)) if whole else values[name]
            total += factor
        return total

    def __add__(self, other: Dim) -> Dim:
        terms = dict(self.terms)
        for monomial, factor in other.terms:
            terms[monomial] = terms.get(monomial, 0) + factor
        return Dim.of(terms)

    def __mul__(self, other: Dim | int) -> Dim:
        if isinstance(other, int):
            return Dim.of({monomial: factor * other for monomial, factor in self.terms})
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                key = tuple(sorted(left + right))
                terms[key] = terms.get(key, 0) + a * b
        return Dim.of(terms)

    def __str__(self) -> str:
        text = ""
        for monomial, factor in self.terms:
            size = abs(factor)
            shown = "*".join((*((str(size),) if size != 1 or not monomial else ()), *monomial))
            sign = "-" if factor < 0 else "+"
            text += f" {sign} {shown}" if text else (f"-{shown}" if factor < 0 else shown)
        return text or "0"


def parse(text: str) -> Dim:
    """A sum of products, with brackets, of whole numbers and names.

    Raises:
        ValueError: it is none.
    """
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text!r} is no sum of products of names and whole numbers")
        tokens.append(found.group(found.lastindex or 0))
        at = found.end()
    parser = _Parser(tokens)
    result = parser.sum() if tokens else None
    if result is None or parser.rest:
        raise ValueError(f"{text!r} is no sum of products of names and whole numbers")
    return result


class _Parser:
    """Recursive descent; every method gives None where what it looks for is not there."""

    def __init__(self, tokens: list[str]) -> None:
        self.rest = tokens

    def sum(self) -> Dim | None:
        sign = -1 if self._take("-") else 1
        first = self._product()
        if first is None:
            return None
        total = first * sign
        while self.rest and self.rest[0] in "+-":
            sign = 1 if self.rest.pop(0) == "+" else -1
            term = self._product()
            if term is None:
                return None
            total += term * sign
        return total

    def _product(self) -> Dim | None:
        total = self._factor()
        while total is not None and self._take("*"):
            factor = self._factor()
            total = None if factor is None else total * factor
        return total

    def _factor(self) -> Dim | None:
        if not self.rest:
            return None
        token = self.rest.pop(0)
        if token == "(":
            inner = self.sum()
            return inner if self._take(")") else None
        if token in "+-*)":
            return None
        return Dim.number(int(token)) if token.isdigit() else Dim.symbol(token)

    def _take(self, token: str) -> bool:
        if self.rest and self.rest[0] == token:
            self.rest.pop(0)
            return True
        return False

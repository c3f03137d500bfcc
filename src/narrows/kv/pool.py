"""The pages of one model: who holds them, and which of them can be shared because they hold the same beginning.

A page is free, or held by one or more cursors. A full page whose tokens are known is *published* under a hash chained
over all tokens up to its end; a request with the same beginning shares it. Published pages keep their content when they
become free, until they are the least recently used page and somebody needs one. Nobody writes to a page that is shared
or published.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np

from ..types import Cursor, Request


class OutOfPages(RuntimeError):
    """More pages were asked for than are free: the plan and the pool disagree."""


class KvPool:
    """Accounts for `num_pages` pages of `page_size` tokens.

    `identity` names the model and `codec` the stored format (with all that changes a stored byte): pages are found only
    under the same identity, codec and salt. With `output_apart`, entries of a token differ by whether it was written or
    was part of the prompt: a page with output is found only by requests whose prompts ended at the same place.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, identity: str, codec: str, output_apart: bool = False
    ) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"num_pages and page_size must be positive, not {num_pages} and {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.output_apart = output_apart
        self._domain = ("narrows prefix cache", identity, codec, str(page_size))
        self._refs = [0] * num_pages
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))  # next to be used first
        self._hash: list[bytes | None] = [None] * num_pages  # of pages whose content is known
        self._published: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def num_owned(self, cursor: Cursor) -> int:
        """Pages that would become free if this cursor let go."""
        return sum(self._refs[page] == 1 for page in cursor.pages)

    def lookup(self, request: Request, limit: int) -> list[int]:
        """Pages that hold the beginning of the request's tokens, at most `limit` tokens of it. Takes nothing."""
        pages: list[int] = []
        for digest in self._chain(self._root(request.salt), request, 0, limit // self.page_size):
            page = self._published.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def num_unheld(self, pages: Sequence[int]) -> int:
        """How many of `pages` are free, and would not be once shared."""
        return sum(self._refs[page] == 0 for page in pages)

    def alloc(self, num_pages: int) -> list[int]:
        """Takes pages for writing. Raises OutOfPages, having taken none."""
        if num_pages > len(self._free):
            raise OutOfPages(f"{num_pages} pages asked for, {len(self._free)} free of {self.num_pages}")
        pages = [self._free.popitem(last=False)[0] for _ in range(num_pages)]
        for page in pages:
            self._forget(page)
            self._refs[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> list[int]:
        """Takes pages that `lookup` found, for reading."""
        for page in pages:
            if self._hash[page] is None:
                raise ValueError(f"page {page} was not published")
            self._refs[page] += 1
            self._free.pop(page, None)
        return list(pages)

    def publish(self, request: Request, cursor: Cursor, start: int) -> None:
        """Makes full pages ``start:`` of the cursor findable, when all pages before them are."""
        end = cursor.num_read // self.page_size
        if start >= end:
            return
        parent = self._hash[cursor.pages[start - 1]] if start else self._root(request.salt)
        if parent is None:
            return
        for i, digest in enumerate(self._chain(parent, request, start, end - start), start):
            page = cursor.pages[i]
            self._hash[page] = digest
            self._published.setdefault(digest, page)

    def truncate(self, cursor: Cursor, length: int) -> tuple[int, list[int]]:
        """Lets go of what the cursor read after `length` tokens; returns the tokens and pages it keeps.

        Its next write goes to the page `length` falls in. When others may read that page, it is given up too, and the
        number of tokens kept is that before it.
        """
        length = min(length, cursor.num_read)
        keep, inside = divmod(length, self.page_size)
        if inside:
            page = cursor.pages[keep]
            if self._refs[page] > 1:
                length = keep * self.page_size
            else:
                self._forget(page)
                keep += 1
        self.free(cursor.pages[keep:])
        return length, cursor.pages[:keep]

    def free(self, pages: Sequence[int]) -> None:
        """Gives pages back, later ones first: a beginning outlives its continuations."""
        for page in reversed(pages):
            if self._refs[page] < 1:
                raise ValueError(f"page {page} is given back but nobody holds it")
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._free[page] = None
                if not self._findable(page):
                    self._free.move_to_end(page, last=False)

    def check(self, cursors: Sequence[Cursor]) -> None:
        """Raises AssertionError unless exactly these cursors hold pages, and every page is free or held."""
        held = [0] * self.num_pages
        for cursor in cursors:
            assert len(set(cursor.pages)) == len(cursor.pages), "a cursor holds a page twice"
            assert len(cursor.pages) >= self.pages_for(cursor.num_read), "a cursor has read more than it has pages for"
            for page in cursor.pages:
                held[page] += 1
        assert held == self._refs, "reference counts differ from what cursors hold"
        assert set(self._free) == {p for p in range(self.num_pages) if held[p] == 0}, (
            "free pages are not the unheld ones"
        )
        for digest, page in self._published.items():
            assert self._hash[page] == digest, "a page is published under a hash that is not its own"

    def _findable(self, page: int) -> bool:
        digest = self._hash[page]
        return digest is not None and self._published.get(digest) == page

    def _forget(self, page: int) -> None:
        if self._findable(page):
            del self._published[self._hash[page]]  # type: ignore[arg-type]
        self._hash[page] = None

    def _root(self, salt: str) -> bytes:
        digest = blake2b(digest_size=32)
        for part in (*self._domain, salt):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()

    def _chain(self, parent: bytes, request: Request, start: int, count: int) -> Iterator[bytes]:
        for page in range(start, start + count):
            begin, end = page * self.page_size, (page + 1) * self.page_size
            content = np.asarray(request.tokens[begin:end], np.int32).tobytes()
            if self.output_apart and end > request.num_prompt:
                content += request.num_prompt.to_bytes(8, "little")
            parent = blake2b(parent + content, digest_size=32).digest()
            yield parent

"""The page pool: every page accounted for, shared pages never written, the least recently used reused first."""

from __future__ import annotations

import numpy as np
import pytest

from narrows.kv.pool import KvPool, OutOfPages
from narrows.sampling import SamplingParams
from narrows.types import TARGET, Cursor, Request


def pool(num_pages: int = 8, identity: str = "model", codec: str = "bf16") -> KvPool:
    return KvPool(num_pages, 4, identity=identity, codec=codec)


def request(tokens: list[int], salt: str = "") -> Request:
    return Request("r", tokens, len(tokens), SamplingParams(), 0, 0.0, salt)


def read(pages: KvPool, tokens: list[int], salt: str = "") -> Request:
    """A request that has read all its tokens, its full pages published."""
    r = request(tokens, salt)
    r.cursors[TARGET] = Cursor(len(tokens), pages.alloc(pages.pages_for(len(tokens))))
    pages.publish(r, r.cursors[TARGET], 0)
    return r


def test_lookup_finds_full_pages_of_the_same_beginning() -> None:
    p = pool()
    cursor = read(p, list(range(11))).cursors[TARGET]
    assert p.lookup(request(list(range(11))), 10) == cursor.pages[:2]
    assert p.lookup(request(list(range(8))), 7) == cursor.pages[:1]
    assert p.lookup(request([*range(7), 99, *range(8, 12)]), 11) == cursor.pages[:1]
    assert p.lookup(request([99, *range(1, 12)]), 11) == []
    assert p.lookup(request(list(range(4, 12))), 8) == []  # the same tokens further on are not the same beginning
    assert p.lookup(request(list(range(11)), salt="other"), 10) == []
    p.check([cursor])


def test_keys_hold_model_and_format() -> None:
    roots = {KvPool(2, s, identity=i, codec=c)._root(t) for s in (4, 8) for i in "ab" for c in "ab" for t in "ab"}
    roots |= {pool(identity="ab", codec="c")._root(""), pool(identity="a", codec="bc")._root("")}
    assert len(roots) == 18


def test_output_apart_is_not_found_as_a_prompt() -> None:
    p = KvPool(8, 4, identity="model", codec="bf16", output_apart=True)
    writer = Request("r", list(range(16)), 6, SamplingParams(), 0, 0.0)  # output begins in the second page
    writer.cursors[TARGET] = Cursor(16, p.alloc(4))
    p.publish(writer, writer.cursors[TARGET], 0)
    assert p.lookup(writer, 16) == writer.cursors[TARGET].pages  # itself, preempted
    assert p.lookup(request(list(range(16))), 15) == writer.cursors[TARGET].pages[:1]


def test_freed_pages_are_found_until_reused_and_continuations_go_first() -> None:
    p = pool(4)
    tokens = list(range(12))
    first = read(p, tokens).cursors[TARGET]
    p.free(first.pages)
    assert p.lookup(request(tokens), 12) == first.pages
    other = p.alloc(2)  # the page never used, then the last page of the prefix
    assert other[1] == first.pages[2]
    assert p.lookup(request(tokens), 12) == first.pages[:2]
    shared = p.share(p.lookup(request(tokens), 12))
    assert p.num_free == 0
    with pytest.raises(OutOfPages, match="1 pages asked for, 0 free of 4"):
        p.alloc(1)
    p.check([Cursor(8, shared), Cursor(0, other)])


def test_truncate_never_leaves_a_shared_page_to_be_written() -> None:
    p = pool()
    a = read(p, list(range(12))).cursors[TARGET]
    b = Cursor(8, p.share(a.pages[:2]))
    b.num_read, b.pages = p.truncate(b, 6)  # inside a page that `a` reads
    assert (b.num_read, b.pages) == (4, a.pages[:1])
    p.check([a, b])
    p.free(b.pages)
    kept = a.pages[:2]
    a.num_read, a.pages = p.truncate(a, 6)  # alone: it may write there, so nobody finds the page any more
    assert (a.num_read, a.pages) == (6, kept)
    assert p.lookup(request(list(range(12))), 11) == kept[:1]
    for length in (6, 4, 3, 0):
        a.num_read, a.pages = p.truncate(a, length)
        assert a.num_read == length
        p.check([a])
    assert p.num_free == 8


def test_two_pages_of_the_same_content() -> None:
    p = pool(6)
    a, b = read(p, list(range(8))).cursors[TARGET], read(p, list(range(8))).cursors[TARGET]
    assert p.lookup(request(list(range(9))), 8) == a.pages
    p.free(b.pages)
    p.free(a.pages)
    assert p.lookup(request(list(range(9))), 8) == a.pages
    assert set(p.alloc(4)).isdisjoint(a.pages)  # what nobody can find goes first
    p.check([Cursor(0, [i for i in range(6) if p._refs[i]])])


def test_mistakes_are_refused() -> None:
    p = pool()
    pages = p.alloc(1)
    p.free(pages)
    with pytest.raises(ValueError, match="nobody holds it"):
        p.free(pages)
    with pytest.raises(ValueError, match="was not published"):
        p.share([3])
    with pytest.raises(AssertionError, match="reference counts"):
        p.check([Cursor(1, [2])])


@pytest.mark.parametrize("seed", range(5))
def test_fuzz_conserves_pages(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, held = pool(12), []
    for _ in range(400):
        if rng.random() < 0.5:
            r = request(rng.integers(2, size=int(rng.integers(1, 16))).tolist())
            shared = p.share(p.lookup(r, len(r.tokens) - 1))
            need = p.pages_for(len(r.tokens)) - len(shared)
            if need > p.num_free:
                p.free(shared)
            else:
                r.cursors[TARGET] = Cursor(len(r.tokens), shared + p.alloc(need))
                p.publish(r, r.cursors[TARGET], len(shared))
                held.append(r)
        elif held:
            r = held[int(rng.integers(len(held)))]
            cursor = r.cursors[TARGET]
            cursor.num_read, cursor.pages = p.truncate(cursor, int(rng.integers(cursor.num_read + 1)))
            if not cursor.num_read:
                held.remove(r)
        p.check([r.cursors[TARGET] for r in held])

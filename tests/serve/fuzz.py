"""Requests in which something is off: fields, JSON, and the bytes of HTTP itself."""

from __future__ import annotations

import json
import math
import random
import re
import socket
from collections.abc import Callable
from typing import Any

ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/tokenize", "/detokenize"]
ROUTES += ["/livez", "/readyz", "/health", "/metrics", "/openapi.json", "/tokenizer_info", "/", "/v1/models/%00"]
ROUTES += ["/v1/models/tiny", "/tokenizer_info?model=%ff", "/v1/completions/", "//livez", "/%2e%2e/%2e%2e/etc/passwd"]
ROUTES += ["/v1/embeddings", "/v1/narrows/status"]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "get", "X" * 50]
VALUES: list[Any] = [None, True, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, 1e308, math.nan, math.inf]
VALUES += [-math.inf, "", "x", "\ud800", "\x00", "x" * 5000, "\U0010ffff", "<|im_end|>", [], [None], [[]], [1, "x"]]
VALUES += [{}, {"x": {}}, {"1": 5}, {"\ud800": "\udfff"}, [[1, 2], [3]], [[[[]]]], {"type": "json_schema"}, ["\ud800"]]
VALUES += [{"type": "json_object"}, {"json": {"type": "\ud800"}}, {"regex": "("}, {"choice": ["\ud800"]}]
VALUES += [[{"role": "user", "content": "\ud800"}], [{"type": "function", "function": {"name": "f"}}], "required"]
FIELDS = ["model", "prompt", "messages", "stream", "stream_options", "n", "temperature", "top_k", "top_p", "logprobs"]
FIELDS += ["top_logprobs", "max_tokens", "min_tokens", "stop", "stop_token_ids", "logit_bias", "seed", "echo", "tools"]
FIELDS += ["best_of", "suffix", "response_format", "chat_template_kwargs", "cache_salt", "tokens", "metadata", "user"]
FIELDS += ["input", "instructions", "text", "tool_choice", "structured_outputs", "parallel_tool_calls", "ignore_eos"]
FIELDS += ["max_output_tokens", "max_completion_tokens", "include", "truncation", "add_special_tokens", "\ud800", ""]
FIELDS += ["encoding_format", "dimensions", "priority"]
TEXTS = [b"", b"{", b"[]", b"null", b"NaN", b'"\xff"', b'{"prompt": ' + b"[" * 50_000, b"\xef\xbb\xbf{}", b"{}{}"]
TEXTS += [b'{"n": ' + b"1" * 9000 + b"}", b'{"prompt": "a", "prompt": 1, "max_tokens": Infinity, "max_tokens": 1}']
TEXTS += [b'{"a":' * 3000 + b"1" + b"}" * 3000, b'{"prompt": "\\ud800\\ud800", "max_tokens": 1}', b"\x00" * 100]


def body(rng: random.Random, path: str) -> bytes:
    """JSON that is nearly right, or no JSON at all."""
    if rng.random() < 0.15:
        return rng.choice(TEXTS)
    given: dict[str, Any] = {"max_tokens": 2} if "completions" in path else {}
    given |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    given = {"input": "hi", "max_output_tokens": 2} if "responses" in path else given
    given = {"input": ["hi"]} if "embeddings" in path else given
    given = {"tokens": [1, 2]} if "detokenize" in path else given
    for _ in range(rng.randint(0, 3)):
        given[rng.choice(FIELDS)] = rng.choice(VALUES)
    content = json.dumps(given).encode()
    return _noise(rng, content) if rng.random() < 0.25 else content


def _noise(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, lost or put in."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(0, 4)) + data[at + rng.randint(0, 4) :]


def _request(rng: random.Random) -> tuple[bytes, bytes]:
    """A request's head, to its empty line, and its body."""
    path = rng.choice(ROUTES)
    method = rng.choice(METHODS) if rng.random() < 0.4 else "POST"
    content = body(rng, path)
    kind = rng.choice(["application/json"] * 4 + ["text/plain", "", "multipart/form-data; boundary=x"])
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode(), content


def plain(rng: random.Random) -> bytes:
    return b"".join(_request(rng))


def chunked(rng: random.Random) -> bytes:
    """Its sizes may be wrong, huge or no numbers."""
    head, content = _request(rng)
    head = head[: head.rindex(b"Content-Length")] + b"Transfer-Encoding: chunked\r\n\r\n"
    size = rng.choice([f"{len(content):x}"] * 3 + ["0", "-1", "ffffffffffffffff", "x", "1;" + "e" * 2000, ""])
    return head + size.encode() + b"\r\n" + content + rng.choice([b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n", b""])


def heads(rng: random.Random) -> bytes:
    """Heads that are huge, doubled, at odds with the body, or not of this century."""
    head, content = _request(rng)
    extra = rng.choice(
        [
            b"X: " + b"x" * rng.choice([10, 60_000, 70_000]),
            b"\r\n".join(b"X%d: y" % i for i in range(rng.choice([10, 3000]))),
            b"Content-Length: 5",
            b"Content-Length: -5",
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: gzip",
            b"Expect: 100-continue",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13",
            b"Connection: close",
            b"Host: evil.example",
            b"Authorization: Bearer \xff\x00",
            b"X-Request-Timeout: " + rng.choice([b"nan", b"-1", b"1e999", b"0", b"x"]),
            b"X-Request-Id: " + rng.randbytes(8).hex().encode(),
            b": no name",
            b" folded: yes",
            b"X: \x01\x02",
        ]
    )
    head = head.replace(b"\r\n\r\n", b"\r\n" + extra + b"\r\n\r\n")
    version = rng.choice([b"HTTP/1.1"] * 5 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""])
    return head.replace(b"HTTP/1.1", version) + content


def pipelined(rng: random.Random) -> bytes:
    return b"".join(plain(rng) for _ in range(rng.randint(2, 4)))


def cut(rng: random.Random) -> bytes:
    data = plain(rng)
    return data[: rng.randrange(len(data))]


def noisy(rng: random.Random) -> bytes:
    return _noise(rng, _noise(rng, plain(rng)))


# What a client may leave unfinished, so that no answer is due, stands last.
KINDS: list[Callable[[random.Random], bytes]] = [plain, plain, plain, pipelined, heads, chunked, cut, noisy]
WHOLE = (plain, pipelined)


def send(address: tuple[str, int], data: bytes, patience: float, silence: float = 0.05) -> bytes:
    """What comes back until the other side closes or falls silent; it has `patience` seconds to begin."""
    reply = b""
    with socket.create_connection(address, 30) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(patience)
            while piece := connection.recv(1 << 16):
                reply += piece
                connection.settimeout(silence)
        except (ConnectionError, TimeoutError):
            pass
    return reply


def statuses(reply: bytes) -> list[int]:
    """Of all replies on a connection."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", reply)]

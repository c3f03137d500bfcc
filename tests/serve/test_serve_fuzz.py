"""Malformed requests by the hundred, and by the thousand when there is time: no 5xx, no hang, nothing kept."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import fuzz
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from servers import SECONDS, Server, descriptors, memory, wait

UNHURRIED: Any = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def storm(server: Server, seeds: range) -> None:
    """Sends what the seeds give, some at once."""
    host, _, port = server.url.removeprefix("http://").partition(":")

    def one(seed: int) -> None:
        rng = random.Random(seed)
        kind = rng.choice(fuzz.KINDS)
        data = kind(rng)
        reply = fuzz.send((host, int(port)), data, SECONDS if kind in fuzz.WHOLE else 0.05)
        assert all(status < 500 for status in fuzz.statuses(reply)), (seed, data[:500], reply[:500])
        assert reply or kind not in fuzz.WHOLE, (seed, "hangs", data[:500])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, seeds))


def test_malformed_requests(wide: Server) -> None:
    storm(wide, range(300))
    wait(wide.quiet)
    assert wide.complete("the cat")["choices"]
    assert "Traceback" not in wide.log.read_text()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_malformed_requests_leave_nothing_behind(wide: Server) -> None:
    process = wide.process.pid
    storm(wide, range(300, 2000))
    wait(wide.quiet)
    before = memory(process), descriptors(process)
    storm(wide, range(2000, 10_300))
    wait(wide.quiet)
    grown = memory(process) - before[0]
    print(f"after 10,000 malformed requests: {grown / 8.3:.0f} bytes a thousand, {descriptors(process)} descriptors")
    assert grown < 8 << 20
    assert descriptors(process) <= before[1] + 2
    assert wide.complete("the cat")["choices"]
    assert "Traceback" not in wide.log.read_text()


def test_requests_made_from_the_document(wide: Server) -> None:
    assert from_document(wide, 6) >= 80


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_requests_made_from_the_document(wide: Server) -> None:
    assert from_document(wide, 150) >= 2000


def from_document(server: Server, max_examples: int) -> int:
    """Requests as /openapi.json describes them, and as it does not; replies are what it says. Returns their number."""
    document = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    count = 0
    for result in document.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:

            @settings(
                max_examples=max_examples,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: schemathesis.Case) -> None:
                nonlocal count
                count += 1
                if isinstance(case.body, dict):
                    case.body = cheap(case.body, case.operation.path)
                case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=SECONDS)

            with suppress(Unsatisfiable):  # nothing to get wrong
                ask()
    return count


def cheap(body: dict[str, Any], path: str) -> dict[str, Any]:
    """With an end that is near, so that time goes into many requests and not into long answers."""
    limits = {"/v1/chat/completions": ["max_completion_tokens"], "/v1/responses": ["max_output_tokens"]}
    for name in limits.get(path, []):
        body.setdefault(name, 4)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if type(body.get(name)) is int:
            body[name] = min(body[name], 4)
    return body

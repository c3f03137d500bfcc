"""A stack as a line: round trip, defaults, and errors that help."""

from __future__ import annotations

import pytest

from narrows.kv import KV_CODECS
from narrows.methods import StackError, build, show
from narrows.schedulers import SCHEDULERS
from narrows.schedulers.continuous import Continuous
from narrows.stack import REGISTRIES, Stack
from narrows.verifiers import VERIFIERS


@pytest.mark.parametrize(("seam", "name"), [(seam, name) for seam, r in REGISTRIES.items() for name in r])
def test_every_method_builds_and_prints_back(seam: str, name: str) -> None:
    needs = {
        "model": "model:model=x",
        "self": "self:skip=1-2",
        "looped": "looped:base=(ngram)",
        "first": "ngram|ngram:k=3",
    }
    method = build(seam, needs.get(name, name), REGISTRIES[seam])
    assert build(seam, show(method, REGISTRIES[seam]), REGISTRIES[seam]) == method


def test_registries_hold_the_defaults() -> None:
    assert "bf16" in KV_CODECS and "continuous" in SCHEDULERS and "greedy" in VERIFIERS


@pytest.mark.parametrize(
    "line",
    [
        "",
        "weights=int4",
        "weights=int4:g64:min scheduler=continuous:budget=7",
        "verify=greedy kv=bf16",
        "draft=none",
        "weights=int3 prefill=dense",
        "draft=ngram:k=4 verify=rejection pace=fixed",
        "draft=ngram:min_n=3|model:model=a/b.gguf,k=2",
        "draft=self:skip=3+10-12,weights=int4,k=2|model:model=x,weights=int3",
        "draft=looped:base=(ngram|model:model=x),gate=-inf,rule=token",
        "draft=ngram|looped:base=(looped:base=(ngram:k=2)),stages=2",
    ],
)
def test_round_trip(line: str) -> None:
    stack = Stack.parse(line)
    assert Stack.parse(str(stack)) == stack


def test_line_says_everything() -> None:
    stack = Stack(weights="int8", scheduler=Continuous(budget=256))
    assert str(stack) == "weights=int8 kv=bf16 scheduler=continuous:budget=256,max_num_seqs=64 verify=greedy"
    assert Stack().lossless and not stack.lossless


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("weight=int4", r"no part 'weight' in a stack \(did you mean 'weights'\?\)"),
        ("weights=int44", r"unknown weight format 'int44' \(did you mean 'int4'\?\)"),
        ("kv=bf61", r"kv=bf61: no such method \(did you mean 'bf16'\?\)"),
        ("scheduler=continous", r"did you mean 'continuous'\?"),
        ("scheduler=continuous:budgt=1", r"no setting 'budgt' \(did you mean 'budget'\?\)"),
        ("scheduler=continuous:budget=x", r"scheduler=continuous:budget is 'x'; it must be of type int"),
        ("scheduler=continuous:budget=0", r"scheduler=continuous: budget is 0; it must be between 1 and 65536"),
        ("scheduler=continuous:budget=1,budget=2", "budget must be given once"),
        ("scheduler=continuous:budget", "budget must be given once, as budget=value"),
        ("weights=int4 weights=int8", "weights must be given once"),
        ("weights", "weights must be given once, as weights=value"),
        ("verify=greedy:k=1", "no setting 'k'"),
        ("draft=ngarm", r"did you mean 'ngram'\?"),
        ("draft=model", "draft=model needs model: model:model=value"),
        ("draft=self", "nothing makes it cheaper than the model: give skip, weights or both"),
        ("draft=self:skip=12-3", "skip is '12-3'; it must be layers such as 10-19"),
        ("draft=first", "no such method"),
        ("draft=ngram|", "draft=: no such method"),
        ("draft=looped:base=(ngram:kk=1)", r"no setting 'kk' \(did you mean 'k'\?\)"),
        ("draft=looped:base=ngram,gate=0.5", "gate is 0.5; it must be at most 0"),
        ("draft=looped:base=ngram,rule=x", "rule is 'x'; it must be stage or token"),
        ("draft=ngram:k=0", "k is 0; it must be between 1 and 64"),
        ("verify=typical:epsilon=0", "epsilon is 0.0; it must be above 0"),
        ("pace=goodput:tries=2", "tries is 2.0; it must be between"),
    ],
)
def test_errors_name_the_near_miss(line: str, message: str) -> None:
    with pytest.raises(StackError, match=message):
        Stack.parse(line)

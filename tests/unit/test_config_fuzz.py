"""Whatever a config or the command line holds: one line a problem and exit code 2, or a plan that works.

Mutations as in `tests/torture/fuzz_configs.py`, which has the long version; and each case that it has found, by name.
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from fast import fast
from torture import bounded, config_mutations, fuzz_configs

CHUNKS, CASES = 20, 2000
FAST = 2
"""So many chunks of 100 mutations belong to the fast run."""
# In process time, on any machine: what it found took minutes or for ever.
LONG_S = 30.0


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with fuzz_configs.quick_plans():
        yield


def verdict_of(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """`refused` or `planned`, in bounded time and memory; anything else fails here."""
    before, start = bounded.reset_peak(), time.process_time()
    verdict, detail = fuzz_configs.judge(["--plan=json", *words], environment=environment)
    assert verdict in fuzz_configs.GOOD, detail
    assert time.process_time() - start < LONG_S and bounded.peak() - before < fuzz_configs.MOST_BYTES
    return verdict


@pytest.mark.parametrize("chunk", fast(*range(FAST), of=range(CHUNKS)))
def test_mutations(chunk: int, tmp_path: Path) -> None:
    """Of all shipped configs, to the end of the plan."""
    verdicts: Counter[str] = Counter()
    for number in range(chunk, CASES, CHUNKS):
        mutation = config_mutations.mutate(number, 0)
        verdicts[verdict_of(mutation.write(tmp_path / str(number)), mutation.environment)] += 1
    assert min(verdicts["refused"], verdicts["planned"]) > 10, "too tame, or too wild, to test both outcomes"


def test_a_case_is_the_same_everywhere() -> None:
    assert config_mutations.mutate(7, 3) == config_mutations.mutate(7, 3) != config_mutations.mutate(8, 3)


# What was found: words of the command, on the default config, and what they are.

PLANNED = {
    "kernels of 1.5 billion numbers": "model.width=99.99",
    "a hundred million shards": "data.name=synthetic data.num_train=2000000000 partition.name=shards "
    "partition.shards_per_client=90000000",
    "a billion clients in a round": "data.name=synthetic data.num_train=2000000000 clients.count=2000000000 "
    "clients.per_round=1000000000",
    "two billion rounds": "rounds=2147483647",
}
REFUSED = {
    "a base for each of a billion atoms": "method.name=splitmix method.atom=1e-300",
    "more stages than anybody can build": "model.blocks=[2147483647]",
    "a transformer without end": "model.name=vit_small model.depth=2147483647",
    "a width that is no number of channels": "model.width=1e308",
    "epochs without end": "method.name=standalone method.epochs_factor=1e308",
    "two billion channels": "data.name=synthetic data.shape=[2147483647,8,8]",
    "two billion classes": "data.name=synthetic data.classes=2147483647",
    "a seed of 400 digits": f"data.name=synthetic data.seed={'9' * 400}",
    "a rank of 400 digits": "method.layer_ranks={'fc':" + "9" * 400 + "}",
    "a tier for each of 40 widths": "clients.count=100 method.rank_ratio=["
    + ",".join(str(1 - number / 50) for number in range(40))
    + "]",
    "more threads than a machine has": "mpi.threads=2147483647",
    "a folder with a NUL": 'output.dir="a\\0b"',
    "a folder that no system can name": 'data.name=cifar10 data.root="\\uD800"',
    "two billion classes each": "partition.name=lottery partition.classes_per_client=2147483647",
    "a list of a million": "train.schedule.milestones=[" + "1," * 1_000_000 + "1]",
    "a line for each of 20,000 duplicates": "train={" + '"a":1,' * 20_000 + "}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_found_and_refused(name: str) -> None:
    assert verdict_of(REFUSED[name].split(" ")) == "refused"


@pytest.mark.parametrize("name", PLANNED)
def test_found_and_planned(name: str) -> None:
    assert verdict_of(PLANNED[name].split(" ")) == "planned"


FILES = {
    "many keys upon many": ("extends: [a.yaml, a.yaml]", b"".join(b"key%d: [1]\n" % number for number in range(7_000))),
    "a billion files": (f"extends: {['a.yaml'] * 8}", f"extends: {['b.yaml'] * 8}".encode()),
    "keys that nobody knows": ("train:\n" + "".join(f"  k{number}: 1\n" for number in range(9_000)), b""),
    "a long name": (f"extends: {'x/' * 3_000}", b""),
    "a device": ("extends: /dev/zero", b""),
}


@pytest.mark.parametrize("name", FILES)
def test_found_in_files(name: str, tmp_path: Path) -> None:
    top, base = FILES[name]
    (tmp_path / "top.yaml").write_text(top)
    (tmp_path / "a.yaml").write_bytes(base)
    (tmp_path / "b.yaml").write_text("extends: [" + ", ".join(["c.yaml"] * 8) + "]")
    (tmp_path / "c.yaml").write_text("extends: [" + ", ".join(["d.yaml"] * 8) + "]")
    (tmp_path / "d.yaml").write_text("seed: 1")
    assert verdict_of([str(tmp_path / "top.yaml")]) == "refused"


# What the judge of all these lets pass.


def answer(out: str = "", err: str = "", code: int = 2) -> str:
    def run(words: Sequence[str]) -> int:
        sys.stdout.write(out)
        sys.stderr.write(err)
        return code

    return fuzz_configs.judge([], run)[0]


def test_the_judge() -> None:
    assert answer(err="a.yaml: 2 problems\n  seed  wrong\n  train.lr  wrong\n") == "refused"
    assert answer(out='{"tiers": [{"params": 1}]}', code=0) == "planned"
    for err in ("", "a.yaml wrong\n", "a.yaml: x\x1b[2J\n", "a: 2 problems\nseed\n", f"a: {'x' * 5000}\n", "a: b\n\n"):
        assert answer(err=err) == "wrong", err
    for plan in ("", "{", '{"tiers": [NaN]}', '{"tiers": [-1]}', '{"tiers": [1e50]}', '{"tiers": []}'):
        assert answer(out=plan, code=0) == "wrong", plan
    assert answer(out='{"tiers": [1]}', err="RuntimeWarning", code=0) == "wrong"
    assert answer(err="a: b\n", code=1) == "wrong" and answer(out="x", err="a: b\n") == "wrong"


def test_the_judge_sees_what_is_warned() -> None:
    def warn(words: Sequence[str]) -> int:
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        print('{"tiers": [1]}')
        return 0

    assert fuzz_configs.judge([], warn)[0] == "wrong"

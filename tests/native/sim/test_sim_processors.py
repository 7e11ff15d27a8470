"""Logits processors on the simulated device: CUDA source, Python, both in one request, and source that is wrong."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace_engine.backends import cpu
from headrace_engine.core.row_fields import LogitChanges, Processing
from headrace_engine.core.runner import Runner, SequenceStep
from headrace_engine.errors import BadProcessor
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.ipc.plans import ProcessorFile
from headrace_engine.sampling_params import SamplingParams
from native.build import ROOT
from native.sim_runs import GREEDY, on_cpu, plan_for
from support.backends.runners import ready, silent
from support.models.processor_page import example
from support.sim import device as sim
from support.sim.kernels import SIMULATOR_VARIABLE

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module", autouse=True)
def compiler(simulator: None, libraries: Path) -> Iterator[None]:
    """What kernels of the simulated device are compiled with."""
    cache = (libraries / "CMakeCache.txt").read_text()
    (folders,) = (line.partition("=")[2] for line in cache.splitlines() if line.startswith("CORE_CUDA_INCLUDE:"))
    includes = " ".join(f"-isystem {folder}" for folder in folders.split(";"))
    library = libraries / "core/sim/libcusim.a"
    flags = f"-I{ROOT / 'csrc'} {includes} -fno-strict-aliasing -w {library} -pthread"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(SIMULATOR_VARIABLE, flags)
        yield


def by_history(logits, ids, arguments):
    logits[int(ids.sum()) % 300] += 1e4


def fail(logits, ids, arguments):
    raise LookupError("no such word")


@pytest.fixture(scope="module")
def runner(compiler: None, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("processors")
    files = (
        ProcessorFile("steer", str(example("steer.cu", folder))),
        ProcessorFile("steer-py", str(example("steer.py", folder))),
        ProcessorFile("nan", str(written(folder, "nan.cu", "if (threadIdx.x == 0) logits[7] = 0.0f / 0.0f;"))),
        ProcessorFile("by-history"),
        ProcessorFile("fail"),
    )
    plan = plan_for(model_path, logits_processors=files)
    return ready(sim.make_runner(plan, {"by-history": by_history, "fail": fail}))


def written(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    arguments = "float *logits, int vocab, const int *ids, int length, const float *arguments, int count"
    path.write_text(f'extern "C" __global__ void process({arguments}) {{\n  {body}\n}}\n')
    return path


def row(block: int, *calls: LogitsProcessor, ids: list[int] | None = None, sampling=GREEDY, **fields) -> SequenceStep:
    processing = Processing(calls, array("i", ids or PROMPT)) if calls else None
    return SequenceStep(PROMPT, 0, (block,), sampling, processing=processing, **fields)


def steer(*arguments: float, name: str = "steer") -> LogitsProcessor:
    return LogitsProcessor(name, arguments)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_the_page_s_kernel_does_what_its_python_does(
    runner: Runner, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUSIM_ORDER", order)
    drawn = SamplingParams(temperature=1.5, seed=3, logprobs=True, top_logprobs=2)
    for sampling in (GREEDY, drawn):
        for calls in ([3.0, 11, 12, 13], [1e4, 250], [-5.0, 2, 300, 17]):
            rows = [row(n, steer(*calls, name=name), ids=[*PROMPT, 9], sampling=sampling) for n, name in
                    enumerate(("steer", "steer-py"))]  # fmt: skip
            in_cuda, in_python = runner.run(rows)
            assert in_cuda == in_python
            assert in_cuda.token_id not in (None, 9)


def test_rows_with_and_without_share_prompts_and_captured_steps(runner: Runner) -> None:
    """A step of one token a sequence is not captured where one is processed, and the next one is again."""
    plain = [sampled.token_id for sampled in runner.run([row(n) for n in range(3)])]
    mixed = runner.run([row(0), row(1, steer(1e4, 77)), row(2, LogitsProcessor("by-history"))])
    assert [sampled.token_id for sampled in mixed] == [plain[0], 77, sum(PROMPT)]
    steps = [SequenceStep([9], 3, (n,), GREEDY) for n in range(3)]
    captured = runner.run(steps)
    calls = Processing([steer(1e4, 77)], array("i", [*PROMPT, 9]))
    mixed = runner.run([steps[0], SequenceStep([9], 3, (1,), GREEDY, processing=calls), steps[2]])
    assert [sampled.token_id for sampled in mixed] == [captured[0].token_id, 77, captured[2].token_id]
    for (token, logprob), (own, own_logprob) in zip(mixed[1].top, captured[1].top, strict=True):
        assert (token, logprob) == (own, pytest.approx(own_logprob, abs=1e-5))
    assert runner.run(steps) == captured


def test_several_are_called_in_their_order_wherever_they_run(runner: Runner) -> None:
    calls = (steer(2e4, 40), LogitsProcessor("by-history"), steer(2e4, 41, name="steer-py"), steer(0, 1))
    (sampled,) = runner.run([row(0, *calls, ids=[10, 30, 41])])
    assert sampled.token_id == 40
    (sampled,) = runner.run([row(0, *calls, ids=[10, 30, 40])])
    assert sampled.token_id == 41


def test_what_may_not_be_drawn_stays_so(runner: Runner) -> None:
    lift = steer(1e4, 50, 51)
    (sampled,) = runner.run([row(0, lift, masked_ids=[50])])
    assert sampled.token_id == 51
    (sampled,) = runner.run([row(0, lift, changes=LogitChanges(allowed=array("I", [1 << 9])))])
    assert sampled.token_id == 9


@pytest.mark.parametrize(
    ("name", "words"), [("fail", "LookupError: no such word"), ("nan", "left nan as the logit of id 7")]
)
def test_what_fails_costs_its_own_row_alone(runner: Runner, name: str, words: str) -> None:
    plain, failed, steered = runner.run([row(0), row(1, LogitsProcessor(name)), row(2, steer(1e4, 77))])
    assert failed.error.startswith(f"logits processor {name!r}: {words}")
    assert (plain.error, steered.token_id) == ("", 77)


def test_python_draws_the_tokens_of_the_cpu_backend(model_path: Path) -> None:
    """Forced, so that rounding decides nothing."""
    plan = plan_for(model_path, logits_processors=(ProcessorFile("by-history"),))
    calls = [LogitsProcessor("by-history")]
    made = [(cpu.make_runner, on_cpu(plan)), (sim.make_runner, plan)]
    drawn = []
    for make, each in made:
        runner = ready(make(each, {"by-history": by_history}))
        steps = [row(n, *calls, ids=[*PROMPT, n], sampling=SamplingParams(seed=n)) for n in range(5)]
        drawn.append([sampled.token_id for sampled in runner.run(steps)])
    assert drawn[0] == drawn[1] == [sum(PROMPT) + n for n in range(5)]


def test_source_that_does_not_compile_gives_the_compilers_words(model_path: Path, tmp_path: Path) -> None:
    file = ProcessorFile("x", str(written(tmp_path, "x.cu", "logits[0] = no_such_name;")))
    words = r"(?s)'x' \(.*x.cu\) gives no kernel.*x.cu:2:.*no_such_name.*was not declared"
    with pytest.raises(BadProcessor, match=words):
        sim.make_runner(plan_for(model_path, logits_processors=(file,))).load(silent)


def test_without_a_compiler_it_says_what_is_missing(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIMULATOR_VARIABLE)
    file = ProcessorFile("x", str(written(tmp_path, "x.cu", "")))
    with pytest.raises(BadProcessor, match=f"compiles nothing unless {SIMULATOR_VARIABLE} is set"):
        sim.make_runner(plan_for(model_path, logits_processors=(file,))).load(silent)

"""activation_quant on the simulated device: rows and weights as codes of eight bits, and their products."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends import cpu
from headrace_engine.backends import torch as oracle
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.backends.cuda.weights.quantized import QuantizedWeight
from headrace_engine.backends.cuda.weights.row_products import RowQuantizedWeight
from headrace_engine.config import ActivationQuant, ComputeDtype, WeightQuant
from headrace_engine.core.row_fields import PromptIds
from headrace_engine.core.runner import Runner, SequenceStep
from headrace_engine.environment import PLAIN_VARIABLE
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.sampling_params import SamplingParams
from native.sim_runs import GREEDY, SHAPE, Sequences, on_cpu, plan_for, prompts
from safetensors.torch import load_file, save_file
from support.backends.runners import allocated, ready, silent
from support.models.quantized_checkpoints import NUMBERS, write_quantized
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama, make_tiny_qwen2
from support.sim import device as sim
from support.sim.device import SimDevice

INT8: dict[str, Any] = {"weight_quant": WeightQuant.INT8, "activation_quant": ActivationQuant.INT8}
FP8: dict[str, Any] = {"activation_quant": ActivationQuant.FP8}
BOTH = pytest.mark.parametrize("changes", [INT8, FP8], ids=["int8", "fp8"])


pytestmark = pytest.mark.usefixtures("simulator")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With biases of q, k and v."""
    return make_tiny_qwen2(tmp_path_factory.mktemp("model"), vocab_size=256, intermediate_size=256, **SHAPE)


def loaded(path: Path, **changes: object) -> CudaModel:
    runner = sim.make_runner(plan_for(path, **changes))
    runner.load(silent)
    assert runner._model is not None
    return runner._model


def numbers_of(weight: RowQuantizedWeight) -> torch.Tensor:
    return weight.codes.double() * weight.scales.double().unsqueeze(1)


def test_integer_weights_are_those_of_the_cpu_backend(model: Path) -> None:
    """To the last bit, with one scale a row; tables of the vocabulary stay what few rows are multiplied with."""
    device = loaded(model, **INT8)
    reference = cpu.make_runner(on_cpu(plan_for(model, **INT8)))
    reference.load(silent)
    assert reference._model is not None
    tensors: Any = reference._model.weights.tensors
    for names in (("q", "k", "v"), ("o",), ("gate", "up"), ("down",)):
        whole = device.weights[f"layers.1.{names[0]}"]
        assert all(device.weights[f"layers.1.{name}"] is whole for name in names)
        pairs = zip(names, whole.sizes, strict=True)
        rows = [tensors[f"layers.1.{name}"].row(row) for name, size in pairs for row in range(size)]
        assert np.array_equal(numbers_of(whole).float().numpy(), np.stack(rows))
    assert isinstance(device.weights["embed"], QuantizedWeight)


def test_weights_in_fp8_are_the_numbers_of_the_files_rounded(model: Path) -> None:
    device, numbers = loaded(model, **FP8), loaded(model)
    for name in ("q", "o", "up", "down"):
        weight, exact = device.weights[f"layers.0.{name}"], numbers.weights[f"layers.0.{name}"].double()
        begin = 128 * 2 if name == "up" else 0
        got = numbers_of(weight)[begin : begin + len(exact)]
        largest = exact.abs().amax(1, keepdim=True)
        assert ((got - exact).abs() <= exact.abs() / 16 + largest * 2**-16).all()
        assert (got.abs().amax(1, keepdim=True) - largest).abs().max() < 1e-6
    assert device.weights["embed"].dtype == torch.bfloat16
    assert device.weight_bytes < 0.75 * numbers.weight_bytes


@pytest.mark.parametrize(("vocab", "coded"), [(256, True), (250, False)])
def test_a_head_of_its_own_is_fp8_where_its_shape_allows(tmp_path: Path, vocab: int, coded: bool) -> None:
    path = make_tiny_llama(tmp_path, vocab_size=vocab, intermediate_size=256, **SHAPE)
    head, exact = loaded(path, **FP8).weights["head"], loaded(path).weights["head"].double()
    assert isinstance(head, RowQuantizedWeight) == coded
    if coded:
        assert (numbers_of(head) - exact).norm() < 0.04 * exact.norm()
    runner = ready(sim.make_runner(plan_for(path, **FP8)))
    got = prompt_logprobs_of(runner, list(range(3, 40)))
    expected = prompt_logprobs_of(oracle_of(runner._model, path), list(range(3, 40)))  # type: ignore[attr-defined]
    assert np.corrcoef(got, expected)[0, 1] > 0.985


FP8_FILES = ("fbgemm fp8", "float8", "float8 of a matrix")


@pytest.mark.parametrize("scheme", FP8_FILES)
def test_fp8_of_files_is_taken_code_by_code(model: Path, tmp_path: Path, scheme: str) -> None:
    """Also of projections that are stacked; what it stands for is not rounded again."""
    path, plain = write_quantized(tmp_path, model, *NUMBERS[scheme])
    device, exact = loaded(path, **FP8), load_file(plain / "model.safetensors")
    for part, names in (("self_attn", ("q", "k", "v")), ("self_attn", ("o",)), ("mlp", ("gate", "up"))):
        rows = [exact[f"model.layers.1.{part}.{name}_proj.weight"] for name in names]
        weight = device.weights[f"layers.1.{names[0]}"]
        assert list(weight.sizes) == [len(each) for each in rows]
        assert torch.equal(numbers_of(weight).float(), torch.cat(rows).float())


def test_fp8_of_files_in_blocks_is_quantized_by_rows(model: Path, tmp_path: Path) -> None:
    path, plain = write_quantized(tmp_path, model, *NUMBERS["block fp8"])
    weight = loaded(path, **FP8).weights["layers.0.down"]
    exact = load_file(plain / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].double()
    off = (numbers_of(weight) - exact).norm() / exact.norm()
    assert 0.001 < off < 0.05


def test_a_code_that_is_no_number_is_refused(model: Path, tmp_path: Path) -> None:
    path, _ = write_quantized(tmp_path, model, *NUMBERS["fbgemm fp8"])
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors = load_file(path / "model.safetensors")
    tensors[name].view(torch.uint8)[5, 7] = 0xFF
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"k_proj.weight holds codes that are no numbers"):
        loaded(path, **FP8)


def test_answers_of_fp8_files_are_those_of_their_numbers(model: Path, tmp_path: Path) -> None:
    """The oracle multiplies the numbers of the file: what differs is the rounding of activations."""
    path, plain = write_quantized(tmp_path, model, *NUMBERS["fbgemm fp8"])
    runner = ready(sim.make_runner(plan_for(path, **FP8)))
    reference = ready(oracle.make_runner(replace(on_cpu(plan_for(plain)), dtype=ComputeDtype.FLOAT32)))
    ids = np.random.default_rng(4).integers(0, 256, 45).tolist()
    got, expected = prompt_logprobs_of(runner, ids), prompt_logprobs_of(reference, ids)
    assert np.corrcoef(got, expected)[0, 1] > 0.985


def prompt_logprobs_of(runner: Runner, ids: list[int]) -> Any:
    """Log-probabilities of each id after those before it."""
    (sampled,) = runner.run([SequenceStep(ids, 0, (0, 1, 2), GREEDY, prompt_logprobs=PromptIds(0, ids[1:], 2))])
    assert sampled.prompt_logprobs is not None
    return np.array(sampled.prompt_logprobs.logprobs)


def oracle_of(device: CudaModel, path: Path) -> Runner:
    """The torch backend in float32 with the values that the codes stand for."""
    runner = oracle.make_runner(replace(on_cpu(plan_for(path)), dtype=ComputeDtype.FLOAT32))
    runner.load(silent)
    plain: Any = runner._model
    weights = dict(plain.weights)
    seen: dict[int, int] = {}
    for name, weight in device.weights.items():  # Of those that lie side by side, in order.
        if isinstance(weight, RowQuantizedWeight):
            begin = seen.get(id(weight), 0)
            seen[id(weight)] = begin + len(weights[name])
            weights[name] = numbers_of(weight)[begin : seen[id(weight)]].float()
    runner._model = replace(plain, weights=weights)
    return allocated(runner)


@BOTH
@pytest.mark.parametrize("plain", ["", "row_codes,rms_norm,gated_rows"])
def test_what_is_likely_is_what_the_oracle_says(
    model: Path, changes: dict[str, Any], plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle multiplies numbers: what differs is the rounding of activations, as much as codes allow."""
    monkeypatch.setenv(PLAIN_VARIABLE, plain)
    runner = ready(sim.make_runner(plan_for(model, **changes)))
    reference = oracle_of(runner._model, model)  # type: ignore[attr-defined]
    ids = np.random.default_rng(4).integers(0, 256, 45).tolist()
    got, expected = prompt_logprobs_of(runner, ids), prompt_logprobs_of(reference, ids)
    correlation = np.corrcoef(got, expected)[0, 1]
    assert correlation > (0.998 if changes is INT8 else 0.985)
    assert np.abs(got - expected).max() > 4e-3, "the activations were not rounded to codes"


@BOTH
def test_captured_steps_give_the_bits_of_steps_that_are_not(model: Path, changes: dict[str, Any]) -> None:
    runs = []
    for captured in (False, True):
        runner = ready(sim.make_runner(plan_for(model, max_batch=3, **changes)))
        if not captured:
            runner._steps._graphs = runner._steps._prompt_graphs = None  # type: ignore[attr-defined]
        sequences = Sequences(runner, prompts(3, 3))
        sequences.generate(1)
        for which in ([0], [0, 1, 2], [2, 1]):
            sequences.step(which, SamplingParams(temperature=0.9, seed=7, logprobs=True, top_logprobs=3))
        runs.append(sequences.drawn)
    assert runs[0] == runs[1]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"activation_quant": ActivationQuant.INT8}, "= INT8 is not supported .* with weight_quant NONE: set"),
    ({**INT8, "weight_quant": WeightQuant.INT4}, "= INT8 is not supported .* with weight_quant INT4: set weight_quant"),
    ({**INT8, "weight_quant_group_size": 32}, "= INT8 is not .*, weight_quant_group_size 32: set .* to 0"),
    (
        {**FP8, "weight_quant": WeightQuant.INT8},
        "= FP8 quantizes the weights itself, .* weight_quant is INT8: set it to NONE",
    ),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_weights_that_no_product_of_codes_takes_are_refused(model: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"config.activation_quant {text}") as refusal:
        loaded(model, **changes)
    assert refusal.value.reason == "NOT_SUPPORTED"


def test_blocks_of_a_file_are_not_made_codes_of_again(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "model", **SHAPE, intermediate_size=256)
    path = make_tiny_gguf(tmp_path / "model.gguf", source, "Q8_0")
    with pytest.raises(InvalidArgument, match=r"activation_quant = FP8 .* model's are quantized already \(Q8_0\)"):
        loaded(path, **FP8)
    assert isinstance(loaded(path, **INT8).weights["layers.0.q"], RowQuantizedWeight)


def test_a_card_without_products_of_fp8_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(SimDevice):
        def __init__(self) -> None:
            super().__init__()
            self.name, self.capability = "cuda:0", (8, 0)

    monkeypatch.setattr(sim, "SimDevice", Older)
    with pytest.raises(
        InvalidArgument, match=r"activation_quant = FP8 needs a card of .* 8\.9, cuda:0 has 8\.0: use INT8"
    ):
        loaded(model, **FP8)
    loaded(model, **INT8)


@BOTH
def test_a_matrix_of_odd_extent_is_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = make_tiny_llama(tmp_path, **SHAPE, intermediate_size=100)
    with pytest.raises(InvalidArgument, match=r"multiples of 16; layers.0.(gate|up|down) is (100 × 128|128 × 100)"):
        loaded(path, **changes)


def test_a_weight_that_is_not_finite_is_no_code(tmp_path: Path) -> None:
    path = make_tiny_llama(tmp_path, **SHAPE)
    (file,) = path.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("layers.1.mlp.down_proj.weight"))
    tensors[name][3, 5] = float("inf")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"down_proj.weight holds values that are not finite, and cannot be quantised"):
        loaded(path, **FP8)

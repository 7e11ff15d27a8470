"""The page of a check on a card, of its outcomes, and the floors for a card that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.common.page import GPU, GPU_PREDICTED
from bench.gpu import costs, decode, report
from bench.gpu.checked import points
from bench.gpu.outcome import Outcome
from bench.gpu.plans import H100, PLANS, WHOLE, Plan

Outcomes = Mapping[str, Outcome]


def predict() -> None:
    """Write the floors for an H100."""
    parts = [
        f"**Not yet measured on a card.** Floors for an H100, where {report.limits_line(H100)} "
        "(measured elsewhere, not by this command):",
        report.op_table(costs.costs(WHOLE.layer, WHOLE.scale), H100, None),
        *(_decode_part(name, WHOLE, H100, None) for name in WHOLE.shapes),
    ]
    GPU_PREDICTED.write("\n\n".join(parts))


def adopt(outcomes: Outcomes) -> None:
    """Write the outcomes of a check into the results.

    Raises:
        SystemExit: there is none on a card.
    """
    if "limits" not in passed(outcomes):
        raise SystemExit("gpu-check: the folder has no outcome of limits, from which all floors derive")
    found = outcomes["limits"]
    if found.card == "sim":
        raise SystemExit("gpu-check: the folder's outcomes are those of the simulated device, where times mean nothing")
    report.keep(report.RUNS, found.card, found.date, measured_limits(outcomes), measured_ops(outcomes), _all(outcomes))
    GPU.write(page(outcomes, "cuda"))


def page(outcomes: Outcomes, device: str) -> str:
    """Return the tables of what was measured, and what became of all else."""
    plan, found = PLANS[device], measured_limits(outcomes)
    limits = outcomes["limits"]
    timed = measured_ops(outcomes)
    parts = [f"{limits.date}. {limits.card}: {report.limits_line(found)}."]
    parts.append(report.op_table(costs.costs(plan.layer, plan.scale), found, timed or {"": 0.0}))
    for name in plan.shapes:
        for kind, how in (("greedy", "greedy"), ("sampled", "sampled with top_k and top_p")):
            if (outcome := passed(outcomes).get(f"decode:{name}:{kind}")) is not None:
                parts.append(_decode_part(f"{name}, {how}", plan, found, batches(outcome), name))
    if beside := points(passed(outcomes)):
        parts += ["Beside the torch backend on the same card:", _beside_torch(beside)]
    return "\n\n".join([*parts, _tests(outcomes)])


def passed(outcomes: Outcomes) -> dict[str, Outcome]:
    """Return the outcomes that passed."""
    return {name: outcome for name, outcome in outcomes.items() if outcome.ending == "passed"}


def measured_limits(outcomes: Outcomes) -> tuple[float, float]:
    """Return bytes per second of a copy, and operations per second of a product."""
    figures = outcomes["limits"].figures
    return figures["copy_bytes_s"], figures["product_ops_s"]


def measured_ops(outcomes: Outcomes) -> dict[str, float]:
    """Return the seconds of each op that was measured."""
    groups = (outcome for name, outcome in passed(outcomes).items() if name.startswith("ops:"))
    return {name: taken for outcome in groups for name, taken in outcome.figures.items()}


def batches(outcome: Outcome) -> list[decode.Measured]:
    """Return the batches of a decoder."""
    return [decode.Measured(**each) for each in outcome.figures["batches"]]


def _all(outcomes: Outcomes) -> dict[str, list[decode.Measured]]:
    """Return the batches of each decoder, by its name and how it samples."""
    return {
        name.removeprefix("decode:"): batches(outcome)
        for name, outcome in passed(outcomes).items()
        if name.startswith("decode:")
    }


def _decode_part(
    title: str, plan: Plan, found: tuple[float, float], measured: Sequence[decode.Measured] | None, name: str = ""
) -> str:
    load = plan.load
    text = (
        f"{title}, random weights in bfloat16, for up to {load.limit:,} tokens, prompts of {load.prompt} and answers "
        f"of {load.new} ids, all at once:"
    )
    return f"{text}\n\n{report.decode_table(plan.shapes[name or title], load, found, measured)}"


def _beside_torch(beside: Mapping[str, Mapping[str, float]]) -> str:
    rows = []
    for name, seconds in beside.items():
        mine, other = seconds.get("cuda"), seconds.get("torch")
        ratio = f"{other / mine:.2f}" if mine and other else ""
        rows.append([name, *(f"{1e3 * each:,.3f}" if each else "–" for each in (mine, other)), ratio])
    return report.table(["load", "cuda ms", "torch ms", "torch / cuda"], rows)


def _tests(outcomes: Outcomes) -> str:
    """Return what became of the tests, and of each step that did not pass."""
    files = {name: outcome for name, outcome in outcomes.items() if name.startswith("tests:")}
    whole = sum(outcome.figures.get("passed", 0) for outcome in passed(files).values())
    lines = [f"Tests of the kernels: {len(passed(files))} of {len(files)} files passed, with {whole} tests."]
    if (tokens := passed(outcomes).get("tokens")) is not None:
        ids, parted = tokens.figures["ids"], tokens.figures["parted"]
        lines.append(
            f"Greedy ids: of {ids}, {parted} are not those of torch in float32, where its two best are as good."
        )
    if clean := [name for name in passed(outcomes) if name.startswith("sanitizer:")]:
        lines.append(f"Under compute-sanitizer {len(clean)} runs of a file and a tool passed.")
    for name, outcome in outcomes.items():
        if outcome.ending != "passed":
            why = outcome.error.splitlines()[-1] if outcome.error else ""
            lines.append(f"- {name}: **{outcome.ending}** ({why[:150]})")
    return "\n".join(lines)

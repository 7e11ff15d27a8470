"""The command by which a core computes the sequences of an accepted request."""

from __future__ import annotations

from headrace_engine.engine.config.beam_fields import has_beams
from headrace_engine.engine.config.generation import Generation
from headrace_engine.engine.formats.frames import Verdict
from headrace_engine.generation_config import BeamStopping, GenerationConfig, InterruptPolicy
from headrace_engine.ipc.commands import AddSequence, BeamPlan
from headrace_engine.sampling_params import LogitRules


def common_command(
    prompt: tuple[int, ...],
    generation: Generation,
    rules: LogitRules | None,
    guided: Verdict,
    kept: frozenset[int] = frozenset(),
) -> AddSequence:
    """Return the command to the core with everything that the request's sequences have in common.

    Args:
        kept: special ids that stay in the text.
    """
    config = generation.effective
    return AddSequence(
        key=0,
        prompt=prompt,
        sampling=generation.sampling,
        max_new=generation.max_new,
        eos_ids=generation.eos_ids,
        stop_ids=config.stop_token_ids,
        min_new=generation.min_new,
        rules=rules,
        processors=config.logits_processors,
        grammar=guided.grammar,
        grammar_bytes=guided.size,
        grammar_seconds=guided.seconds,
        priority=config.priority or 0,
        use_prefix_cache=config.use_prefix_cache is not False,
        use_speculation=config.use_speculation is not False,
        cache_salt=config.cache_salt or "",
        interrupt_policy=config.interrupt_policy or InterruptPolicy.RESUME,
        prompt_logprobs=config.prompt_logprobs,
        tensors=bool(config.enable_tensors_from_model_inference),
        beams=_beams(config, kept),
    )


def _beams(config: GenerationConfig, kept: frozenset[int]) -> BeamPlan | None:
    if not has_beams(config):
        return None
    penalty = 1.0 if config.length_penalty is None else config.length_penalty
    stopping = config.beam_stopping or BeamStopping.HEURISTIC
    return BeamPlan(
        config.num_beams or 1,
        penalty,
        stopping,
        stops=config.stop_words_ids,
        words=config.stop_words,
        skips_special=config.skip_special_tokens is not False,
        kept=tuple(sorted(kept)) if config.stop_words else (),
    )

"""The draft model of an install: read for its plan, and checked for having the model's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.model_paths import locate
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.errors import BadModel, InvalidArgument, shown
from headrace_engine.ipc.plans import DraftPlan
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer

FIELD = "config.draft_model"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model that fits its model.

    Attributes:
        plan: how cores load it.
        weight_bytes: bytes of its weights in its files.
    """

    plan: DraftPlan
    weight_bytes: int


def read_draft_model(
    config: RuntimeConfig, options: EngineOptions, files: ModelFiles, bundle: TokenizerBundle
) -> DraftModel | None:
    """Read the headers and the tokenizer of a config's draft model; None: it has none. Blocking.

    Args:
        files, bundle: those of the model that it drafts for.

    Raises:
        BadModel: it is missing or damaged, or of an unsupported kind; names the field.
        InvalidArgument: its path leads outside the engine's model roots, or it has another vocabulary.
    """
    if not config.draft_model:
        return None
    try:
        found = _open(config.draft_model, config.hub, options)
        drafting = load_tokenizer(found)
    except (BadModel, OSError) as error:
        text = error.message if isinstance(error, BadModel) else f"{error.strerror or error}: {config.draft_model}"
        raise BadModel(f"draft_model: {text}") from error
    _check_vocabulary(config.draft_model, bundle, drafting)
    length = min(config.max_length or files.spec.max_length, found.spec.max_length)
    return DraftModel(DraftPlan(str(found.path), found.format, length), found.weight_bytes)


def _open(path: str, hub: str, options: EngineOptions) -> ModelFiles:
    location = locate(path, options, FIELD)
    is_hub_name = location.is_hub_name or not Path(location.path).expanduser().exists()
    if is_hub_name and not options.allow_hub:
        raise BadModel(f"{path}: no such file or directory, and hub access is disabled (--no-hub)")
    return open_model(location.path, hub_only=location.is_hub_name, hub=hub if is_hub_name else "")


def _check_vocabulary(path: str, model: TokenizerBundle, draft: TokenizerBundle) -> None:
    """Refuse a draft model whose ids mean other tokens.

    Raises:
        InvalidArgument: naming the first difference, with both values.
    """
    begin = f"= {path!r} has another vocabulary than the model"
    if draft.vocab_size != model.vocab_size:
        text = f"{begin}: vocab_size is {draft.vocab_size} there, and {model.vocab_size} in the model"
        raise InvalidArgument.field(FIELD, text)
    pieces = zip_longest(draft.pieces[: draft.vocab_size], model.pieces[: model.vocab_size], fillvalue=b"")
    for token_id, (theirs, ours) in enumerate(pieces):
        if theirs != ours:
            text = f"{begin}: id {token_id} is {_shown(theirs)} there, and {_shown(ours)} in the model"
            raise InvalidArgument.field(FIELD, text)


def _shown(piece: bytes) -> str:
    return shown(piece.decode("utf-8", "backslashreplace")) if piece else "no token"

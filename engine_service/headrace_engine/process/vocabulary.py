"""Builds a model's vocabulary for guides in advance, before there are requests that it could delay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from headrace_engine.core.guides.compiler import GuideMaker
from headrace_engine.errors import in_words
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.tokenizer import load_tokenizer


class BegunVocabulary:
    """A vocabulary being built in a thread.

    Building takes half a second for 50,000 ids, of which the parser's library holds Python's lock for 0.15 s. Done at
    the first guided request, it would delay all others that long.

    Args:
        opened: returns the model's files.
    """

    def __init__(self, opened: Callable[[], ModelFiles]) -> None:
        self._files: Future[ModelFiles] = Future()
        self._maker: Future[GuideMaker] = Future()
        threading.Thread(target=self._make, args=(opened,), name="vocabulary", daemon=True).start()

    @classmethod
    def at(cls, path: str) -> BegunVocabulary:
        """Start building the vocabulary of the model at a path, opened with default options."""
        return cls(partial(open_model, path))

    @classmethod
    def of(cls, plan: CorePlan) -> BegunVocabulary:
        """Start building the vocabulary of a plan's model."""
        return cls(partial(open_model, plan.path, format=plan.format, file_prefix=plan.file_prefix))

    def fits(self, plan: CorePlan) -> bool:
        """Return True if this is the vocabulary of a plan's model. Waits until its files are open."""
        with suppress(Exception):  # It cannot be read: loading the model will report that.
            files = self._files.result()
            return (str(files.path), files.format, "") == (plan.path, plan.format, plan.file_prefix)
        return False

    def maker(self) -> GuideMaker:
        """Return the compiler of grammars for the model. Waits until it is built.

        Raises:
            HeadraceError: the model's files are not valid.
        """
        return self._maker.result()

    def _make(self, opened: Callable[[], ModelFiles]) -> None:
        try:
            files = opened()
            self._files.set_result(files)
            from headrace_engine.guided.vocabulary import Vocabulary  # Loading the parser takes a moment as well.

            bundle = load_tokenizer(files)
            self._maker.set_result(Vocabulary(bundle, bundle.vocab_size))
        except BaseException as error:  # Anything must reach the callers that wait.
            reported = error if isinstance(error, Exception) else RuntimeError(in_words(error))
            if not self._files.done():
                self._files.set_exception(reported)
            self._maker.set_exception(reported)

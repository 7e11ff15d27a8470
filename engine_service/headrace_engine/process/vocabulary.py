"""A model's vocabulary for guides, made before anybody is there whom that could hold up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from headrace_engine.commands import CorePlan
from headrace_engine.core.guides.compiler import GuideMaker
from headrace_engine.errors import in_words
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.tokenizer import load_tokenizer


class BegunVocabulary:
    """Makes it in a thread from now on.

    That takes half a second, of which the parser's library keeps Python's lock for 0.15 s, for 50,000 ids. Made for the
    first request that is guided, it would have all others wait as long.

    Args:
        opened: gives the model's files.
    """

    def __init__(self, opened: Callable[[], ModelFiles]) -> None:
        self._files: Future[ModelFiles] = Future()
        self._maker: Future[GuideMaker] = Future()
        threading.Thread(target=self._make, args=(opened,), name="vocabulary", daemon=True).start()

    @classmethod
    def at(cls, path: str) -> BegunVocabulary:
        """That of the model that a path leads to, without further choices."""
        return cls(partial(open_model, path))

    @classmethod
    def of(cls, plan: CorePlan) -> BegunVocabulary:
        """That of a plan's model."""
        return cls(partial(open_model, plan.path, format=plan.format, file_prefix=plan.file_prefix))

    def fits(self, plan: CorePlan) -> bool:
        """Whether one that a path led to is that of a plan's model. Waits until its files are open."""
        with suppress(Exception):  # It cannot be read: whoever loads it says so.
            files = self._files.result()
            return (str(files.path), files.format, "") == (plan.path, plan.format, plan.file_prefix)
        return False

    def maker(self) -> GuideMaker:
        """What compiles grammars for the model. Waits until it is made.

        Raises:
            HeadraceError: the model's files are not in order.
        """
        return self._maker.result()

    def _make(self, opened: Callable[[], ModelFiles]) -> None:
        try:
            files = opened()
            self._files.set_result(files)
            from headrace_engine.guided.vocabulary import Vocabulary  # Loading the parser takes a moment as well.

            bundle = load_tokenizer(files)
            self._maker.set_result(Vocabulary(bundle, bundle.vocab_size))
        except BaseException as error:  # Who asks is told, whatever it is.
            told = error if isinstance(error, Exception) else RuntimeError(in_words(error))
            if not self._files.done():
                self._files.set_exception(told)
            self._maker.set_exception(told)

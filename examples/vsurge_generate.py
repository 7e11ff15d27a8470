"""Texts generated with vSurge's API: python examples/vsurge_generate.py MODEL [HOST:PORT].

MODEL is a directory or a hub name. Without HOST:PORT the engine runs in this process.
"""

import asyncio
import sys

from headrace import vsurge as ed


async def generate(surge: ed.vSurge) -> None:
    """Wait for one answer, then follow two."""
    params = ed.SamplingParams(max_tokens=30, temperature=0.6, top_p=0.9)
    for sample in await surge.generate("USER:What is the capital of France?\nASSISTANT:", params):
        print(f"{sample.text} ({sample.tokens_per_second:.0f} tokens/s)")
    prompts = ["USER:Tell me a story.\nASSISTANT:", "USER:What is a cat?\nASSISTANT:"]
    async for samples in surge.generate(prompts, params, stream=True):
        print([sample.num_generated_tokens for sample in samples])


def main(path: str, address: str | None = None) -> None:
    """Run a model, and stop it in the end."""
    model = ed.AutoEasyDeLModelForCausalLM.from_pretrained(path, dtype="bfloat16")
    surge = ed.vSurge.from_model(model, processor=None, max_concurrent_decodes=8, max_length=2048, address=address)
    with surge:
        surge.start()
        asyncio.run(generate(surge))


if __name__ == "__main__":
    main(*sys.argv[1:])

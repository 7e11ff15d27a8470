"""Prompts through the pipeline of LMDeploy's API: python examples/lmdeploy_pipeline.py MODEL [HOST:PORT].

MODEL is a directory or a hub name. Without HOST:PORT the engine runs in this process.
"""

import sys

from headrace.lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline


def main(model: str, address: str | None = None) -> None:
    """Ask all at once, then one prompt piece by piece."""
    engine = TurbomindEngineConfig(session_len=2048, quant_policy=8)
    config = GenerationConfig(top_k=40, top_p=0.8, temperature=0.8, max_new_tokens=64)
    with pipeline(model, backend_config=engine, address=address) as pipe:
        for response in pipe(["Hi, pls intro yourself", "Shanghai is"], gen_config=config):
            print(response)
        for piece in pipe.stream_infer("Why is the sky blue?", gen_config=config):
            print(piece.text, end="", flush=True)
        print(f"\n{piece.generate_token_len} tokens, ended by {piece.finish_reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])

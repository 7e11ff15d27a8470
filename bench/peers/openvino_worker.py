"""OpenVINO GenAI's continuous batching, for `bench.cpu`.

Run by the Python in which the package openvino-genai is installed:

    python openvino_worker.py MODEL_FOLDER THREADS

Prints a line "ready", then reads JSON lines {"prompts": [[id, …], …], "new": N} and answers each with a line of the
arrivals of each request as [seconds, ids], until its input ends. Steps the pipeline in this process, without a server.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai as genai


def main() -> None:
    """Answer until the input ends."""
    pipeline = _pipeline(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answer(pipeline, asked["prompts"], asked["new"])), flush=True)


def _pipeline(folder: str, threads: int) -> genai.ContinuousBatchingPipeline:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_seqs = 16
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False
    return genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})


def answer(
    pipeline: genai.ContinuousBatchingPipeline, prompts: list[list[int]], new: int
) -> list[list[tuple[float, int]]]:
    """Generate; return when how many ids came for each prompt."""
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = new
    config.ignore_eos, config.do_sample = True, False
    began = time.perf_counter()
    handles = [
        pipeline.add_request(number, openvino.Tensor(np.array([prompt], dtype=np.int64)), config)
        for number, prompt in enumerate(prompts)
    ]
    arrivals: list[list[tuple[float, int]]] = [[] for _ in handles]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter() - began
        for handle, of_request in zip(handles, arrivals, strict=True):
            while handle.can_read():
                count = sum(len(output.generated_ids) for output in handle.read().values())
                of_request.append((now, count))
    return arrivals


if __name__ == "__main__":
    main()

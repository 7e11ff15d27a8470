"""DashInfer's API: python examples/dashinfer_quick_start.py MODEL [ADDRESS]; without an address in this process."""

import sys

from headrace import allspark
from headrace.allspark.engine import AsStatus, GenerateRequestStatus, TargetDevice

path, address = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None

with allspark.Engine(address) as engine:
    model = allspark.HuggingFaceModel(path, "quick-start").load_model().serialize_to_memory(engine).free_model()
    config = model.create_reference_runtime_config_builder("quick-start", TargetDevice.CPU, [0], max_batch=8)
    runtime = config.max_length(512).build()
    engine.install_model(runtime)
    engine.start_model("quick-start")
    model.free_memory_serialize_file()

    settings = model.create_reference_generation_config_builder(runtime).update({"top_k": 1, "max_length": 64})
    status, handle, queue = engine.start_request_text("quick-start", model, "Once upon a time", settings)
    assert status == AsStatus.ALLSPARK_SUCCESS, status
    while queue.GenerateStatus() not in (
        GenerateRequestStatus.GenerateFinished,
        GenerateRequestStatus.GenerateInterrupted,
    ):
        elements = queue.Get()
        if elements:
            print(elements.text, end="", flush=True)
    print()

    engine.release_request("quick-start", handle)
    engine.stop_model("quick-start")
    engine.release_model("quick-start")
